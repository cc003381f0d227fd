package paceline

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

const unknownTopic = pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION

func unknown(topic string) *pacelinev1.TopicDescription {
	return &pacelinev1.TopicDescription{Name: topic, Error: &pacelinev1.TopicError{Code: unknownTopic, Message: "on purpose"}}
}

func TestAPartitionThatBrokersHaveNotKnownForFiveSecondsIsAnError(t *testing.T) {
	at, begin := TopicPartition{"t", 0}, time.Now()
	inMetadata := missing("looking", "no").(*Error)
	atLeader := newError("reading", unknownTopic, "no")
	silent := newError("reading", pacelinev1.ErrorCode_ERROR_CODE_BROKER_NOT_AVAILABLE, "no")
	type attempt struct {
		at      time.Duration
		failure *Error
	}
	for name, test := range map[string]struct {
		isFound  bool
		attempts []attempt
		fails    bool
	}{
		"too early":            {false, []attempt{{0, inMetadata}, {1, inMetadata}, {missingLimit - 1, inMetadata}}, false},
		"late enough":          {false, []attempt{{0, inMetadata}, {1, inMetadata}, {missingLimit, inMetadata}}, true},
		"too few attempts":     {false, []attempt{{0, inMetadata}, {missingLimit, inMetadata}}, false},
		"no answer in between": {false, []attempt{{0, inMetadata}, {1, silent}, {missingLimit, inMetadata}}, true},
		"known in between":     {false, []attempt{{0, inMetadata}, {1, atLeader}, {missingLimit, inMetadata}}, false},
		"known to a leader":    {false, []attempt{{0, atLeader}, {1, atLeader}, {missingLimit, atLeader}}, false},
		"read before":          {true, []attempt{{0, inMetadata}, {1, inMetadata}, {missingLimit, inMetadata}}, false},
	} {
		position := &position{isFound: test.isFound}
		var err error
		for _, one := range test.attempts {
			if err != nil {
				t.Errorf("%s: an early error: %v", name, err)
			}
			err = position.hinder(at, begin.Add(one.at), one.failure)
		}
		if (CodeOf(err) == unknownTopic) != test.fails || (err != nil) != test.fails {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && position.attempts != 0 {
			t.Errorf("%s: the failed attempts are still counted", name)
		}
	}
}

func TestAPartitionThatCannotBeReadForAMinuteIsAnErrorWithTheCause(t *testing.T) {
	position, begin := &position{isFound: true}, time.Now()
	cause := newError("reading", unknownTopic, "deleted")
	timedOut := newError("reading", pacelinev1.ErrorCode_ERROR_CODE_REQUEST_TIMED_OUT, "late")
	for _, failure := range []*Error{cause, timedOut} {
		if err := position.hinder(TopicPartition{"t", 3}, begin, failure); err != nil {
			t.Fatal(err)
		}
	}
	err := position.hinder(TopicPartition{"t", 3}, begin.Add(hindranceLimit), timedOut)
	if CodeOf(err) != pacelinev1.ErrorCode_ERROR_CODE_REQUEST_TIMED_OUT || !errors.Is(err, cause) {
		t.Fatal(err)
	}
	if !strings.Contains(err.Error(), "t/3") || !strings.Contains(err.Error(), "deleted") {
		t.Fatal(err)
	}
}

func TestAFailureIsNotHiddenByRecordsOfOtherPartitions(t *testing.T) {
	consumer := (&Client{}).NewConsumer(ConsumerConfig{})
	for partition := range int32(3) {
		consumer.Assign("t", partition, 0)
	}
	arrive(consumer, 0, nil, ConsumedRecord{Record: Record{Topic: "t"}, Partition: 0, Offset: 7})
	arrive(consumer, 1, newError("reading", pacelinev1.ErrorCode_ERROR_CODE_CLUSTER_AUTHORIZATION_FAILED, "no"))
	arrive(consumer, 2, newError("reading", pacelinev1.ErrorCode_ERROR_CODE_CORRUPT_MESSAGE, "no"))
	consumer.collect()
	consumer.drop(TopicPartition{"t", 2})
	if _, err := consumer.Poll(context.Background()); CodeOf(err) != pacelinev1.ErrorCode_ERROR_CODE_CLUSTER_AUTHORIZATION_FAILED {
		t.Fatal(err)
	}
	if found, err := consumer.Poll(context.Background()); err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
}

func TestANegativePartitionDoesNotExist(t *testing.T) {
	fake, client := startFake(t)
	fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 1, 0) }
	if _, _, err := client.leaderOf(context.Background(), "t", -1); CodeOf(err) != unknownTopic {
		t.Fatal(err)
	}
}

// missingSoon shortens the time after which a topic counts as missing.
func missingSoon(t *testing.T) {
	usual := missingLimit
	missingLimit = time.Second
	t.Cleanup(func() { missingLimit = usual })
}

// isMissingForCertain says whether brokers have reported for some time that the topic does not exist, and nothing was sent.
func isMissingForCertain(err error) bool {
	var failure *Error
	return errors.As(err, &failure) && failure.Code == unknownTopic && failure.Definite
}

func TestRecordsForATopicThatDoesNotExistFailAfterSomeSeconds(t *testing.T) {
	missingSoon(t)
	fake, client := startFake(t)
	var exists atomic.Bool
	fake.describe = func(topic string) *pacelinev1.TopicDescription {
		if exists.Load() {
			return described(topic, "id", 1, 0)
		}
		return unknown(topic)
	}
	fake.produce = func(asked *pacelinev1.ProducePartition) *pacelinev1.ProducePartitionResult {
		return &pacelinev1.ProducePartitionResult{Topic: asked.GetTopic(), Partition: asked.GetPartition()}
	}
	producer := client.NewProducer(ProducerConfig{BatchBytes: 1})
	defer producer.Close(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), 3*missingLimit)
	defer cancel()
	var deliveries []*Delivery
	for range 10 { // ten batches
		delivery, err := producer.Send(ctx, Record{Topic: "t", Partition: ToPartition(0)})
		if err != nil {
			t.Fatal(err)
		}
		deliveries = append(deliveries, delivery)
	}
	if _, err := producer.Send(ctx, Record{Topic: "t"}); !isMissingForCertain(err) || ctx.Err() != nil {
		t.Fatalf("without a partition: %v", err)
	}
	for _, delivery := range deliveries {
		if _, err := delivery.Wait(ctx); !isMissingForCertain(err) {
			t.Fatal(err)
		}
	}
	exists.Store(true)
	if err := deliverOne(t, producer, "v"); err != nil {
		t.Fatalf("after the topic was created: %v", err)
	}
}

func TestRecordsForATopicThatWasDeletedWaitUntilItIsCreatedAgain(t *testing.T) {
	missingSoon(t)
	fake, client := startFake(t)
	topics := producedTo{id: "old", values: map[string][]string{}}
	var deleted atomic.Pointer[time.Time]
	fake.describe = func(topic string) *pacelinev1.TopicDescription {
		fake.mu.Lock()
		defer fake.mu.Unlock()
		if since := deleted.Load(); since != nil {
			if time.Since(*since) < 2*missingLimit {
				return unknown(topic)
			}
			topics.id = "new"
		}
		return described(topic, topics.id, 1, 0)
	}
	fake.produce = func(asked *pacelinev1.ProducePartition) *pacelinev1.ProducePartitionResult {
		if deleted.Load() != nil && topics.id == "old" {
			result := &pacelinev1.ProducePartitionResult{Topic: asked.GetTopic(), Partition: asked.GetPartition()}
			result.Error = partitionRefused(pacelinev1.ErrorCode_ERROR_CODE_INCONSISTENT_TOPIC_ID)
			return result
		}
		return topics.produce(asked)
	}
	producer := client.NewProducer(ProducerConfig{})
	defer producer.Close(context.Background())
	if err := deliverOne(t, producer, "a"); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	deleted.Store(&now)
	if err := deliverOne(t, producer, "b"); err != nil {
		t.Fatal(err)
	}
}

func TestALookUpInATopicThatDoesNotExistEndsWithoutADeadline(t *testing.T) {
	missingSoon(t)
	fake, client := startFake(t)
	fake.describe = unknown
	ended := make(chan error, 2)
	go func() { _, err := client.DescribeTopic(context.Background(), "t"); ended <- err }()
	go func() { _, _, err := client.ListOffset(context.Background(), "t", 0, Latest()); ended <- err }()
	for range 2 {
		select {
		case err := <-ended:
			if CodeOf(err) != unknownTopic {
				t.Error(err)
			}
		case <-time.After(5 * missingLimit):
			t.Fatal("a look-up waits for ever")
		}
	}
}

func TestASendToATopicThatDoesNotExistEnds(t *testing.T) {
	fake, client := startFake(t)
	fake.describe = unknown
	producer := client.NewProducer(ProducerConfig{DeliveryTimeout: 500 * time.Millisecond})
	defer producer.Close(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := producer.Send(ctx, Record{Topic: "t"}); CodeOf(err) != unknownTopic || ctx.Err() != nil {
		t.Fatal(err)
	}
}

func TestAMemberFailsWhenItsTopicDoesNotExistAndJoinsOnceItDoes(t *testing.T) {
	fake, client := startFake(t)
	var generations atomic.Int32
	var exists atomic.Bool
	fake.join = joinAlone(&generations)
	fake.describe = func(topic string) *pacelinev1.TopicDescription {
		if exists.Load() {
			return &pacelinev1.TopicDescription{Name: topic, Partitions: []*pacelinev1.PartitionDescription{{Partition: 0}, {Partition: 1}}}
		}
		return unknown(topic)
	}
	member := memberOf(t, fake, client, GroupConfig{})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := member.Poll(ctx); CodeOf(err) != unknownTopic || generations.Load() != 0 {
		t.Fatalf("after %d joins: %v", generations.Load(), err)
	}
	exists.Store(true)
	pollUntil(t, member, func() bool { return len(member.Assignment()) == 2 })
}

func TestATopicWithAnInvalidNameIsAnErrorOfItsMemberAlone(t *testing.T) {
	fake, client := startFake(t)
	invalid := pacelinev1.ErrorCode_ERROR_CODE_INVALID_TOPIC
	fake.describe = func(topic string) *pacelinev1.TopicDescription {
		if topic == "t" {
			return described(topic, "id", 1, 0)
		}
		return &pacelinev1.TopicDescription{Name: topic, Error: &pacelinev1.TopicError{Code: invalid}}
	}
	if err := client.findTopics(context.Background(), "joining", []string{"t", "/"}); CodeOf(err) != invalid {
		t.Fatal(err)
	}
	found, refusals, err := client.describeTopics(context.Background(), "joining", []string{"t", "/"}, describers)
	if err != nil || len(refusals) != 1 || CodeOf(refusals["/"]) != invalid || len(found) != 1 || found["t"].count != 1 {
		t.Fatalf("%v, %v, %v", found, refusals, err)
	}
}

func TestATopicIsNotReportedMissingWhileNoBrokerAnswers(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	client, err := NewClient(Config{Bootstrap: []string{closed.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.findTopics(context.Background(), "joining", []string{"t"}); err != nil {
		t.Fatal(err)
	}
}
