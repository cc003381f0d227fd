package paceline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

func TestARecordWithTextThatIsNotUTF8IsRefused(t *testing.T) {
	producer := (&Client{}).NewProducer(ProducerConfig{})
	for _, record := range []Record{
		{Topic: "t\xff"},
		{Topic: "t", Headers: []Header{{Key: "good"}, {Key: "bad\xff"}}},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := producer.Send(ctx, record); CodeOf(err) != pacelinev1.ErrorCode_ERROR_CODE_INVALID_REQUEST {
			t.Errorf("%q: %v", record.Topic, err)
		}
		if len(producer.queues) != 0 || len(producer.pending) != 0 {
			t.Errorf("%q was queued", record.Topic)
		}
	}
}

func TestTheZeroValueOfAPartitionLetsTheKeyChooseAndPartitionZeroIsNamed(t *testing.T) {
	_, client := startFake(t)
	client.topics["t"] = &topicState{count: 6, asked: time.Now(), leaders: map[int32]leaderState{}}
	producer := client.NewProducer(ProducerConfig{})
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	defer producer.Close(ended)
	counts := map[int32]int{}
	for i := range 600 {
		key := fmt.Appendf(nil, "key-%d", i)
		delivery, err := producer.Send(context.Background(), Record{Topic: "t", Key: key})
		if err != nil {
			t.Fatal(err)
		}
		if wanted := PartitionForKey(key, 6); delivery.Partition() != wanted {
			t.Fatalf("key %s is in partition %d, not %d", key, delivery.Partition(), wanted)
		}
		counts[delivery.Partition()]++
	}
	if len(counts) != 6 {
		t.Fatalf("600 keys are in these partitions: %v", counts)
	}
	delivery, err := producer.Send(context.Background(), Record{Topic: "t", Key: []byte("key-0"), Partition: ToPartition(0)})
	if err != nil || delivery.Partition() != 0 {
		t.Fatalf("the named partition is %d, %v", delivery.Partition(), err)
	}
	if _, err := producer.Send(context.Background(), Record{Topic: "t", Partition: ToPartition(-1)}); CodeOf(err) !=
		pacelinev1.ErrorCode_ERROR_CODE_INVALID_REQUEST {
		t.Fatal(err)
	}
}

func TestARecordThatWasNeverSentIsSurelyNotInTheLog(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, wait := range map[string]time.Duration{"deadline passed in the queue": -time.Second, "no leader found": time.Second} {
		client, err := NewClient(Config{Bootstrap: []string{silent.Addr().String()}})
		if err != nil {
			t.Fatal(err)
		}
		if wait < 0 {
			client.topics["t"] = &topicState{id: "id", count: 1, leaders: map[int32]leaderState{0: {silent.Addr().String(), 1}}}
		}
		queue := &queue{producer: client.NewProducer(ProducerConfig{}), topic: "t", topicID: "id", producerID: 5}
		_, err = queue.deliver([]*item{{record: &pacelinev1.Record{}, deadline: time.Now().Add(wait)}})
		var failure *Error
		if !errors.As(err, &failure) || !failure.Definite || queue.producerID != 5 {
			t.Errorf("%s: %v, producer id %d", name, err, queue.producerID)
		}
		client.Close()
	}
}

// logLines is a log that a test reads line by line.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

func TestASendThatFindsNoClusterSaysSoWithinTwoSecondsAndEndsWithTheCause(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	for address, cause := range map[string]string{"127.0.0.1:1": "refused", silent.Addr().String(): silent.Addr().String()} {
		for _, partition := range []*int32{ToPartition(0), nil} {
			t.Run(fmt.Sprintf("%s, any partition: %t", address, partition == nil), func(t *testing.T) {
				t.Parallel()
				logged := make(logLines, 10)
				client, err := NewClient(Config{Bootstrap: []string{address}, Logger: slog.New(slog.NewTextHandler(logged, nil))})
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				producer := client.NewProducer(ProducerConfig{DeliveryTimeout: 2500 * time.Millisecond})
				outcome := make(chan error, 1)
				go func() {
					delivery, err := producer.Send(context.Background(), Record{Topic: "rides", Partition: partition})
					if err == nil {
						_, err = delivery.Wait(context.Background())
					}
					outcome <- err
				}()
				select {
				case line := <-logged:
					if !strings.Contains(line, "rides") || !strings.Contains(line, "refused") && !strings.Contains(line, "no answer yet") {
						t.Error(line)
					}
				case err := <-outcome:
					t.Fatalf("nothing is logged before the error: %v", err)
				}
				var failure *Error
				if err := <-outcome; !errors.As(err, &failure) || !failure.Definite || !strings.Contains(err.Error(), cause) {
					t.Error(err)
				}
			})
		}
	}
}

func TestATimeoutDoesNotHideTheCauseOfAnEarlierFailure(t *testing.T) {
	client, err := NewClient(Config{Bootstrap: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, isDefinite := range []bool{true, false} {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		attempts := 0
		err = client.retry(ctx, "calling", func(ctx context.Context) error {
			if attempts++; attempts == 1 {
				return newError("calling", pacelinev1.ErrorCode_ERROR_CODE_NOT_ENOUGH_REPLICAS, "the cause")
			}
			failure := withoutAnswer("calling", status.New(codes.DeadlineExceeded, "too late"))
			failure.Definite = isDefinite
			return failure
		})
		cancel()
		var failure *Error
		if !errors.As(err, &failure) || !strings.Contains(err.Error(), "the cause") || failure.Definite != isDefinite || attempts < 2 {
			t.Fatalf("after %d attempts: %v", attempts, err)
		}
	}
}

func TestPartitionsThatWereAddedAreFoundWhenTheMetadataIsOld(t *testing.T) {
	_, client := startFake(t)
	for _, test := range []struct {
		age    time.Duration
		wanted int
	}{{time.Minute, 1}, {time.Hour, 2}} {
		client.topics["t"] = &topicState{count: 1, asked: time.Now().Add(-test.age), leaders: map[int32]leaderState{}}
		if count, err := client.partitionCount(context.Background(), "t"); err != nil || count != test.wanted {
			t.Errorf("after %v: %d partitions, %v", test.age, count, err)
		}
	}
}

func TestTheKnownNumberOfPartitionsIsUsedWhileNoBrokerAnswers(t *testing.T) {
	client, err := NewClient(Config{Bootstrap: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	client.topics["t"] = &topicState{count: 3, leaders: map[int32]leaderState{}}
	if count, err := client.partitionCount(context.Background(), "t"); err != nil || count != 3 {
		t.Fatalf("%d partitions, %v", count, err)
	}
}
