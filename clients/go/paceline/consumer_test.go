package paceline

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// arrive notes the outcome of a fetch as fetchInBackground does.
func arrive(k *Consumer, partition int32, err error, records ...ConsumedRecord) *position {
	of := k.positions[TopicPartition{"t", partition}]
	of.fetching = true
	k.arrived = append(k.arrived, fetched{of, of.cursor, records, err})
	return of
}

func TestAConsumedRecordHasItsPartitionAndItsRecordCanBeSentOn(t *testing.T) {
	for partition := range int32(2) {
		record := consumed(TopicPartition{"t", partition}, &pacelinev1.Record{Offset: 3})
		if record.Partition != partition || record.Record.Partition != nil {
			t.Errorf("partition %d: %+v", partition, record)
		}
	}
}

func TestATruncationIsReportedBesideRecordsOfOtherPartitions(t *testing.T) {
	consumer := (&Client{}).NewConsumer(ConsumerConfig{})
	for partition := range int32(3) {
		consumer.Assign("t", partition, 0)
	}
	arrive(consumer, 0, nil, ConsumedRecord{Record: Record{Topic: "t"}, Partition: 0, Offset: 7})
	arrive(consumer, 1, &TruncatedError{"t", 1, 9, 5})
	arrive(consumer, 2, &TruncatedError{"t", 2, 4, 3})
	for _, partition := range []int32{1, 2} {
		var truncated *TruncatedError
		if _, err := consumer.Poll(context.Background()); !errors.As(err, &truncated) || truncated.Partition != partition {
			t.Fatalf("the truncation of partition %d is missing: %v", partition, err)
		}
	}
	found, err := consumer.Poll(context.Background())
	if err != nil || len(found) != 1 || found[0].Offset != 7 {
		t.Fatalf("the records of partition 0 are missing: %v, %v", found, err)
	}
}

func TestAFailureThatMayPassDelaysOnlyItsPartition(t *testing.T) {
	consumer := (&Client{}).NewConsumer(ConsumerConfig{})
	consumer.Assign("t", 0, 0)
	consumer.Assign("t", 1, 0)
	failed := arrive(consumer, 0, &Error{Retriable: true})
	arrive(consumer, 1, nil, ConsumedRecord{Record: Record{Topic: "t"}, Partition: 1, Offset: 3})
	found, err := consumer.Poll(context.Background())
	if err != nil || len(found) != 1 || failed.notBefore.IsZero() || failed.fetching {
		t.Fatalf("%v, %v, %+v", found, err, failed)
	}
}

func TestAFetchOfAPartitionThatWasAssignedAgainIsForgotten(t *testing.T) {
	consumer := (&Client{}).NewConsumer(ConsumerConfig{})
	consumer.Assign("t", 0, 0)
	arrive(consumer, 0, nil, ConsumedRecord{Record: Record{Topic: "t"}, Offset: 0})
	consumer.Assign("t", 0, 40)
	if consumer.collect(); len(consumer.buffered) != 0 {
		t.Fatalf("records of the earlier assignment were kept: %v", consumer.buffered)
	}
	if offset, ok := consumer.Position("t", 0); !ok || offset != 40 {
		t.Fatalf("the position is %d", offset)
	}
}

func TestRecordsOfAPartitionThatWasDroppedAreNotReturned(t *testing.T) {
	consumer := (&Client{}).NewConsumer(ConsumerConfig{})
	consumer.Assign("t", 0, 0)
	consumer.Assign("t", 1, 0)
	arrive(consumer, 0, nil, ConsumedRecord{Record: Record{Topic: "t"}, Partition: 0})
	arrive(consumer, 1, nil, ConsumedRecord{Record: Record{Topic: "t"}, Partition: 1})
	consumer.collect()
	consumer.drop(TopicPartition{"t", 0})
	found, err := consumer.Poll(context.Background())
	if err != nil || len(found) != 1 || found[0].Partition != 1 {
		t.Fatalf("%v, %v", found, err)
	}
}

func TestAPositionAfterAResetHasNoEpochOfTheEarlierPosition(t *testing.T) {
	for _, failure := range []error{nil, &Error{Retriable: true}} {
		consumer := (&Client{}).NewConsumer(ConsumerConfig{})
		epoch := int32(3)
		consumer.assign(cursor{TopicPartition: TopicPartition{"t", 0}, next: 100, epoch: &epoch})
		of := consumer.positions[TopicPartition{"t", 0}]
		after := cursor{TopicPartition: TopicPartition{"t", 0}, next: 5000}
		consumer.arrived = append(consumer.arrived, fetched{of, after, nil, failure})
		consumer.collect()
		if of.returned != 5000 || of.returnedEpoch != nil {
			t.Errorf("after %v the position is %d with epoch %v", failure, of.returned, of.returnedEpoch)
		}
	}
}

func TestAPositionThatWasLookedUpIsKnownBeforeItsRecordsAreReturned(t *testing.T) {
	consumer := (&Client{}).NewConsumer(ConsumerConfig{})
	consumer.Assign("t", 0, 0)
	consumer.AssignFrom("t", 1, Latest())
	arrive(consumer, 0, nil, ConsumedRecord{Record: Record{Topic: "t"}, Partition: 0, Offset: 0})
	of := consumer.positions[TopicPartition{"t", 1}]
	after := cursor{TopicPartition: TopicPartition{"t", 1}, next: 1001}
	record := ConsumedRecord{Record: Record{Topic: "t"}, Partition: 1, Offset: 1000}
	consumer.arrived = append(consumer.arrived, fetched{of, after, []ConsumedRecord{record}, nil})
	// A limit below 1 means 1.
	if found, err := consumer.PollUpTo(context.Background(), 0); err != nil || len(found) != 1 || found[0].Partition != 0 {
		t.Fatalf("%v, %v", found, err)
	}
	if offset, known := consumer.Position("t", 1); !known || offset != 1000 {
		t.Fatalf("position %d, known: %v", offset, known)
	}
}

func TestARecordThatIsWrittenWhileATimeIsLookedUpIsNotSkipped(t *testing.T) {
	fake, client := startFake(t)
	fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 1, 0) }
	var end atomic.Int64
	end.Store(3)
	fake.listOffsets = func(asked *pacelinev1.ListOffsetsPartition) *pacelinev1.ListOffsetsPartitionResult {
		result := &pacelinev1.ListOffsetsPartitionResult{Topic: asked.GetTopic()}
		if now := end.Load(); asked.GetSpec() == pacelinev1.OffsetSpec_OFFSET_SPEC_LATEST {
			result.Offset = &now
		}
		end.Add(1) // A record is written.
		return result
	}
	fake.fetch = func(asked *pacelinev1.FetchPartition) *pacelinev1.FetchPartitionResult {
		return &pacelinev1.FetchPartitionResult{Topic: asked.GetTopic()}
	}
	start := AtTime(time.Now())
	after, _, err := client.NewConsumer(ConsumerConfig{}).fetch(
		context.Background(), cursor{TopicPartition: TopicPartition{"t", 0}, start: &start})
	if err != nil || after.next != 3 {
		t.Fatalf("reading begins at %d, %v", after.next, err)
	}
}
