package paceline

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

const pauseMs = 300

// arrivals keeps the times at which requests arrived; the first of each kind is answered with a pause.
type arrivals struct {
	mu      sync.Mutex
	times   map[string][]time.Time
	pauseMs int32
}

func (a *arrivals) throttleMs(name string) int32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.times[name] = append(a.times[name], time.Now())
	if len(a.times[name]) == 1 {
		return a.pauseMs
	}
	return 0
}

func (a *arrivals) gap(t *testing.T, name string) time.Duration {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.times[name]) < 2 {
		t.Fatalf("%d requests of %s", len(a.times[name]), name)
	}
	return a.times[name][1].Sub(a.times[name][0])
}

func startThrottling(t *testing.T) (*fakeCluster, *Client, *arrivals) {
	t.Helper()
	fake, client := startFake(t)
	counted := &arrivals{times: map[string][]time.Time{}, pauseMs: pauseMs}
	fake.throttleMs = counted.throttleMs
	fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 1, 1) }
	return fake, client, counted
}

func TestAProducerAboveItsQuotaSendsTheNextBatchAfterThePause(t *testing.T) {
	fake, client, counted := startThrottling(t)
	next := int64(0)
	fake.produce = func(one *pacelinev1.ProducePartition) *pacelinev1.ProducePartitionResult {
		next++
		return &pacelinev1.ProducePartitionResult{BaseOffset: next - 1}
	}
	producer := client.NewProducer(ProducerConfig{})
	defer producer.Close(context.Background())
	for offset := range int64(2) {
		began := time.Now()
		delivery, err := producer.Send(context.Background(), Record{Topic: "t", Value: []byte("v")})
		if err != nil {
			t.Fatal(err)
		}
		if found, err := delivery.Wait(context.Background()); err != nil || found != offset {
			t.Fatal(found, err)
		}
		if offset == 0 && time.Since(began) > pauseMs*time.Millisecond {
			t.Fatal("the throttled answer itself is not delayed")
		}
	}
	if gap := counted.gap(t, "Produce"); gap < pauseMs*time.Millisecond {
		t.Fatal(gap)
	}
	if client.ThrottleTime() != pauseMs*time.Millisecond {
		t.Fatal(client.ThrottleTime())
	}
}

func TestAConsumerAboveItsQuotaFetchesAfterThePauseAndOtherCallsGoOn(t *testing.T) {
	fake, client, counted := startThrottling(t)
	fake.fetch = func(one *pacelinev1.FetchPartition) *pacelinev1.FetchPartitionResult {
		offset := one.GetFetchOffset()
		record := &pacelinev1.Record{Offset: offset, Value: []byte("v")}
		return &pacelinev1.FetchPartitionResult{Data: &pacelinev1.FetchPartitionResult_Records{
			Records: &pacelinev1.RecordList{Records: []*pacelinev1.Record{record}}}}
	}
	consumer := client.NewConsumer(ConsumerConfig{})
	consumer.Assign("t", 0, 0)
	began := time.Now()
	var offsets []int64
	for len(offsets) < 2 {
		records, err := consumer.Poll(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, record := range records {
			offsets = append(offsets, record.Offset)
		}
		if _, err := client.DescribeCluster(context.Background()); err != nil || time.Since(began) > time.Minute {
			t.Fatal(err)
		}
	}
	if !slices.Equal(offsets, []int64{0, 1}) || counted.gap(t, "Fetch") < pauseMs*time.Millisecond {
		t.Fatal(offsets, counted.gap(t, "Fetch"))
	}
}

func TestAnAdminAboveItsQuotaRepeatsARefusedChangeAfterThePause(t *testing.T) {
	fake, client, counted := startThrottling(t)
	refusals := 1
	fake.create = func() *pacelinev1.CreateTopicResult {
		if refusals--; refusals >= 0 {
			return &pacelinev1.CreateTopicResult{Error: &pacelinev1.TopicError{
				Code: pacelinev1.ErrorCode_ERROR_CODE_THROTTLING_QUOTA_EXCEEDED, Message: "on purpose"}}
		}
		return &pacelinev1.CreateTopicResult{TopicId: "id"}
	}
	id, err := client.CreateTopic(context.Background(), Topic{Name: "t"})
	if err != nil || id != "id" || counted.gap(t, "CreateTopics") < pauseMs*time.Millisecond {
		t.Fatal(id, err, counted.gap(t, "CreateTopics"))
	}
}

func TestACallWithoutTimeForThePauseFailsWithoutBeingSent(t *testing.T) {
	fake, client, counted := startThrottling(t)
	counted.pauseMs = 60_000
	fake.create = func() *pacelinev1.CreateTopicResult { return &pacelinev1.CreateTopicResult{TopicId: "id"} }
	if _, err := client.CreateTopic(context.Background(), Topic{Name: "t"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := client.DeleteTopic(ctx, "t")
	var failure *Error
	if !errors.As(err, &failure) || failure.Code != pacelinev1.ErrorCode_ERROR_CODE_THROTTLED || !failure.Definite {
		t.Fatal(err)
	}
	if len(counted.times["DeleteTopics"]) != 0 {
		t.Fatal("the request was sent")
	}
}
