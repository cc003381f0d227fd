package paceline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// ResetPolicy says what happens when a position is out of range.
type ResetPolicy int

const (
	// ResetToEarliest continues at the first offset still in the log.
	ResetToEarliest ResetPolicy = iota
	// ResetToLatest continues at the end.
	ResetToLatest
	// ResetError returns the error OFFSET_OUT_OF_RANGE from Poll.
	ResetError
)

// ConsumerConfig tunes a consumer; zero values are defaults.
type ConsumerConfig struct {
	Reset ResetPolicy
	// MaxWait is how long a broker may hold a fetch without records; 0 means 500 ms.
	MaxWait time.Duration
	// MaxBytes bounds the answer of one fetch; 0 means 1 MiB.
	MaxBytes int
}

// ConsumedRecord is a record that was read.
type ConsumedRecord struct {
	Record
	Offset int64
}

// Consumer reads assigned partitions from positions of its own. Use it from one goroutine.
type Consumer struct {
	client    *Client
	config    ConsumerConfig
	positions map[topicPartition]*position
	// Records that were read and not returned yet, in the order of each partition.
	buffered []ConsumedRecord
	// truncated holds truncations that PollUpTo has not returned yet.
	truncated []*TruncatedError
}

type topicPartition struct {
	topic     string
	partition int32
}

type position struct {
	topicPartition
	next int64
	// returned is the offset after the last record that Poll returned.
	returned int64
	// start is asked for before the first fetch; nil once the position is known.
	start *Offset
	// epoch is the leader epoch under which records were last read; nil before the first.
	epoch *int32
}

// NewConsumer returns a consumer without partitions.
func (c *Client) NewConsumer(config ConsumerConfig) *Consumer {
	if config.MaxWait == 0 {
		config.MaxWait = 500 * time.Millisecond
	}
	return &Consumer{client: c, config: config, positions: map[topicPartition]*position{}}
}

// AssignFrom reads a partition from Earliest, Latest or AtTime.
func (k *Consumer) AssignFrom(topic string, partition int32, start Offset) {
	at := topicPartition{topic, partition}
	k.positions[at] = &position{topicPartition: at, start: &start}
}

// Assign reads a partition from an offset.
func (k *Consumer) Assign(topic string, partition int32, offset int64) {
	at := topicPartition{topic, partition}
	k.positions[at] = &position{topicPartition: at, next: offset, returned: offset}
}

// Position returns the offset of the next record of a partition; ok is false while it is not known.
func (k *Consumer) Position(topic string, partition int32) (offset int64, ok bool) {
	found := k.positions[topicPartition{topic, partition}]
	if found == nil || found.start != nil {
		return 0, false
	}
	return max(found.returned, 0), true
}

// Poll is PollUpTo without a limit.
func (k *Consumer) Poll(ctx context.Context) ([]ConsumedRecord, error) {
	return k.PollUpTo(ctx, math.MaxInt)
}

// PollUpTo waits until there are records, or ctx ends; then it returns none and no error if the deadline passed. It
// returns at most limit records and keeps the others for the next poll.
//
// Errors: *TruncatedError when records that were read are gone; OFFSET_OUT_OF_RANGE with ResetError; any failure that no
// retry can mend.
func (k *Consumer) PollUpTo(ctx context.Context, limit int) ([]ConsumedRecord, error) {
	if len(k.positions) == 0 {
		return nil, errors.New("paceline: the consumer has no partitions")
	}
	pause := firstPause
	for {
		if len(k.truncated) > 0 {
			truncated := k.truncated[0]
			k.truncated = k.truncated[1:]
			return nil, truncated
		}
		if len(k.buffered) > 0 {
			return k.give(limit), nil
		}
		err := k.pollOnce(ctx)
		if len(k.truncated) > 0 || len(k.buffered) > 0 {
			continue
		}
		var failure *Error
		switch {
		case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
			return nil, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.As(err, &failure) && failure.Retriable:
			if !sleep(ctx, max(pause, failure.retryAfter)) {
				continue
			}
			pause = min(pause*3/2, longestPause)
		case err != nil:
			return nil, err
		default:
			pause = firstPause
		}
	}
}

// give hands out records of the buffer and moves the positions that a caller sees.
func (k *Consumer) give(limit int) []ConsumedRecord {
	count := min(limit, len(k.buffered))
	given := k.buffered[:count:count]
	k.buffered = k.buffered[count:]
	for _, record := range given {
		if at := k.positions[topicPartition{record.Topic, record.Partition}]; at != nil {
			at.returned = record.Offset + 1
		}
	}
	return given
}

// pollOnce fetches from every partition's leader at the same time.
func (k *Consumer) pollOnce(ctx context.Context) error {
	var wait sync.WaitGroup
	var mu sync.Mutex
	var records []ConsumedRecord
	var failures []error
	for _, at := range k.positions {
		wait.Add(1)
		go func() {
			defer wait.Done()
			found, err := k.fetch(ctx, at)
			mu.Lock()
			defer mu.Unlock()
			records = append(records, found...)
			if err != nil {
				failures = append(failures, err)
			}
		}()
	}
	wait.Wait()
	return k.settle(records, failures)
}

// settle keeps the records and truncations of one round for the next calls of PollUpTo, and returns the failure that
// matters most. A truncation has moved its position, so no later fetch would report it; other failures come again.
func (k *Consumer) settle(records []ConsumedRecord, failures []error) error {
	k.buffered = records
	var first error
	for _, err := range failures {
		var truncated *TruncatedError
		if errors.As(err, &truncated) {
			k.truncated = append(k.truncated, truncated)
		} else if first == nil || !isRetriable(err) {
			first = err
		}
	}
	return first
}

func isRetriable(err error) bool {
	var failure *Error
	return errors.As(err, &failure) && failure.Retriable
}

func (k *Consumer) fetch(ctx context.Context, at *position) ([]ConsumedRecord, error) {
	if at.start != nil {
		offset, ok, err := k.client.ListOffset(ctx, at.topic, at.partition, *at.start)
		if err == nil && !ok {
			offset, _, err = k.client.ListOffset(ctx, at.topic, at.partition, Latest())
		}
		if err != nil {
			return nil, err
		}
		at.next, at.returned, at.start = offset, offset, nil
	}
	operation := fmt.Sprintf("reading %s/%d from offset %d", at.topic, at.partition, at.next)
	var records []ConsumedRecord
	err := k.client.onLeader(ctx, at.topic, at.partition, func(
		ctx context.Context, log pacelinev1.LogServiceClient, leader leaderState, topicID string,
	) error {
		call, cancel := context.WithTimeout(ctx, k.config.MaxWait+k.client.requestTimeout)
		defer cancel()
		answer, err := log.Fetch(call, &pacelinev1.FetchRequest{
			MaxWaitMs: int32(k.config.MaxWait.Milliseconds()), MinBytes: 1, MaxBytes: int32(k.config.MaxBytes),
			Format: pacelinev1.FetchFormat_FETCH_FORMAT_RECORDS,
			Partitions: []*pacelinev1.FetchPartition{{
				Topic: at.topic, Partition: at.partition, TopicId: topicID, FetchOffset: at.next,
				CurrentLeaderEpoch: &leader.epoch, LastFetchedEpoch: at.epoch, MaxBytes: int32(k.config.MaxBytes),
			}},
		})
		if err != nil {
			return callError(ctx, operation, err)
		}
		if len(answer.GetPartitions()) != 1 {
			return newError(operation, pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_SERVER_ERROR, "the answer has not one partition")
		}
		records, err = at.accept(operation, answer.GetPartitions()[0], leader.epoch)
		return err
	})
	return k.reset(ctx, at, records, err)
}

// accept moves the position behind the records of an answer.
func (at *position) accept(
	operation string, result *pacelinev1.FetchPartitionResult, leaderEpoch int32,
) ([]ConsumedRecord, error) {
	if err := partitionError(operation, result.GetError()); err != nil {
		return nil, err
	}
	if diverging := result.GetDivergingEpoch(); diverging != nil {
		if diverging.GetEndOffset() >= at.next {
			// Nothing that was read is gone; the next fetch names the epoch that the leader knows.
			epoch := diverging.GetEpoch()
			at.epoch = &epoch
			return nil, nil
		}
		truncated := &TruncatedError{at.topic, at.partition, at.next, diverging.GetEndOffset()}
		at.next, at.returned = truncated.DivergentOffset, truncated.DivergentOffset
		epoch := diverging.GetEpoch()
		at.epoch = &epoch
		return nil, truncated
	}
	var records []ConsumedRecord
	for _, record := range result.GetRecords().GetRecords() {
		if record.GetOffset() < at.next {
			continue
		}
		records = append(records, consumed(at.topicPartition, record))
		at.next = record.GetOffset() + 1
	}
	if len(records) > 0 {
		at.epoch = &leaderEpoch
	}
	return records, nil
}

// reset applies the reset policy to a position that is out of range.
func (k *Consumer) reset(ctx context.Context, at *position, records []ConsumedRecord, err error) ([]ConsumedRecord, error) {
	if CodeOf(err) != pacelinev1.ErrorCode_ERROR_CODE_OFFSET_OUT_OF_RANGE || k.config.Reset == ResetError {
		return records, err
	}
	start := Earliest()
	if k.config.Reset == ResetToLatest {
		start = Latest()
	}
	at.start, at.epoch = &start, nil
	return nil, nil
}

func consumed(at topicPartition, record *pacelinev1.Record) ConsumedRecord {
	found := ConsumedRecord{Offset: record.GetOffset(), Record: Record{
		Topic: at.topic, Partition: at.partition, Key: record.Key, Value: record.Value,
		Timestamp: time.UnixMilli(record.GetTimestampMs()),
	}}
	for _, header := range record.GetHeaders() {
		found.Headers = append(found.Headers, Header{header.GetKey(), header.Value})
	}
	return found
}
