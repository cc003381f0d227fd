package paceline

import (
	"context"
	"errors"
	"testing"
)

func TestATruncationIsReportedBesideRecordsOfOtherPartitions(t *testing.T) {
	consumer := (&Client{}).NewConsumer(ConsumerConfig{})
	for partition := range int32(3) {
		consumer.Assign("t", partition, 0)
	}
	records := []ConsumedRecord{{Record: Record{Topic: "t", Partition: 0}, Offset: 7}}
	retriable := &Error{Retriable: true}
	failures := []error{&TruncatedError{"t", 1, 9, 5}, retriable, &TruncatedError{"t", 2, 4, 3}}
	if err := consumer.settle(records, failures); err != retriable {
		t.Fatalf("settle returned %v", err)
	}
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
