package paceline

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

const autoCommitTimeout = 5 * time.Second

// GroupConfig describes a member of a consumer group; zero values are defaults.
type GroupConfig struct {
	// GroupID is the name of the group, and Topics are the topics to read. Both are required.
	GroupID string
	Topics  []string
	// InstanceID makes this a static member: it keeps its partitions when its process restarts within SessionTimeout.
	InstanceID string
	// ClientID is the prefix of the member id; empty means "paceline-go".
	ClientID string
	// Assignors are in order of preference; empty means RangeAssignor. The members of a group must have one in common.
	Assignors []Assignor
	// Reset is the start of a partition without a committed offset, and of one whose position is out of range.
	Reset ResetPolicy
	// SessionTimeout: the coordinator removes a member that sends no heartbeat for this time; 0 means 45 s.
	SessionTimeout time.Duration
	// HeartbeatInterval is the pause between heartbeats; 0 means 3 s.
	HeartbeatInterval time.Duration
	// MaxPollInterval: the member leaves the group when Poll has not been called for this long; 0 means 5 min.
	MaxPollInterval time.Duration
	// ManualCommit leaves all commits to the caller. Otherwise Poll and Close commit what Poll has returned.
	ManualCommit bool
	// AutoCommitInterval is the pause between automatic commits; 0 means 5 s.
	AutoCommitInterval time.Duration
	// MaxWait and MaxBytes have the meaning of the fields in ConsumerConfig.
	MaxWait  time.Duration
	MaxBytes int
	// OnAssigned, OnRevoked and OnLost run inside Poll and Close, on the goroutine of the caller. OnRevoked runs before the
	// partitions are given up, so it can still commit their offsets. OnLost runs when other members may own the partitions
	// already; if it is nil, OnRevoked is called instead.
	OnAssigned, OnRevoked, OnLost func(ctx context.Context, partitions []TopicPartition)
	// Logger receives background events, such as failed automatic commits and a lost membership; nil means slog.Default().
	Logger *slog.Logger
}

// GroupConsumer reads the partitions that its group assigns to it. Use it from one goroutine; heartbeats have their own.
type GroupConsumer struct {
	config  GroupConfig
	reader  *Consumer
	member  *membership
	life    context.Context
	endLife context.CancelFunc
	// joining is nil while no join is under way.
	joining    chan joinOutcome
	owned      []TopicPartition
	nextCommit time.Time
	// committing holds a value while a commit is in flight, so that commits are sent one at a time: concurrent calls may
	// overtake each other.
	committing chan struct{}
	closed     bool
}

type joinOutcome struct {
	assignment *assignment
	err        error
}

// NewGroupConsumer returns a consumer that joins the group with its first Poll. The caller must Close it.
func (c *Client) NewGroupConsumer(config GroupConfig) (*GroupConsumer, error) {
	config = withDefaults(config)
	if problem := problemOf(config); problem != "" {
		return nil, newError("joining group "+config.GroupID, pacelinev1.ErrorCode_ERROR_CODE_INVALID_REQUEST, problem)
	}
	life, end := context.WithCancel(context.Background())
	reader := c.NewConsumer(ConsumerConfig{Reset: config.Reset, MaxWait: config.MaxWait, MaxBytes: config.MaxBytes})
	reader.inGroup = true
	return &GroupConsumer{
		config: config, member: newMembership(c, config), life: life, endLife: end, committing: make(chan struct{}, 1),
		reader:     reader,
		nextCommit: time.Now().Add(config.AutoCommitInterval),
	}, nil
}

func withDefaults(config GroupConfig) GroupConfig {
	config.SessionTimeout = cmp.Or(config.SessionTimeout, 45*time.Second)
	config.HeartbeatInterval = cmp.Or(config.HeartbeatInterval, 3*time.Second)
	config.MaxPollInterval = cmp.Or(config.MaxPollInterval, 5*time.Minute)
	config.AutoCommitInterval = cmp.Or(config.AutoCommitInterval, 5*time.Second)
	config.ClientID = cmp.Or(config.ClientID, "paceline-go")
	config.Logger = cmp.Or(config.Logger, slog.Default())
	if len(config.Assignors) == 0 {
		config.Assignors = []Assignor{RangeAssignor()}
	}
	config.Topics = slices.Clone(config.Topics)
	slices.Sort(config.Topics)
	config.Topics = slices.Compact(config.Topics)
	return config
}

func problemOf(config GroupConfig) string {
	switch {
	case config.GroupID == "":
		return "GroupID is empty"
	case len(config.Topics) == 0:
		return "Topics is empty"
	case config.HeartbeatInterval < 0 || config.HeartbeatInterval >= config.SessionTimeout:
		return "HeartbeatInterval must be positive and below SessionTimeout"
	case config.AutoCommitInterval < 0:
		return "AutoCommitInterval must be positive"
	case config.MaxPollInterval < 0 || max(config.SessionTimeout, config.MaxPollInterval) > math.MaxInt32*time.Millisecond:
		return "SessionTimeout and MaxPollInterval must be positive and below 2^31 ms"
	}
	return ""
}

// Member returns the member id and the generation; "" and -1 while this consumer is not a member.
func (g *GroupConsumer) Member() (id string, generation int32) { return g.member.place() }

// Assignment returns the partitions that this member owns, sorted.
func (g *GroupConsumer) Assignment() []TopicPartition { return slices.Clone(g.owned) }

// Position returns the offset of the next record of a partition; ok is false while it is not known.
func (g *GroupConsumer) Position(topic string, partition int32) (offset int64, ok bool) {
	return g.reader.Position(topic, partition)
}

// Seek continues a partition that this member owns at another offset.
func (g *GroupConsumer) Seek(topic string, partition int32, offset int64) error {
	if !slices.Contains(g.owned, TopicPartition{topic, partition}) {
		return newError("seeking", pacelinev1.ErrorCode_ERROR_CODE_INVALID_REQUEST, "this member does not own the partition")
	}
	g.reader.Assign(topic, partition, offset)
	return nil
}

// Poll is PollUpTo without a limit.
func (g *GroupConsumer) Poll(ctx context.Context) ([]ConsumedRecord, error) {
	return g.PollUpTo(ctx, math.MaxInt)
}

// PollUpTo takes part in rebalances, waits for records, and returns at most limit of them. When the deadline of ctx passes
// it returns no records and no error. Call it again within MaxPollInterval.
//
// Errors: those of Consumer.PollUpTo; UNKNOWN_TOPIC_OR_PARTITION when a topic did not exist for 5 s before the first join;
// FENCED_INSTANCE_ID when another process has taken over InstanceID; any other error of the coordinator that is not retriable.
func (g *GroupConsumer) PollUpTo(ctx context.Context, limit int) ([]ConsumedRecord, error) {
	if g.closed {
		return nil, errors.New("paceline: the consumer is closed")
	}
	g.member.touch(true)
	defer g.member.touch(false)
	for {
		wait, err := g.takePart(ctx)
		switch {
		case err != nil:
			return nil, err
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return nil, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case wait:
			continue
		}
		g.commitWhenDue()
		until := ctx
		cancel := func() {}
		if !g.config.ManualCommit {
			until, cancel = context.WithDeadline(ctx, g.nextCommit)
		}
		records, interrupted, err := g.reader.poll(until, limit, g.member.news)
		cancel()
		if err != nil || len(records) > 0 {
			return records, err
		}
		if !interrupted && ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, ctx.Err()
		}
	}
}

// takePart joins the group if it must. If wait is true, the caller must call it again before it reads records.
func (g *GroupConsumer) takePart(ctx context.Context) (wait bool, err error) {
	if g.joining == nil {
		g.member.mu.Lock()
		needsJoin, lost, fatal := g.member.needsJoin, g.member.lost, g.member.fatal
		g.member.lost = false
		g.member.mu.Unlock()
		if fatal != nil {
			return false, fatal
		}
		if !needsJoin {
			return false, nil
		}
		g.giveUp(context.WithoutCancel(ctx), lost)
		outcome := make(chan joinOutcome, 1)
		g.joining = outcome
		go func() {
			found, err := g.member.join(g.life)
			outcome <- joinOutcome{found, err}
		}()
	}
	select {
	case <-ctx.Done():
		return true, nil
	case outcome := <-g.joining:
		g.joining = nil
		if outcome.err != nil {
			g.member.mu.Lock()
			g.member.needsJoin = true
			g.member.mu.Unlock()
			return false, outcome.err
		}
		if g.member.isIn(outcome.assignment.generation) {
			g.take(ctx, outcome.assignment)
		}
		return true, nil
	}
}

// take starts reading the assigned partitions.
func (g *GroupConsumer) take(ctx context.Context, found *assignment) {
	g.owned = found.partitions
	for _, partition := range g.owned {
		g.reader.assign(found.begins[partition])
	}
	g.call(ctx, g.config.OnAssigned, g.owned)
}

// giveUp commits, if commits are automatic, and revokes all partitions; after a lost membership it does not commit.
func (g *GroupConsumer) giveUp(ctx context.Context, lost bool) {
	notify := g.config.OnRevoked
	if lost && g.config.OnLost != nil {
		notify = g.config.OnLost
	}
	if !lost && !g.config.ManualCommit && len(g.owned) > 0 {
		commit, cancel := context.WithTimeout(ctx, g.config.SessionTimeout/2)
		g.logFailure(g.Commit(commit))
		cancel()
	}
	owned := g.owned
	g.call(ctx, notify, owned)
	g.owned = nil
	for _, partition := range owned {
		g.reader.drop(partition)
	}
}

// call runs a callback with a deadline of MaxPollInterval. Its time counts as time without a poll.
func (g *GroupConsumer) call(ctx context.Context, notify func(context.Context, []TopicPartition), partitions []TopicPartition) {
	if notify == nil || len(partitions) == 0 {
		return
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.config.MaxPollInterval)
	defer cancel()
	g.member.touch(false)
	defer g.member.touch(true)
	notify(bounded, slices.Clone(partitions))
}

// Commit commits the positions after all records that Poll has returned, and waits.
//
// Errors: *CommitFailedError when the group has rebalanced without this member; any refusal of the coordinator.
func (g *GroupConsumer) Commit(ctx context.Context) error { return g.CommitOffsets(ctx, g.consumed()) }

// CommitOffsets commits offsets and waits. A committed offset is the next offset to read: the last record's plus 1.
func (g *GroupConsumer) CommitOffsets(ctx context.Context, offsets map[TopicPartition]CommittedOffset) error {
	select {
	case g.committing <- struct{}{}:
		defer func() { <-g.committing }()
		return g.member.commit(ctx, offsets)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Committed returns the committed offsets of the group; a partition without a committed offset is left out.
func (g *GroupConsumer) Committed(ctx context.Context, partitions ...TopicPartition) (map[TopicPartition]CommittedOffset, error) {
	return g.member.coordinator.committed(ctx, partitions)
}

// consumed returns the positions after the records that Poll has returned.
func (g *GroupConsumer) consumed() map[TopicPartition]CommittedOffset {
	// First process finished fetches, so that no position is committed that is out of range or of a deleted topic.
	g.reader.collect()
	offsets := map[TopicPartition]CommittedOffset{}
	for partition, at := range g.reader.positions {
		if at.cursor.start == nil {
			offsets[partition] = CommittedOffset{Offset: at.returned, LeaderEpoch: at.returnedEpoch}
		}
	}
	return offsets
}

// commitWhenDue starts an automatic commit in the background if it is due and no commit is in flight.
func (g *GroupConsumer) commitWhenDue() {
	if g.config.ManualCommit || time.Now().Before(g.nextCommit) {
		return
	}
	g.nextCommit = time.Now().Add(g.config.AutoCommitInterval)
	select {
	case g.committing <- struct{}{}:
	default:
		return
	}
	offsets := g.consumed()
	go func() {
		defer func() { <-g.committing }()
		ctx, cancel := context.WithTimeout(g.life, autoCommitTimeout)
		defer cancel()
		g.logFailure(g.member.commit(ctx, offsets))
	}()
}

func (g *GroupConsumer) logFailure(err error) {
	if err != nil && g.life.Err() == nil {
		g.config.Logger.Warn("automatic commit failed", slog.String("group", g.config.GroupID), slog.Any("cause", err))
	}
}

// Close commits unless commits are manual, calls OnRevoked, and leaves the group; a static member stays in the group until
// its session timeout. Both calls end with ctx. If ctx has already ended, the commit may take half the session timeout, and
// the leave two seconds. After an error the coordinator removes the member when its session timeout has passed.
func (g *GroupConsumer) Close(ctx context.Context) error {
	if g.closed {
		return nil
	}
	g.closed = true
	defer g.endLife()
	if g.joining != nil {
		g.endLife()
		<-g.joining
	}
	g.member.mu.Lock()
	lost := g.member.lost || g.member.fatal != nil
	g.member.mu.Unlock()
	bounded := ctx
	if ctx.Err() != nil {
		bounded = context.WithoutCancel(ctx)
	}
	g.giveUp(bounded, lost)
	return g.member.leave(ctx)
}
