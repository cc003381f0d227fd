package paceline

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

const outOfOrder = pacelinev1.ErrorCode_ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER

// leaderLog is the log of a leader that checks sequence numbers; an unclean election takes records from its end.
type leaderLog struct {
	values []string
	// Producer id and sequence number of each record.
	ids       []int64
	sequences []int32
	// deposed refuses the next batch with an error after which its outcome is unknown.
	deposed bool
}

func (l *leaderLog) produce(asked *pacelinev1.ProducePartition) *pacelinev1.ProducePartitionResult {
	result := &pacelinev1.ProducePartitionResult{Topic: asked.GetTopic(), Partition: asked.GetPartition()}
	list, end := asked.GetRecords(), len(l.values)
	if l.deposed {
		l.deposed = false
		result.Error = partitionRefused(pacelinev1.ErrorCode_ERROR_CODE_NOT_LEADER_OR_FOLLOWER)
		return result
	}
	for i := end - 1; i >= 0; i-- {
		if l.ids[i] == list.GetProducerId() {
			if l.sequences[i]+1 != list.GetBaseSequence() {
				result.Error = partitionRefused(outOfOrder)
				return result
			}
			break
		}
	}
	for i, record := range list.GetRecords() {
		l.values = append(l.values, string(record.Value))
		l.ids = append(l.ids, list.GetProducerId())
		l.sequences = append(l.sequences, list.GetBaseSequence()+int32(i))
	}
	result.BaseOffset = int64(end)
	return result
}

func TestALeaderThatLostRecordsGetsTheNextOnesUnderANewProducerID(t *testing.T) {
	for name, isUnknown := range map[string]bool{"refused at once": false, "outcome unknown before": true} {
		t.Run(name, func(t *testing.T) {
			fake, client := startFake(t)
			logged := make(logLines, 10)
			client.logger = slog.New(slog.NewTextHandler(logged, nil))
			var log leaderLog
			fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 1, 0) }
			fake.produce = log.produce
			producer := client.NewProducer(ProducerConfig{})
			for _, value := range []string{"a", "b"} {
				if err := deliverOne(t, producer, value); err != nil {
					t.Fatal(err)
				}
			}
			fake.mu.Lock()
			log.values, log.ids, log.sequences, log.deposed = log.values[:1], log.ids[:1], log.sequences[:1], isUnknown
			fake.mu.Unlock()
			for _, value := range []string{"c", "d"} {
				if err := deliverOne(t, producer, value); err != nil {
					t.Fatal(err)
				}
			}
			fake.mu.Lock()
			defer fake.mu.Unlock()
			if found := strings.Join(log.values, ""); found != "acd" || fake.producerIDs != 2 {
				t.Fatalf("the log has %q after %d producer ids", found, fake.producerIDs)
			}
			if line := <-logged; !strings.Contains(line, "level=WARN msg=\"leader lost acknowledged records\" partition=t/0") {
				t.Fatal(line)
			}
		})
	}
}

func TestALeaderThatRefusesEverySequenceGetsFewRequestsUntilTheDeliveryTimeout(t *testing.T) {
	fake, client := startFake(t)
	client.logger = slog.New(slog.DiscardHandler)
	fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 1, 0) }
	fake.produce = func(asked *pacelinev1.ProducePartition) *pacelinev1.ProducePartitionResult {
		return &pacelinev1.ProducePartitionResult{Topic: asked.GetTopic(), Error: partitionRefused(outOfOrder)}
	}
	producer := client.NewProducer(ProducerConfig{DeliveryTimeout: 2 * time.Second})
	defer producer.Close(context.Background())
	err := deliverOne(t, producer, "a")
	var failure *Error
	if !errors.As(err, &failure) || failure.Code != outOfOrder || !failure.Definite {
		t.Fatal(err)
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if fake.producerIDs < 2 || fake.producerIDs > 20 {
		t.Fatalf("%d producer ids", fake.producerIDs)
	}
}
