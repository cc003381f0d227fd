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
		found, _, err := client.describeTopics(context.Background(), "testing", []string{"t"}, describers)
		if err != nil || found["t"].count != 2 {
			t.Fatalf("%v, %v", found, err)
		}
	}
	outdated.describe = unknown
	for range 20 {
		found, _, err := client.describeTopics(context.Background(), "testing", []string{"t"}, describers)
		if err != nil || found["t"].count != 2 {
			t.Fatalf("the topic is missing: %v, %v", found, err)
		}
	}
}

func TestPartitionsThatTheClientKnowsAreCounted(t *testing.T) {
	fake, client := startFake(t)
	fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 1, 0) }
	for id, count := range map[string]int{"id": 3, "deleted": 1} {
		client.topics["t"] = &topicState{id: id, count: 3, asked: time.Now()}
		found, _, err := client.describeTopics(context.Background(), "testing", []string{"t"}, describers)
		if err != nil || found["t"].id != "id" || found["t"].count != count {
			t.Fatalf("%v, %v", found, err)
		}
	}
}

func TestALeaderAssignsAgainOnlyAfterAChange(t *testing.T) {
	topic := func(id string, count int) *topicState { return &topicState{id: id, count: count} }
	assigned := map[string]*topicState{"t": topic("id", 3)}
	for name, test := range map[string]struct {
		now     map[string]*topicState
		changed bool
	}{
		"the same":                   {map[string]*topicState{"t": topic("id", 3)}, false},
		"more partitions":            {map[string]*topicState{"t": topic("id", 4)}, true},
		"an outdated answer":         {map[string]*topicState{"t": topic("id", 2)}, false},
		"a new topic":                {map[string]*topicState{"t": topic("id", 3), "u": topic("id", 1)}, true},
		"a deleted topic":            {map[string]*topicState{}, true},
		"created again with fewer":   {map[string]*topicState{"t": topic("other", 2)}, true},
		"created again with as many": {map[string]*topicState{"t": topic("other", 3)}, false},
	} {
		if haveChanged(assigned, test.now) != test.changed {
			t.Error(name)
		}
	}
}

func TestATopicHasTheIDThatMostBrokersName(t *testing.T) {
	if id := commonest([]*topicState{{id: "old"}, {id: "new"}, {id: "new"}}); id != "new" {
		t.Fatal(id)
	}
	if id := commonest([]*topicState{{id: "old"}, {id: "new"}}); id != "old" {
		t.Fatal(id)
	}
}
