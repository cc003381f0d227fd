package paceline

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// producedTo answers Produce for topic id, and keeps the records of each topic id.
type producedTo struct {
	id     string
	limit  int
	values map[string][]string
}

func (p *producedTo) produce(asked *pacelinev1.ProducePartition) *pacelinev1.ProducePartitionResult {
	result := &pacelinev1.ProducePartitionResult{Topic: asked.GetTopic(), Partition: asked.GetPartition()}
	records := asked.GetRecords().GetRecords()
	switch {
	case asked.GetTopicId() != p.id:
		result.Error = partitionRefused(pacelinev1.ErrorCode_ERROR_CODE_INCONSISTENT_TOPIC_ID)
	case int(asked.GetRecords().GetBaseSequence()) != len(p.values[p.id]):
		result.Error = partitionRefused(pacelinev1.ErrorCode_ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER)
	case p.limit > 0 && len(records) > p.limit:
		result.Error = partitionRefused(pacelinev1.ErrorCode_ERROR_CODE_MESSAGE_TOO_LARGE)
	default:
		result.BaseOffset = int64(len(p.values[p.id]))
		for _, record := range records {
			p.values[p.id] = append(p.values[p.id], string(record.Value))
		}
	}
	return result
}

func deliverOne(t *testing.T, producer *Producer, value string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	delivery, err := producer.Send(ctx, Record{Topic: "t", Partition: ToPartition(0), Value: []byte(value)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = delivery.Wait(ctx)
	return err
}

func TestABatchThatMayBeInADeletedTopicDoesNotKeepThePartition(t *testing.T) {
	fake, client := startFake(t)
	topics := producedTo{id: "old", values: map[string][]string{}}
	fake.describe = func(topic string) *pacelinev1.TopicDescription {
		fake.mu.Lock()
		defer fake.mu.Unlock()
		return described(topic, topics.id, 1, 0)
	}
	fake.produce = func(asked *pacelinev1.ProducePartition) *pacelinev1.ProducePartitionResult {
		if topics.id == "old" {
			topics.id = "new"
			result := &pacelinev1.ProducePartitionResult{Topic: asked.GetTopic(), Partition: asked.GetPartition()}
			result.Error = partitionRefused(pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION)
			return result
		}
		return topics.produce(asked)
	}
	producer := client.NewProducer(ProducerConfig{})
	err := deliverOne(t, producer, "a")
	var failure *Error
	if !errors.As(err, &failure) || failure.Definite || failure.Code != pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION {
		t.Fatalf("the first record: %v", err)
	}
	if err := deliverOne(t, producer, "b"); err != nil {
		t.Fatalf("the second record: %v", err)
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if found := topics.values["new"]; len(found) != 1 || found[0] != "b" {
		t.Fatalf("the new topic has %q", found)
	}
}

func TestABrokerThatNamesADeletedTopicDoesNotEndABatchOfUnknownOutcome(t *testing.T) {
	fake, client := startFake(t)
	topics := producedTo{id: "new", values: map[string][]string{}}
	failed, asked := false, 0
	fake.describe = func(topic string) *pacelinev1.TopicDescription {
		fake.mu.Lock()
		defer fake.mu.Unlock()
		if failed && asked < 2 {
			asked++
			return described(topic, "old", 1, 50)
		}
		return described(topic, "new", 1, 0)
	}
	fake.produce = func(piece *pacelinev1.ProducePartition) *pacelinev1.ProducePartitionResult {
		result := topics.produce(piece)
		if !failed {
			// Appended, but the answer says that the outcome is unknown; a repeat finds what was appended.
			failed = true
			result.Error = partitionRefused(pacelinev1.ErrorCode_ERROR_CODE_NOT_LEADER_OR_FOLLOWER)
		} else if len(topics.values["new"]) == 1 {
			result = &pacelinev1.ProducePartitionResult{Topic: piece.GetTopic()}
		}
		return result
	}
	producer := client.NewProducer(ProducerConfig{})
	err := deliverOne(t, producer, "a")
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if err != nil || asked != 2 || fake.producerIDs != 1 {
		t.Fatalf("%v after %d answers, with %d producer ids", err, asked, fake.producerIDs)
	}
}

func TestABatchThatIsTooLargeForItsTopicIsSentInParts(t *testing.T) {
	fake, client := startFake(t)
	topics := producedTo{id: "id", limit: 2, values: map[string][]string{}}
	fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 1, 0) }
	fake.produce = topics.produce
	producer := client.NewProducer(ProducerConfig{Linger: 50 * time.Millisecond})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var deliveries []*Delivery
	for _, value := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		delivery, err := producer.Send(ctx, Record{Topic: "t", Partition: ToPartition(0), Value: []byte(value)})
		if err != nil {
			t.Fatal(err)
		}
		deliveries = append(deliveries, delivery)
	}
	for i, delivery := range deliveries {
		if offset, err := delivery.Wait(ctx); err != nil || offset != int64(i) {
			t.Fatalf("record %d: offset %d, %v", i, offset, err)
		}
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if found := strings.Join(topics.values["id"], ""); found != "abcdefg" {
		t.Fatal(found)
	}
}
