package paceline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// CommittedOffset is the committed position of a group in a partition.
type CommittedOffset struct {
	// Offset is the next one to read.
	Offset int64
	// LeaderEpoch of the last record that was read; nil when not known.
	LeaderEpoch *int32
	// Metadata is a note of the application, stored with the offset.
	Metadata string
}

// CommitFailedError reports that offsets were not committed because the group has rebalanced without this member: other
// members may own its partitions. The next poll joins the group again.
type CommitFailedError struct {
	GroupID string
	// Cause is the error of the coordinator; nil when the member was in no generation, so that nothing was sent.
	Cause error
}

// Error names the group and the cause.
func (e *CommitFailedError) Error() string {
	text := fmt.Sprintf("group %s: the offsets were not committed: the group has rebalanced without this member", e.GroupID)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap returns Cause.
func (e *CommitFailedError) Unwrap() error { return e.Cause }

// commit sends offsets to the coordinator as a member of the present generation.
func (m *membership) commit(ctx context.Context, offsets map[TopicPartition]CommittedOffset) error {
	if len(offsets) == 0 {
		return nil
	}
	request := &pacelinev1.CommitOffsetsRequest{GroupId: m.config.GroupID, GroupInstanceId: m.config.InstanceID}
	for partition, offset := range offsets {
		request.Offsets = append(request.Offsets, &pacelinev1.OffsetToCommit{
			Topic: partition.Topic, Partition: partition.Partition, Offset: offset.Offset,
			LeaderEpoch: offset.LeaderEpoch, Metadata: offset.Metadata,
		})
	}
	memberID, generation := m.place()
	if generation == noGeneration {
		// An empty group accepts the offsets of a caller that is not a member.
		return &CommitFailedError{GroupID: m.config.GroupID, Cause: m.failure()}
	}
	request.MemberId, request.GenerationId = memberID, &generation
	unknown := false
	operation := "committing offsets of group " + m.config.GroupID
	err := m.client.retry(ctx, operation, func(ctx context.Context) error {
		var answer *pacelinev1.CommitOffsetsResponse
		err := m.coordinator.once(ctx, operation, func(ctx context.Context, group pacelinev1.GroupServiceClient) error {
			var err error
			answer, err = group.CommitOffsets(ctx, request)
			return err
		})
		for _, one := range answer.GetPartitions() {
			if err == nil {
				err = partitionError(fmt.Sprintf("%s in %s/%d", operation, one.GetTopic(), one.GetPartition()), one.GetError())
			}
		}
		var failure *Error
		if errors.As(err, &failure) {
			// An earlier attempt without an answer may have committed the offsets.
			unknown = unknown || !failure.Definite
			failure.Definite = !unknown
		}
		return err
	})
	switch CodeOf(err) {
	case pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_MEMBER_ID, pacelinev1.ErrorCode_ERROR_CODE_ILLEGAL_GENERATION:
		return &CommitFailedError{GroupID: m.config.GroupID, Cause: err}
	}
	return err
}

// failure returns the error that ended the membership for good, or nil.
func (m *membership) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fatal
}

// committed returns the committed offsets of the group for those partitions that have one.
func (c *coordinator) committed(ctx context.Context, partitions []TopicPartition) (map[TopicPartition]CommittedOffset, error) {
	found := map[TopicPartition]CommittedOffset{}
	if len(partitions) == 0 {
		return found, nil
	}
	var answer *pacelinev1.FetchOffsetsResponse
	err := c.retry(ctx, "fetching offsets of group "+c.groupID, func(ctx context.Context, group pacelinev1.GroupServiceClient) error {
		var err error
		answer, err = group.FetchOffsets(ctx, &pacelinev1.FetchOffsetsRequest{GroupId: c.groupID, Partitions: toWire(partitions)})
		return err
	})
	for _, one := range answer.GetPartitions() {
		if one.Offset != nil {
			found[TopicPartition{one.GetTopic(), one.GetPartition()}] = CommittedOffset{one.GetOffset(), one.LeaderEpoch, one.GetMetadata()}
		}
	}
	return found, err
}

func toWire(partitions []TopicPartition) []*pacelinev1.TopicPartitions {
	byTopic := map[string]*pacelinev1.TopicPartitions{}
	var all []*pacelinev1.TopicPartitions
	for _, one := range partitions {
		if byTopic[one.Topic] == nil {
			byTopic[one.Topic] = &pacelinev1.TopicPartitions{Topic: one.Topic}
			all = append(all, byTopic[one.Topic])
		}
		byTopic[one.Topic].Partitions = append(byTopic[one.Topic].Partitions, one.Partition)
	}
	return all
}

func fromWire(topics []*pacelinev1.TopicPartitions) []TopicPartition {
	var all []TopicPartition
	for _, topic := range topics {
		for _, partition := range topic.GetPartitions() {
			all = append(all, TopicPartition{topic.GetTopic(), partition})
		}
	}
	sortPartitions(all)
	return all
}

func sortPartitions(partitions []TopicPartition) {
	slices.SortFunc(partitions, func(a, b TopicPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
}
