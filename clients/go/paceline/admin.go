package paceline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// Topic describes a topic to create.
type Topic struct {
	Name string
	// Partitions and ReplicationFactor: 0 means the default of the cluster.
	Partitions, ReplicationFactor int
	// Configs such as "min.insync.replicas": "2".
	Configs map[string]string
}

// CreateTopic creates a topic, waits until every partition has a leader, and returns the topic id.
func (c *Client) CreateTopic(ctx context.Context, topic Topic) (string, error) {
	operation := "creating topic " + topic.Name
	request := &pacelinev1.NewTopic{Name: topic.Name, Configs: topic.Configs}
	if topic.Partitions > 0 {
		count := int32(topic.Partitions)
		request.Partitions = &count
	}
	if topic.ReplicationFactor > 0 {
		factor := int32(topic.ReplicationFactor)
		request.ReplicationFactor = &factor
	}
	id := ""
	err := c.onController(ctx, operation, func(ctx context.Context, admin pacelinev1.AdminServiceClient) error {
		answer, err := admin.CreateTopics(ctx, &pacelinev1.CreateTopicsRequest{
			Topics: []*pacelinev1.NewTopic{request}, TimeoutMs: serverWait(ctx),
		})
		if err != nil {
			return callError(ctx, operation, err)
		}
		result, err := only(operation, answer.GetTopics())
		if err != nil {
			return err
		}
		id = result.GetTopicId()
		return topicError(operation, result.GetError())
	})
	return id, err
}

// DeleteTopic deletes a topic and waits until its deletion is complete.
func (c *Client) DeleteTopic(ctx context.Context, name string) error {
	operation := "deleting topic " + name
	return c.onController(ctx, operation, func(ctx context.Context, admin pacelinev1.AdminServiceClient) error {
		answer, err := admin.DeleteTopics(ctx, &pacelinev1.DeleteTopicsRequest{Topics: []string{name}, TimeoutMs: serverWait(ctx)})
		if err != nil {
			return callError(ctx, operation, err)
		}
		result, err := only(operation, answer.GetTopics())
		if err != nil {
			return err
		}
		return topicError(operation, result.GetError())
	})
}

// DescribeTopic returns partitions, leaders, replicas and in-sync replicas of a topic. UNKNOWN_TOPIC_OR_PARTITION says that
// brokers have not known it for 5 s.
func (c *Client) DescribeTopic(ctx context.Context, name string) (*pacelinev1.TopicDescription, error) {
	var found *pacelinev1.TopicDescription
	operation := "describing topic " + name
	err := c.retry(ctx, operation, func(ctx context.Context) error {
		_, from, err := c.describeFrom(ctx)
		if err != nil {
			return err
		}
		described, err := topicsAt(ctx, from, operation, []string{name})
		if err != nil {
			return err
		}
		if found, err = only(operation, described); err != nil {
			return err
		}
		return topicError(operation, found.GetError())
	})
	return found, err
}

// Offset selects an offset of a partition, for ListOffset and AssignFrom.
type Offset struct {
	spec        pacelinev1.OffsetSpec
	timestampMs int64
}

// Earliest selects the first offset that is still in the log.
func Earliest() Offset { return Offset{spec: pacelinev1.OffsetSpec_OFFSET_SPEC_EARLIEST} }

// Latest selects the offset after the last committed record.
func Latest() Offset { return Offset{spec: pacelinev1.OffsetSpec_OFFSET_SPEC_LATEST} }

// AtTime selects the offset of the first record whose timestamp is not before moment.
func AtTime(moment time.Time) Offset {
	return Offset{spec: pacelinev1.OffsetSpec_OFFSET_SPEC_TIMESTAMP, timestampMs: moment.UnixMilli()}
}

// ListOffset looks up an offset of a partition; ok is false when all records are older than the time of AtTime.
// UNKNOWN_TOPIC_OR_PARTITION says that brokers have not known the partition for 5 s.
func (c *Client) ListOffset(ctx context.Context, topic string, partition int32, at Offset) (offset int64, ok bool, err error) {
	err = c.retry(ctx, fmt.Sprintf("listing an offset of %s/%d", topic, partition), func(ctx context.Context) error {
		var err error
		offset, ok, _, err = c.listOffsetOnce(ctx, topic, partition, at)
		return err
	})
	return offset, ok, err
}

// listOffsetOnce makes a single attempt of ListOffset. It also returns the topic id from the metadata of the partition.
func (c *Client) listOffsetOnce(
	ctx context.Context, topic string, partition int32, at Offset,
) (offset int64, ok bool, topicID string, err error) {
	operation := fmt.Sprintf("listing an offset of %s/%d", topic, partition)
	err = c.onLeader(ctx, topic, partition, func(
		ctx context.Context, log pacelinev1.LogServiceClient, leader leaderState, id string,
	) error {
		topicID = id
		answer, err := log.ListOffsets(ctx, &pacelinev1.ListOffsetsRequest{Partitions: []*pacelinev1.ListOffsetsPartition{{
			Topic: topic, Partition: partition, Spec: at.spec, TimestampMs: at.timestampMs, CurrentLeaderEpoch: &leader.epoch,
		}}})
		if err != nil {
			return callError(ctx, operation, err)
		}
		result, err := only(operation, answer.GetPartitions())
		if err != nil {
			return err
		}
		offset, ok = result.GetOffset(), result.Offset != nil
		err = partitionError(operation, result.GetError())
		var failure *Error
		if errors.As(err, &failure) && failure.Code == pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_LEADER_EPOCH {
			// The request has no topic id, so the cached leader epoch may belong to a deleted topic of the same name.
			failure.refresh = true
		}
		return err
	})
	return offset, ok, topicID, err
}

// onController runs an administrative call at the active controller, following the address in NOT_CONTROLLER. A call whose
// outcome is unknown is not retried, because the change may have been made.
func (c *Client) onController(
	ctx context.Context, operation string, call func(context.Context, pacelinev1.AdminServiceClient) error,
) error {
	address := ""
	return c.retry(ctx, operation, func(ctx context.Context) error {
		if address == "" {
			var err error
			if address, err = c.controllerAddress(ctx, operation); err != nil {
				return notSent(err)
			}
		}
		connection, err := c.dial(address)
		if err != nil {
			return err
		}
		err = call(ctx, pacelinev1.NewAdminServiceClient(connection))
		var failure *Error
		if errors.As(err, &failure) {
			if failure.refresh {
				address = failure.controller
			}
			failure.Retriable = failure.Retriable && failure.Definite
		}
		return err
	})
}

// only returns the single entry of a response, or an error if the response has no entry or several entries.
func only[T any](operation string, entries []T) (T, error) {
	if len(entries) == 1 {
		return entries[0], nil
	}
	var none T
	return none, newError(operation, pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_SERVER_ERROR,
		fmt.Sprintf("the response has %d entries, expected 1", len(entries)))
}

// serverWait returns 80% of the time to the deadline, in milliseconds, so that the server responds before the deadline. It
// returns 0 without a deadline.
func serverWait(ctx context.Context) int32 {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return milliseconds(max(time.Until(deadline)/10*8, time.Millisecond))
}

// milliseconds converts a duration to a request field; a duration that exceeds an int32 becomes the largest int32.
func milliseconds(long time.Duration) int32 { return int32(min(long.Milliseconds(), math.MaxInt32)) }
