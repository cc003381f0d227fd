package paceline

import (
	"context"
	"fmt"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// missingLimit is the time of answers that a topic or partition does not exist after which it is an error. A new topic takes
// a moment to reach all brokers. Tests shorten it.
var missingLimit = 5 * time.Second

const (
	// hindranceLimit: a poll fails when a partition could not be read for this time.
	hindranceLimit = time.Minute
	// leastAttempts must fail before a poll fails, because an application that polls rarely makes few attempts.
	leastAttempts = 3
)

// TopicPartition names a partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// String returns topic/partition.
func (p TopicPartition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Partition) }

// position is the position of a consumer in a partition. Fetches work on copies of cursor, so only the polling goroutine
// changes a position.
type position struct {
	cursor cursor
	// returned is the offset after the last record that Poll returned, and returnedEpoch the epoch of that record.
	returned      int64
	returnedEpoch *int32
	// fetching is true while a fetch is in flight.
	fetching bool
	// notBefore is the earliest time of the next fetch after a retriable failure; pause grows with each failure.
	notBefore time.Time
	pause     time.Duration
	// isFound is true once a leader or the group has confirmed that the partition exists.
	isFound bool
	hindrance
}

// hindrance describes the failed attempts to read a partition since the last success.
type hindrance struct {
	cause    *Error
	attempts int
	// since is the time of the first failure.
	since time.Time
	absence
}

// absence is the time for which brokers have answered that a topic or partition does not exist.
type absence struct{ missingSince time.Time }

// lasts records a failure and returns whether the absence has lasted for missingLimit. A call without an answer does not end
// the absence; an answer of a broker that knows the partition does.
func (a *absence) lasts(failure *Error, now time.Time) bool {
	switch {
	case failure.isMissing:
		if a.missingSince.IsZero() {
			a.missingSince = now
		}
		return now.Sub(a.missingSince) >= missingLimit
	case failure.Code != pacelinev1.ErrorCode_ERROR_CODE_REQUEST_TIMED_OUT &&
		failure.Code != pacelinev1.ErrorCode_ERROR_CODE_BROKER_NOT_AVAILABLE:
		a.missingSince = time.Time{}
	}
	return false
}

// hinder records a retriable failure. When the partition could not be read for too long, it returns the error for the poll
// and resets the hindrance.
func (p *position) hinder(at TopicPartition, now time.Time, failure *Error) error {
	h := &p.hindrance
	if h.attempts++; h.attempts == 1 {
		h.since = now
	}
	if h.cause == nil || failure.Code != pacelinev1.ErrorCode_ERROR_CODE_REQUEST_TIMED_OUT {
		h.cause = failure
	}
	isMissing := h.lasts(failure, now)
	switch {
	case h.attempts < leastAttempts:
	case isMissing && !p.isFound:
		p.hindrance = hindrance{}
		return failure
	case now.Sub(h.since) >= hindranceLimit:
		timedOut := newError("reading "+at.String(), pacelinev1.ErrorCode_ERROR_CODE_REQUEST_TIMED_OUT,
			fmt.Sprintf("the partition could not be read for %v: %v", hindranceLimit, h.cause))
		timedOut.cause = h.cause
		p.hindrance = hindrance{}
		return timedOut
	}
	return nil
}

// showCursor copies offset and epoch of the next fetch to the position that the application sees; call it while no record
// is buffered. The epoch must be copied with the offset: a reset offset with the former epoch would look like a truncation.
func (p *position) showCursor() {
	if p.cursor.start == nil {
		p.returned, p.returnedEpoch = p.cursor.next, p.cursor.epoch
	}
}

// cursor is the place of the next fetch.
type cursor struct {
	TopicPartition
	next int64
	// start is looked up before the first fetch; nil once the position is known.
	start *Offset
	// hasNoStart: the group has committed no offset and the policy is ResetError, so the next fetch fails. start is set, and
	// is not looked up.
	hasNoStart bool
	// lookedUp is the start whose look-up returned next; nil after the first fetch.
	lookedUp *Offset
	// epoch is the leader epoch under which records were last read; nil before the first record.
	epoch *int32
	// topicID is the id of the topic to which the position belongs; empty until a leader has confirmed it.
	topicID string
}

// fetched is the outcome of one fetch.
type fetched struct {
	of      *position
	after   cursor
	records []ConsumedRecord
	err     error
}

// failedRead is a failure that a poll must return.
type failedRead struct {
	of  *position
	err error
}

// fetch reads from the leader of a partition once, and returns where the next fetch begins.
func (k *Consumer) fetch(ctx context.Context, at cursor) (cursor, []ConsumedRecord, error) {
	if at.hasNoStart {
		return at, nil, newError("finding the first offset to read of "+at.TopicPartition.String(), pacelinev1.ErrorCode_ERROR_CODE_OFFSET_OUT_OF_RANGE,
			"the group has committed no offset and the reset policy is ResetError: call Seek")
	}
	if at.start != nil {
		// If all records are older than the timestamp, reading begins at the end. Look up the end first, so that records
		// written between the two calls are not skipped.
		var end int64
		var endID string
		if at.start.spec == pacelinev1.OffsetSpec_OFFSET_SPEC_TIMESTAMP {
			var err error
			if end, _, endID, err = k.client.listOffsetOnce(ctx, at.Topic, at.Partition, Latest()); err != nil {
				return at, nil, err
			}
		}
		offset, ok, topicID, err := k.client.listOffsetOnce(ctx, at.Topic, at.Partition, *at.start)
		if err != nil {
			return at, nil, err
		}
		if !ok {
			offset, topicID = end, endID
		}
		at.next, at.start, at.lookedUp, at.topicID = offset, nil, at.start, topicID
	}
	operation := fmt.Sprintf("reading %s from offset %d", at.TopicPartition, at.next)
	// Refresh old metadata: a deposed leader that does not know its successor may still accept fetches.
	k.client.refreshWhenOld(ctx, at.Topic)
	var records []ConsumedRecord
	err := k.client.onLeader(ctx, at.Topic, at.Partition, func(
		ctx context.Context, _ pacelinev1.LogServiceClient, leader leaderState, topicID string,
	) error {
		connection, err := k.client.dialForFetches(leader.address)
		if err != nil {
			return err
		}
		call, cancel := context.WithTimeout(ctx, k.config.MaxWait+k.client.requestTimeout)
		defer cancel()
		answer, err := pacelinev1.NewLogServiceClient(connection).Fetch(call, &pacelinev1.FetchRequest{
			MaxWaitMs: milliseconds(k.config.MaxWait), MinBytes: 1, MaxBytes: int32(k.config.MaxBytes),
			Format: pacelinev1.FetchFormat_FETCH_FORMAT_RECORDS,
			Partitions: []*pacelinev1.FetchPartition{{
				Topic: at.Topic, Partition: at.Partition, TopicId: topicID, FetchOffset: at.next,
				CurrentLeaderEpoch: &leader.epoch, LastFetchedEpoch: at.epoch, MaxBytes: int32(k.config.MaxBytes),
			}},
		})
		if err != nil {
			return callError(ctx, operation, err)
		}
		result, err := only(operation, answer.GetPartitions())
		if err != nil {
			return err
		}
		if result.GetError() == nil && topicID != "" {
			if at.topicID != "" && at.topicID != topicID {
				if at.lookedUp != nil {
					// The topic was re-created since the look-up.
					at.start, at.lookedUp = at.lookedUp, nil
					return nil
				}
				return newError(operation, pacelinev1.ErrorCode_ERROR_CODE_OFFSET_OUT_OF_RANGE,
					"the topic was deleted and created again: the position belongs to the deleted topic")
			}
			at.topicID = topicID
		}
		if result.GetError() == nil {
			at.lookedUp = nil
		}
		records, err = at.accept(operation, result, leader.epoch)
		return err
	})
	if CodeOf(err) == pacelinev1.ErrorCode_ERROR_CODE_OFFSET_OUT_OF_RANGE && k.config.Reset != ResetError {
		start := k.config.Reset.start()
		at.start, at.epoch = &start, nil
		return at, nil, nil
	}
	return at, records, err
}

// accept moves the cursor beyond the records of a fetch response, or back to the divergent offset of a truncation.
func (at *cursor) accept(
	operation string, result *pacelinev1.FetchPartitionResult, leaderEpoch int32,
) ([]ConsumedRecord, error) {
	if err := partitionError(operation, result.GetError()); err != nil {
		return nil, err
	}
	if diverging := result.GetDivergingEpoch(); diverging != nil {
		epoch := diverging.GetEpoch()
		if diverging.GetEndOffset() >= at.next {
			// No record that was read was truncated; the next fetch sends the epoch that the leader knows.
			at.epoch = &epoch
			return nil, nil
		}
		truncated := &TruncatedError{at.Topic, at.Partition, at.next, diverging.GetEndOffset()}
		at.next, at.epoch = truncated.DivergentOffset, &epoch
		return nil, truncated
	}
	var records []ConsumedRecord
	for _, record := range result.GetRecords().GetRecords() {
		if record.GetOffset() < at.next {
			continue
		}
		records = append(records, consumed(at.TopicPartition, record))
		at.next = record.GetOffset() + 1
	}
	if len(records) > 0 {
		at.epoch = &leaderEpoch
	}
	return records, nil
}

func consumed(at TopicPartition, record *pacelinev1.Record) ConsumedRecord {
	found := ConsumedRecord{Partition: at.Partition, Offset: record.GetOffset(), Record: Record{
		Topic: at.Topic, Key: record.Key, Value: record.Value,
		Timestamp: time.UnixMilli(record.GetTimestampMs()),
	}}
	for _, header := range record.GetHeaders() {
		found.Headers = append(found.Headers, Header{header.GetKey(), header.Value})
	}
	return found
}

// start returns the offset at which reading begins without a position. ResetError has none: its callers do not use the result.
func (p ResetPolicy) start() Offset {
	if p == ResetToLatest {
		return Latest()
	}
	return Earliest()
}
