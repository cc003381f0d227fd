package paceline

import (
	"context"
	"errors"
	"math"
	"net"
	"sync/atomic"
	"testing"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

func TestABrokerThatIsBehindTakesNoPartitionsAway(t *testing.T) {
	fake, client := startFake(t)
	for _, partitions := range []int{3, 2} {
		fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", partitions, 0) }
		if state, err := client.refresh(context.Background(), "t", 1); err != nil || state.count != 3 {
			t.Fatalf("%+v, %v", state, err)
		}
	}
	fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "another", 1, 0) }
	if state, err := client.refresh(context.Background(), "t", 1); err != nil || state.count != 1 {
		t.Fatalf("the topic that was created again: %+v, %v", state, err)
	}
}

func TestABrokerThatIsCutOffHidesNeitherPartitionsNorLeadersFromAProducer(t *testing.T) {
	outdated, client := startFake(t)
	present, other := startFake(t)
	client.bootstrap = append(client.bootstrap, other.bootstrap...)
	present.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 2, 4) }
	for _, answer := range []func(string) *pacelinev1.TopicDescription{
		func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 1, 3) }, unknown,
	} {
		outdated.describe = answer
		for range 20 { // The order of the brokers is random.
			client.topics["t"] = &topicState{id: "id", count: 1, asked: time.Now().Add(-time.Hour),
				leaders: map[int32]leaderState{0: {client.bootstrap[0], 3}}}
			count, err := client.partitionCount(context.Background(), "t")
			if leader := client.topics["t"].leaders[0]; err != nil || count != 2 || leader.epoch != 4 || leader.address != other.bootstrap[0] {
				t.Fatalf("%d partitions, leader %v, %v", count, leader, err)
			}
		}
	}
}

func TestATopicWithoutPartitionsIsAskedForAgain(t *testing.T) {
	fake, client := startFake(t)
	var asked atomic.Int32
	fake.describe = func(topic string) *pacelinev1.TopicDescription {
		return described(topic, "id", int(asked.Add(1)-1), 0)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for range 2 {
		if count, err := client.partitionCount(ctx, "t"); err != nil || count != 1 {
			t.Fatalf("%d partitions, %v", count, err)
		}
	}
}

func TestAConsumerLearnsOfANewLeaderThoughTheOldOneRefusesNothing(t *testing.T) {
	fake, client := startFake(t)
	fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 1, 4) }
	for _, test := range []struct {
		age   time.Duration
		epoch int32
	}{{time.Minute, 3}, {time.Hour, 4}} {
		client.topics["t"] = &topicState{id: "id", count: 1, asked: time.Now().Add(-test.age),
			leaders: map[int32]leaderState{0: {client.bootstrap[0], 3}}}
		var epoch atomic.Int32
		fake.fetch = func(asked *pacelinev1.FetchPartition) *pacelinev1.FetchPartitionResult {
			epoch.Store(asked.GetCurrentLeaderEpoch())
			return &pacelinev1.FetchPartitionResult{Topic: asked.GetTopic()}
		}
		consumer := client.NewConsumer(ConsumerConfig{})
		at := cursor{TopicPartition: TopicPartition{"t", 0}}
		if _, _, err := consumer.fetch(context.Background(), at); err != nil || epoch.Load() != test.epoch {
			t.Errorf("after %v: epoch %d, %v", test.age, epoch.Load(), err)
		}
	}
}

func TestAChangeWithoutAControllerWasSurelyNotMade(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	client, err := NewClient(Config{Bootstrap: []string{silent.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	var failure *Error
	if err := client.DeleteTopic(ctx, "t"); !errors.As(err, &failure) || !failure.Definite {
		t.Fatal(err)
	}
}

func TestAnAnswerWithoutWhatWasAskedForIsAnError(t *testing.T) {
	fake, client := startFake(t)
	fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 1, 0) }
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, createError := client.CreateTopic(ctx, Topic{Name: "t"})
	_, _, listError := client.ListOffset(ctx, "t", 0, Latest())
	for operation, err := range map[string]error{
		"create": createError, "delete": client.DeleteTopic(ctx, "t"), "list": listError,
	} {
		var failure *Error
		if !errors.As(err, &failure) || failure.Code != pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_SERVER_ERROR || failure.Definite {
			t.Errorf("%s: %v", operation, err)
		}
	}
}

func TestTimesWithoutAnEndCanBeSet(t *testing.T) {
	client, err := NewClient(Config{Bootstrap: []string{"127.0.0.1:1"}, RequestTimeout: math.MaxInt64})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	consumer := client.NewConsumer(ConsumerConfig{MaxWait: math.MaxInt64, MaxBytes: math.MaxInt})
	if limit := consumer.config.MaxWait + client.requestTimeout; limit <= 0 || int32(consumer.config.MaxBytes) <= 0 {
		t.Fatalf("a fetch takes %v at most and %d bytes", limit, consumer.config.MaxBytes)
	}
	ctx, cancel := context.WithTimeout(context.Background(), client.requestTimeout)
	defer cancel()
	if wait := serverWait(ctx); wait != math.MaxInt32 || milliseconds(consumer.config.MaxWait) != math.MaxInt32 {
		t.Fatalf("the server waits %d ms", wait)
	}
}
