package paceline

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// twoTopics answers for a topic that is deleted and re-created: the old topic has three records and leader epoch 3, the new
// topic has five records and leader epoch 0.
type twoTopics struct {
	mu    sync.Mutex
	isNew bool
}

func (w *twoTopics) createAgain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isNew = true
}

func (w *twoTopics) now() (id string, epoch int32, end int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isNew {
		return "new", 0, 5
	}
	return "old", 3, 3
}

func (w *twoTopics) serve(fake *fakeCluster) {
	fake.describe = func(topic string) *pacelinev1.TopicDescription {
		id, epoch, _ := w.now()
		return described(topic, id, 1, epoch)
	}
	fake.listOffsets = func(asked *pacelinev1.ListOffsetsPartition) *pacelinev1.ListOffsetsPartitionResult {
		result := &pacelinev1.ListOffsetsPartitionResult{Topic: asked.GetTopic(), Partition: asked.GetPartition()}
		_, epoch, end := w.now()
		switch {
		case asked.GetCurrentLeaderEpoch() > epoch:
			result.Error = partitionRefused(pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_LEADER_EPOCH)
		case asked.GetSpec() == pacelinev1.OffsetSpec_OFFSET_SPEC_EARLIEST:
			begin := int64(0)
			result.Offset = &begin
		default:
			result.Offset = &end
		}
		return result
	}
	fake.fetch = func(asked *pacelinev1.FetchPartition) *pacelinev1.FetchPartitionResult {
		result := &pacelinev1.FetchPartitionResult{Topic: asked.GetTopic(), Partition: asked.GetPartition()}
		id, _, end := w.now()
		if asked.GetTopicId() != id {
			result.Error = partitionRefused(pacelinev1.ErrorCode_ERROR_CODE_INCONSISTENT_TOPIC_ID)
			return result
		}
		list := &pacelinev1.RecordList{}
		for offset := asked.GetFetchOffset(); offset < end; offset++ {
			list.Records = append(list.Records, &pacelinev1.Record{Offset: offset, Value: []byte(id)})
		}
		result.Data = &pacelinev1.FetchPartitionResult_Records{Records: list}
		return result
	}
}

// readAll polls until it has count records or an error.
func readAll(t *testing.T, consumer *Consumer, count int) ([]ConsumedRecord, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var found []ConsumedRecord
	for len(found) < count {
		records, err := consumer.Poll(ctx)
		if err != nil {
			return found, err
		}
		if len(records) == 0 {
			t.Fatalf("only %d records within 30 s", len(found))
		}
		found = append(found, records...)
	}
	return found, nil
}

func TestATopicThatWasCreatedAgainIsReadFromItsBeginning(t *testing.T) {
	fake, client := startFake(t)
	var topics twoTopics
	topics.serve(fake)
	consumer := client.NewConsumer(ConsumerConfig{})
	consumer.AssignFrom("t", 0, Earliest())
	if _, err := readAll(t, consumer, 3); err != nil {
		t.Fatal(err)
	}
	topics.createAgain()
	found, err := readAll(t, consumer, 5)
	if err != nil || len(found) != 5 || found[0].Offset != 0 || string(found[0].Value) != "new" {
		t.Fatalf("%v, %v", found, err)
	}
}

func TestATopicThatWasCreatedAgainIsAnErrorWithoutAResetPolicy(t *testing.T) {
	fake, client := startFake(t)
	var topics twoTopics
	topics.serve(fake)
	consumer := client.NewConsumer(ConsumerConfig{Reset: ResetError})
	consumer.Assign("t", 0, 0)
	if _, err := readAll(t, consumer, 3); err != nil {
		t.Fatal(err)
	}
	topics.createAgain()
	found, err := readAll(t, consumer, 1)
	if CodeOf(err) != pacelinev1.ErrorCode_ERROR_CODE_OFFSET_OUT_OF_RANGE {
		t.Fatalf("%v, %v", found, err)
	}
}

func TestATopicThatIsCreatedAgainAfterTheLookUpIsReadFromTheChosenStart(t *testing.T) {
	for name, start := range map[string]Offset{"earliest": Earliest(), "latest": Latest(), "time": AtTime(time.Now())} {
		fake, client := startFake(t)
		var topics twoTopics
		topics.serve(fake)
		var fetches atomic.Int32
		fetch := fake.fetch
		fake.fetch = func(asked *pacelinev1.FetchPartition) *pacelinev1.FetchPartitionResult {
			if fetches.Add(1) == 1 {
				topics.createAgain()
			}
			return fetch(asked)
		}
		consumer := client.NewConsumer(ConsumerConfig{Reset: ResetError})
		consumer.AssignFrom("t", 0, start)
		expected := 0
		if name == "earliest" {
			expected = 5
		}
		found := 0
		at := &consumer.positions[TopicPartition{"t", 0}].cursor
		for deadline := time.Now().Add(30 * time.Second); at.topicID != "new" || at.next != 5; {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			records, err := consumer.Poll(ctx)
			cancel()
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("%s: %+v, %v", name, at, err)
			}
			found += len(records)
		}
		if found += len(consumer.buffered); found != expected {
			t.Fatalf("%s: %d records", name, found)
		}
	}
}

func TestAnOffsetOfATopicThatWasCreatedAgainIsListed(t *testing.T) {
	fake, client := startFake(t)
	var topics twoTopics
	topics.serve(fake)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, end := range []int64{3, 5} {
		if offset, ok, err := client.ListOffset(ctx, "t", 0, Latest()); err != nil || !ok || offset != end {
			t.Fatalf("%d, %v, %v", offset, ok, err)
		}
		topics.createAgain()
	}
}
