package paceline

import (
	"cmp"
	"context"
	"errors"
	"math"
	"sync"
	"time"
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

// ConsumedRecord is a record with its position. The Partition of the embedded Record is nil, so that sending the Record on
// to another topic lets the producer choose.
type ConsumedRecord struct {
	Record
	Partition int32
	Offset    int64
}

// Consumer reads assigned partitions from positions of its own. Use it from one goroutine.
type Consumer struct {
	client    *Client
	config    ConsumerConfig
	positions map[TopicPartition]*position
	// Records that were read and not returned yet, in the order of each partition.
	buffered []ConsumedRecord
	// failures has the failures that PollUpTo has not returned yet.
	failures []failedRead
	// inGroup: a group assigns the partitions, so they exist.
	inGroup bool

	// A fetch outlives the poll that began it: its outcome waits in arrived for the next poll, and wake has a value.
	mu      sync.Mutex
	arrived []fetched
	wake    chan struct{}
}

// NewConsumer returns a consumer without partitions.
func (c *Client) NewConsumer(config ConsumerConfig) *Consumer {
	config.MaxWait = min(cmp.Or(config.MaxWait, 500*time.Millisecond), longestTime)
	config.MaxBytes = min(config.MaxBytes, math.MaxInt32)
	return &Consumer{client: c, config: config, positions: map[TopicPartition]*position{}, wake: make(chan struct{}, 1)}
}

// AssignFrom reads a partition from Earliest, Latest or AtTime.
func (k *Consumer) AssignFrom(topic string, partition int32, start Offset) {
	k.assign(cursor{TopicPartition: TopicPartition{topic, partition}, start: &start})
}

// Assign reads a partition from an offset.
func (k *Consumer) Assign(topic string, partition int32, offset int64) {
	k.assign(cursor{TopicPartition: TopicPartition{topic, partition}, next: offset})
}

func (k *Consumer) assign(at cursor) {
	k.drop(at.TopicPartition)
	k.positions[at.TopicPartition] = &position{
		cursor: at, returned: at.next, returnedEpoch: at.epoch, pause: firstPause, isFound: k.inGroup}
}

// drop ends the reading of a partition; records that were not returned are forgotten.
func (k *Consumer) drop(partition TopicPartition) {
	if k.positions[partition] == nil {
		return
	}
	delete(k.positions, partition)
	kept := k.buffered[:0:0]
	for _, record := range k.buffered {
		if (TopicPartition{record.Topic, record.Partition}) != partition {
			kept = append(kept, record)
		}
	}
	k.buffered = kept
}

// Position returns the offset of the next record of a partition; ok is false while it is not known.
func (k *Consumer) Position(topic string, partition int32) (offset int64, ok bool) {
	found := k.positions[TopicPartition{topic, partition}]
	if found == nil || found.cursor.start != nil {
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
// Errors: *TruncatedError when records that were read are gone; OFFSET_OUT_OF_RANGE with ResetError;
// UNKNOWN_TOPIC_OR_PARTITION when brokers have not known an assigned partition for 5 s; REQUEST_TIMED_OUT, with the last
// failure, when a partition could not be read for a minute; any failure that no retry can mend. The next poll tries again.
func (k *Consumer) PollUpTo(ctx context.Context, limit int) ([]ConsumedRecord, error) {
	if len(k.positions) == 0 {
		return nil, errors.New("paceline: the consumer has no partitions")
	}
	records, _, err := k.poll(ctx, limit, nil)
	return records, err
}

// poll is PollUpTo that also ends, with interrupted, when other has a value.
func (k *Consumer) poll(ctx context.Context, limit int, other <-chan struct{}) (_ []ConsumedRecord, interrupted bool, _ error) {
	for {
		k.collect()
		// Failures come before records: partitions that always have records would hide the failures of others.
		if err := k.nextFailure(); err != nil {
			return nil, false, err
		}
		if len(k.buffered) > 0 {
			return k.give(limit), false, nil
		}
		timer := time.NewTimer(k.fetchAll())
		select {
		case <-k.wake:
		case <-timer.C:
		case <-other:
			interrupted = true
		case <-ctx.Done():
		}
		timer.Stop()
		switch {
		case interrupted:
			return nil, true, nil
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return nil, false, nil
		case ctx.Err() != nil:
			return nil, false, ctx.Err()
		}
	}
}

// nextFailure returns the next failure of a partition that is still read, nil without one.
func (k *Consumer) nextFailure() error {
	for len(k.failures) > 0 {
		next := k.failures[0]
		k.failures = k.failures[1:]
		if k.positions[next.of.cursor.TopicPartition] == next.of {
			return next.err
		}
	}
	return nil
}

// give hands out records of the buffer and moves the positions that a caller sees.
func (k *Consumer) give(limit int) []ConsumedRecord {
	count := min(max(limit, 1), len(k.buffered))
	given := k.buffered[:count:count]
	k.buffered = k.buffered[count:]
	for _, record := range given {
		if at := k.positions[TopicPartition{record.Topic, record.Partition}]; at != nil {
			at.returned, at.returnedEpoch = record.Offset+1, at.cursor.epoch
		}
	}
	return given
}

// fetchAll begins a fetch of every partition without one, and returns how long to wait for the next that has to pause.
func (k *Consumer) fetchAll() time.Duration {
	wait, now := time.Minute, time.Now()
	for _, at := range k.positions {
		switch {
		case at.fetching:
		case now.Before(at.notBefore):
			wait = min(wait, at.notBefore.Sub(now))
		default:
			at.fetching = true
			go k.fetchInBackground(at, at.cursor)
		}
	}
	return wait
}

func (k *Consumer) fetchInBackground(of *position, at cursor) {
	ctx, cancel := context.WithTimeout(context.Background(), k.config.MaxWait+k.client.requestTimeout)
	defer cancel()
	after, records, err := k.fetch(ctx, at)
	k.mu.Lock()
	k.arrived = append(k.arrived, fetched{of, after, records, err})
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// collect takes in the outcomes of fetches, and keeps the failures that a poll has to return.
func (k *Consumer) collect() {
	k.mu.Lock()
	arrived := k.arrived
	k.arrived = nil
	k.mu.Unlock()
	for _, one := range arrived {
		at := k.positions[one.after.TopicPartition]
		if at != one.of {
			continue // The partition was given up, or assigned again, meanwhile.
		}
		at.fetching = false
		wasLookedUp := at.cursor.start != nil && one.after.start == nil
		at.cursor = one.after
		if wasLookedUp {
			at.isFound = true
			at.showCursor()
			if len(one.records) > 0 {
				at.returned, at.returnedEpoch = one.records[0].Offset, nil
			}
		}
		var truncated *TruncatedError
		var failure *Error
		switch {
		case errors.As(one.err, &truncated):
			at.returned, at.returnedEpoch = at.cursor.next, at.cursor.epoch
			k.failures = append(k.failures, failedRead{at, truncated})
		case errors.As(one.err, &failure) && failure.Retriable:
			now := time.Now()
			at.notBefore = now.Add(max(at.pause, failure.retryAfter))
			at.pause = min(at.pause*3/2, longestPause)
			at.showCursor()
			if err := at.hinder(at.cursor.TopicPartition, now, failure); err != nil {
				k.failures = append(k.failures, failedRead{at, err})
			}
		case one.err != nil:
			k.failures = append(k.failures, failedRead{at, one.err})
		default:
			at.pause, at.isFound, at.hindrance = firstPause, true, hindrance{}
			if len(one.records) == 0 {
				at.showCursor()
			}
		}
		k.buffered = append(k.buffered, one.records...)
	}
}
