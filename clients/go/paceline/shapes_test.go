package paceline

import (
	"context"
	"testing"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

func TestABrokerThatIsCutOffHidesNoAddedPartitions(t *testing.T) {
	outdated, client := startFake(t)
	present, other := startFake(t)
	client.bootstrap = append(client.bootstrap, other.bootstrap...)
	outdated.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 1, 0) }
	present.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 2, 0) }
	for range 20 { // The order of the brokers is random.
		shapes, _, err := client.topicShapes(context.Background(), []string{"t"})
		if err != nil || shapes["t"].count != 2 {
			t.Fatalf("%v, %v", shapes, err)
		}
	}
	outdated.describe = unknown
	for range 20 {
		shapes, _, err := client.topicShapes(context.Background(), []string{"t"})
		if err != nil || shapes["t"].count != 2 {
			t.Fatalf("the topic is missing: %v, %v", shapes, err)
		}
	}
}

func TestPartitionsThatTheClientKnowsAreCounted(t *testing.T) {
	fake, client := startFake(t)
	fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 1, 0) }
	for id, count := range map[string]int{"id": 3, "deleted": 1} {
		client.topics["t"] = &topicState{id: id, count: 3, asked: time.Now()}
		shapes, _, err := client.topicShapes(context.Background(), []string{"t"})
		if err != nil || shapes["t"] != (topicShape{"id", count}) {
			t.Fatalf("%v, %v", shapes, err)
		}
	}
}

func TestALeaderAssignsAgainOnlyAfterAChange(t *testing.T) {
	assigned := map[string]topicShape{"t": {"id", 3}}
	for name, test := range map[string]struct {
		now     map[string]topicShape
		changed bool
	}{
		"the same":                   {map[string]topicShape{"t": {"id", 3}}, false},
		"more partitions":            {map[string]topicShape{"t": {"id", 4}}, true},
		"an outdated answer":         {map[string]topicShape{"t": {"id", 2}}, false},
		"a new topic":                {map[string]topicShape{"t": {"id", 3}, "u": {"id", 1}}, true},
		"a deleted topic":            {map[string]topicShape{}, true},
		"created again with fewer":   {map[string]topicShape{"t": {"other", 2}}, true},
		"created again with as many": {map[string]topicShape{"t": {"other", 3}}, false},
	} {
		if haveChanged(assigned, test.now) != test.changed {
			t.Error(name)
		}
	}
}

func TestATopicHasTheIDThatMostBrokersName(t *testing.T) {
	if id := commonest([]topicShape{{"old", 9}, {"new", 1}, {"new", 2}}); id != "new" {
		t.Fatal(id)
	}
	if id := commonest([]topicShape{{"old", 9}, {"new", 1}}); id != "old" {
		t.Fatal(id)
	}
}
