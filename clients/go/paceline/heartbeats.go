package paceline

import (
	"context"
	"log/slog"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

const (
	heartbeatRetry   = 200 * time.Millisecond
	leastHeartbeat   = 500 * time.Millisecond
	watchEvery       = 5 * time.Minute
	watchWhenMissing = time.Second
)

// beat sends heartbeats until the generation ends. It leaves the group when MaxPollInterval has passed without a poll.
func (m *membership) beat(ctx context.Context, memberID string, generation int32) {
	pause := m.config.HeartbeatInterval
	for sleep(ctx, pause) {
		m.mu.Lock()
		idle := time.Since(m.polled)
		if m.polling {
			idle = 0
		}
		m.mu.Unlock()
		if idle > m.config.MaxPollInterval {
			m.config.Logger.Warn("leaving the group because the application does not poll: poll more often or raise MaxPollInterval",
				slog.String("group", m.config.GroupID), slog.Duration("idle", idle))
			m.expire(memberID, generation)
			return
		}
		pause = m.config.HeartbeatInterval
		err := m.beatOnce(ctx, memberID, generation)
		switch CodeOf(err) {
		case pacelinev1.ErrorCode_ERROR_CODE_REBALANCE_IN_PROGRESS:
			m.rejoin(generation)
		case pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_MEMBER_ID, pacelinev1.ErrorCode_ERROR_CODE_ILLEGAL_GENERATION,
			pacelinev1.ErrorCode_ERROR_CODE_FENCED_INSTANCE_ID,
			pacelinev1.ErrorCode_ERROR_CODE_GROUP_AUTHORIZATION_FAILED: // the next poll joins again, and returns the refusal
			m.config.Logger.Info("lost the membership",
				slog.String("group", m.config.GroupID), slog.Any("cause", err))
			m.lose(generation, err)
			return
		default:
			if err != nil {
				pause = heartbeatRetry
			}
		}
	}
}

func (m *membership) beatOnce(ctx context.Context, memberID string, generation int32) error {
	timeout := max(leastHeartbeat, min(m.config.SessionTimeout/3, 2*m.config.HeartbeatInterval))
	call, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return m.coordinator.once(call, "heartbeat of group "+m.config.GroupID, func(ctx context.Context, group pacelinev1.GroupServiceClient) error {
		_, err := group.Heartbeat(ctx, &pacelinev1.HeartbeatRequest{
			GroupId: m.config.GroupID, GenerationId: generation, MemberId: memberID, GroupInstanceId: m.config.InstanceID})
		return err
	})
}

// expire leaves the group when the application does not poll; the next poll joins again.
func (m *membership) expire(memberID string, generation int32) {
	ctx, cancel := context.WithTimeout(context.Background(), m.config.SessionTimeout/2)
	defer cancel()
	m.lose(generation, nil)
	if err := m.leaveAs(ctx, memberID); err != nil {
		m.config.Logger.Info("leaving the group failed", slog.String("group", m.config.GroupID), slog.Any("cause", err))
	}
}

// watch runs in the leader of the group. It has the leader join again when topics have other partitions than it assigned.
func (m *membership) watch(ctx context.Context, generation int32, topics []string, assigned map[string]*topicState) {
	pause := watchEvery
	if len(assigned) < len(topics) {
		pause = watchWhenMissing
	}
	for sleep(ctx, pause) {
		call, cancel := context.WithTimeout(ctx, m.client.requestTimeout)
		now, _, err := m.client.describeTopics(call, "watching the topics of group "+m.config.GroupID, topics, describers)
		cancel()
		if err == nil && haveChanged(assigned, now) {
			m.rejoin(generation)
			return
		}
	}
}
