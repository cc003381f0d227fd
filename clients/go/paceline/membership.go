package paceline

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

const (
	joinGrace   = 30 * time.Second
	syncTimeout = 60 * time.Second
	rejoinPause = 100 * time.Millisecond
	// leaveTimeout bounds LeaveGroup when the context of Close has ended before.
	leaveTimeout = 2 * time.Second
	noGeneration = -1
)

// errGenerationEnded: a heartbeat has learned that the generation is over; the member joins again.
var errGenerationEnded = errors.New("paceline: the generation of the group has ended")

// membership is the place of a member in its group. The goroutine of join and that of the heartbeats share it.
type membership struct {
	client      *Client
	config      GroupConfig
	coordinator *coordinator
	// knowsTopics: the topics existed before the first join. Used by join alone.
	knowsTopics bool

	mu         sync.Mutex
	memberID   string
	generation int32
	// needsJoin: the next poll joins the group again.
	needsJoin bool
	// lost: other members may own the partitions; they are given up without a commit.
	lost bool
	// fatal ends the membership for good.
	fatal error
	// polling: the application is inside Poll; polled is when it was last.
	polling bool
	polled  time.Time
	// endGeneration stops the goroutines of the present generation: heartbeats and the watch for added partitions.
	endGeneration context.CancelFunc
	// news wakes Poll.
	news chan struct{}
}

// assignment has the partitions of a member after a rebalance.
type assignment struct {
	generation int32
	partitions []TopicPartition
	// begins has the positions of the partitions.
	begins map[TopicPartition]cursor
}

func newMembership(client *Client, config GroupConfig) *membership {
	return &membership{
		client: client, config: config, coordinator: &coordinator{client: client, groupID: config.GroupID},
		generation: noGeneration, needsJoin: true, polled: time.Now(), endGeneration: func() {}, news: make(chan struct{}, 1),
	}
}

// place returns the member id and the generation, noGeneration while there is none.
func (m *membership) place() (string, int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.memberID, m.generation
}

// isIn says whether the member is still in a generation. If so it clears lost, which belongs to an earlier generation.
func (m *membership) isIn(generation int32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.generation != generation {
		return false
	}
	m.lost = false
	return true
}

// touch notes that the application polls, or has stopped polling for now.
func (m *membership) touch(polling bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.polling, m.polled = polling, time.Now()
}

// tell wakes a Poll that waits.
func (m *membership) tell() {
	select {
	case m.news <- struct{}{}:
	default:
	}
}

// rejoin has the next poll join again, if the generation is still this one.
func (m *membership) rejoin(generation int32) {
	m.mu.Lock()
	if m.generation == generation {
		m.needsJoin = true
	}
	m.mu.Unlock()
	m.tell()
}

// lose notes that the membership in a generation was lost.
func (m *membership) lose(generation int32, cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.generation != generation {
		return
	}
	code := CodeOf(cause)
	if isFinal(code) {
		m.fatal = cause
	}
	if code != pacelinev1.ErrorCode_ERROR_CODE_ILLEGAL_GENERATION {
		m.memberID = ""
	}
	m.generation, m.lost, m.needsJoin = noGeneration, true, true
	m.endGeneration()
	m.tell()
}

// isFinal says whether a member with this refusal can never join.
func isFinal(code pacelinev1.ErrorCode) bool {
	switch code {
	case pacelinev1.ErrorCode_ERROR_CODE_FENCED_INSTANCE_ID, pacelinev1.ErrorCode_ERROR_CODE_GROUP_MAX_SIZE_REACHED,
		pacelinev1.ErrorCode_ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL, pacelinev1.ErrorCode_ERROR_CODE_INVALID_SESSION_TIMEOUT,
		pacelinev1.ErrorCode_ERROR_CODE_INVALID_GROUP_ID, pacelinev1.ErrorCode_ERROR_CODE_INVALID_REQUEST:
		return true
	}
	return false
}

// join takes part in rebalances until the member has an assignment and knows where to begin, or ctx ends. The member owns
// nothing meanwhile, so a rebalance that begins in between is joined at once.
func (m *membership) join(ctx context.Context) (*assignment, error) {
	if !m.knowsTopics {
		if err := m.client.findTopics(ctx, "joining group "+m.config.GroupID, m.config.Topics); err != nil {
			return nil, err
		}
		m.knowsTopics = true
	}
	began, said := time.Now(), false
	for {
		found, err := m.joinOnce(ctx)
		if err == nil {
			return found, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if errors.Is(err, errGenerationEnded) {
			// Joining again would fence the process that has taken over the instance id.
			if fatal := m.failure(); fatal != nil {
				return nil, fatal
			}
			continue
		}
		var failure *Error
		if !errors.As(err, &failure) {
			return nil, err
		}
		switch code := failure.Code; code {
		case pacelinev1.ErrorCode_ERROR_CODE_MEMBER_ID_REQUIRED:
			m.mu.Lock()
			m.memberID = failure.memberID
			m.mu.Unlock()
		case pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_MEMBER_ID, pacelinev1.ErrorCode_ERROR_CODE_ILLEGAL_GENERATION:
			_, generation := m.place()
			m.lose(generation, err)
			sleep(ctx, rejoinPause)
		case pacelinev1.ErrorCode_ERROR_CODE_REBALANCE_IN_PROGRESS:
		default:
			if isFinal(code) || !failure.Retriable {
				return nil, err
			}
			if !said && time.Since(began) > sayAfter {
				said = true
				m.config.Logger.Warn("still joining", slog.String("group", m.config.GroupID), slog.Any("cause", err))
			}
			if !sleep(ctx, max(rejoinPause, failure.retryAfter)) {
				return nil, ctx.Err()
			}
		}
	}
}

func (m *membership) joinOnce(ctx context.Context) (*assignment, error) {
	joined, generation, err := m.joinGroup(ctx)
	if err != nil {
		return nil, err
	}
	found, err := m.syncGroup(generation, joined)
	if err != nil && generation.Err() != nil && ctx.Err() == nil {
		return nil, errGenerationEnded
	}
	return found, err
}

// joinGroup sends one JoinGroup and returns the answer, with a context that ends with the generation. Heartbeats stop
// meanwhile and begin with the answer: from then on the session runs.
func (m *membership) joinGroup(ctx context.Context) (*pacelinev1.JoinGroupResponse, context.Context, error) {
	m.mu.Lock()
	m.endGeneration()
	memberID := m.memberID
	m.mu.Unlock()
	subscription := &pacelinev1.ConsumerSubscription{Topics: m.config.Topics}
	request := &pacelinev1.JoinGroupRequest{
		GroupId: m.config.GroupID, MemberId: memberID, GroupInstanceId: m.config.InstanceID, ClientId: m.config.ClientID,
		SessionTimeoutMs:   int32(m.config.SessionTimeout.Milliseconds()),
		RebalanceTimeoutMs: int32(m.config.MaxPollInterval.Milliseconds()),
	}
	for _, assignor := range m.config.Assignors {
		request.Protocols = append(request.Protocols, &pacelinev1.GroupProtocol{Name: assignor.Name(), Subscription: subscription})
	}
	call, cancel := context.WithTimeout(ctx, m.config.MaxPollInterval+joinGrace)
	defer cancel()
	var joined *pacelinev1.JoinGroupResponse
	err := m.coordinator.once(call, "joining group "+m.config.GroupID, func(ctx context.Context, group pacelinev1.GroupServiceClient) error {
		var err error
		joined, err = group.JoinGroup(ctx, request)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	generation, end := context.WithCancel(ctx)
	m.mu.Lock()
	m.memberID, m.generation, m.needsJoin, m.endGeneration = joined.GetMemberId(), joined.GetGenerationId(), false, end
	m.mu.Unlock()
	go m.beat(generation, joined.GetMemberId(), joined.GetGenerationId())
	return joined, generation, nil
}

// syncGroup gets the assignment of this member and its first offsets; the leader of the group also sends the assignments of
// all members.
func (m *membership) syncGroup(ctx context.Context, joined *pacelinev1.JoinGroupResponse) (*assignment, error) {
	var shares []*pacelinev1.MemberAssignment
	if joined.GetLeader() == joined.GetMemberId() && !joined.GetSkipAssignment() {
		var err error
		if shares, err = m.share(ctx, joined); err != nil {
			return nil, err
		}
	}
	var synced *pacelinev1.SyncGroupResponse
	call, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	err := m.coordinator.once(call, "syncing group "+m.config.GroupID, func(ctx context.Context, group pacelinev1.GroupServiceClient) error {
		var err error
		synced, err = group.SyncGroup(ctx, &pacelinev1.SyncGroupRequest{
			GroupId: m.config.GroupID, GenerationId: joined.GetGenerationId(), MemberId: joined.GetMemberId(),
			GroupInstanceId: m.config.InstanceID, ProtocolType: joined.GetProtocolType(), ProtocolName: joined.GetProtocolName(),
			Assignments: shares,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	found := &assignment{generation: joined.GetGenerationId(), partitions: fromWire(synced.GetAssignment().GetPartitions())}
	// Joining again would disturb the whole group, so begins repeats its calls as long as the generation lasts.
	found.begins, err = m.begins(ctx, found.partitions)
	return found, err
}

// share assigns the partitions to all members, as the leader of the group.
func (m *membership) share(ctx context.Context, joined *pacelinev1.JoinGroupResponse) ([]*pacelinev1.MemberAssignment, error) {
	var members []GroupMember
	var topics []string
	for _, one := range joined.GetMembers() {
		members = append(members, GroupMember{one.GetMemberId(), one.GetGroupInstanceId(), one.GetSubscription().GetTopics()})
		topics = append(topics, one.GetSubscription().GetTopics()...)
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)
	known := slices.IndexFunc(m.config.Assignors, func(one Assignor) bool { return one.Name() == joined.GetProtocolName() })
	if known < 0 {
		return nil, newError("joining group "+m.config.GroupID, pacelinev1.ErrorCode_ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL,
			"the group has chosen the assignor "+joined.GetProtocolName()+", which is not among the Assignors of this member")
	}
	var found map[string]*topicState
	operation := "describing the topics of group " + m.config.GroupID
	err := m.client.retry(ctx, operation, func(ctx context.Context) error {
		var err error
		found, _, err = m.client.describeTopics(ctx, operation, topics, describers)
		return err
	})
	if err != nil {
		return nil, err
	}
	go m.watch(ctx, joined.GetGenerationId(), topics, found)
	counts := map[string]int{}
	for name, topic := range found {
		counts[name] = topic.count
	}
	assigned := m.config.Assignors[known].Assign(members, counts)
	var shares []*pacelinev1.MemberAssignment
	for _, member := range members {
		shares = append(shares, &pacelinev1.MemberAssignment{
			MemberId:   member.MemberID,
			Assignment: &pacelinev1.ConsumerAssignment{Partitions: toWire(assigned[member.MemberID])},
		})
	}
	return shares, nil
}

// begins returns the first cursors of partitions: at the committed offset, or without one at the start of the reset policy.
func (m *membership) begins(ctx context.Context, partitions []TopicPartition) (map[TopicPartition]cursor, error) {
	begins := map[TopicPartition]cursor{}
	if len(partitions) == 0 {
		return begins, nil
	}
	committed, err := m.coordinator.committed(ctx, partitions)
	if err != nil {
		return nil, err
	}
	for _, partition := range partitions {
		if kept, ok := committed[partition]; ok {
			begins[partition] = cursor{TopicPartition: partition, next: kept.Offset, epoch: kept.LeaderEpoch}
			continue
		}
		// The consumer asks the leader: a partition without one, as of a deleted topic, must not keep the others waiting.
		start := m.config.Reset.start()
		begins[partition] = cursor{TopicPartition: partition, start: &start, hasNoStart: m.config.Reset == ResetError}
	}
	return begins, nil
}

// leave ends the membership: a dynamic member tells the coordinator, a static one keeps its place until its session
// time-out.
func (m *membership) leave(ctx context.Context) error {
	m.mu.Lock()
	memberID := m.memberID
	m.memberID, m.generation, m.needsJoin = "", noGeneration, true
	m.endGeneration()
	m.mu.Unlock()
	if ctx.Err() != nil {
		// A program that ends has often cancelled the context by now. The group should not wait for the session time-out.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
	}
	// A coordinator that does not answer must not keep the application: the session time-out ends the membership, too.
	bounded, cancel := context.WithTimeout(ctx, min(m.client.requestTimeout, m.config.SessionTimeout/2))
	defer cancel()
	return m.leaveAs(bounded, memberID)
}

func (m *membership) leaveAs(ctx context.Context, memberID string) error {
	if memberID == "" || m.config.InstanceID != "" {
		return nil
	}
	return m.coordinator.once(ctx, "leaving group "+m.config.GroupID, func(ctx context.Context, group pacelinev1.GroupServiceClient) error {
		_, err := group.LeaveGroup(ctx, &pacelinev1.LeaveGroupRequest{
			GroupId: m.config.GroupID, Members: []*pacelinev1.LeavingMember{{MemberId: memberID}}})
		return err
	})
}
