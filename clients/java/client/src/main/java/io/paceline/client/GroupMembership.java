package io.paceline.client;

import com.google.common.util.concurrent.ListenableFuture;
import com.google.common.util.concurrent.MoreExecutors;
import io.grpc.Deadline;
import io.grpc.StatusRuntimeException;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.JoinGroupRequest;
import io.paceline.v1.JoinGroupResponse;
import io.paceline.v1.MemberAssignment;
import io.paceline.v1.SyncGroupResponse;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;

/**
 * The membership of a consumer in its group. A poll joins, assigns partitions if this member is the leader, and calls the
 * listener; {@link GroupHeartbeats} keeps the session alive between polls. A JoinGroup or SyncGroup in flight outlasts the
 * poll that sent it, and the next poll processes the answer.
 */
final class GroupMembership {
    private static final Duration JOIN_GRACE = Duration.ofSeconds(30);
    private static final Duration SYNC_TIMEOUT = Duration.ofSeconds(60);
    private static final Duration LEAVE_TIMEOUT = Duration.ofSeconds(5);
    private static final Duration LOOKUP_TIMEOUT = Duration.ofSeconds(5);
    /** Minimum time for finding the coordinator, so that polls with a short timeout can find it too. */
    private static final Duration SHORTEST_LOOKUP = Duration.ofSeconds(1);
    private static final long PAUSE_MS = 100;

    private final GroupConfig config;
    private final MemberState state;
    private final GroupCoordinator coordinator;
    private final Cluster cluster;
    private final GroupConsumer consumer;
    private final Warnings warnings;

    private ConsumerRebalanceListener listener = new ConsumerRebalanceListener() {};
    private ListenableFuture<JoinGroupResponse> join;
    private ListenableFuture<SyncGroupResponse> sync;
    private boolean prepared;
    /** Whether the listener is running or has thrown an exception. */
    private boolean inListener;
    private Set<String> joinedTopics = Set.of();
    private long quietUntilNanos = System.nanoTime();
    /** Topics of a new subscription that no broker has returned yet. */
    private final Set<String> unseenTopics = new TreeSet<>();
    private OptionalLong unseenSinceNanos = OptionalLong.empty();
    private long nextLookNanos = System.nanoTime();

    GroupMembership(
            GroupConfig config, MemberState state, GroupCoordinator coordinator, Cluster cluster, GroupConsumer consumer,
            Warnings warnings) {
        this.config = config;
        this.state = state;
        this.coordinator = coordinator;
        this.cluster = cluster;
        this.consumer = consumer;
        this.warnings = warnings;
    }

    void subscribe(Set<String> topics, ConsumerRebalanceListener newListener) {
        listener = newListener;
        state.subscribe(topics);
        unseenTopics.clear();
        unseenTopics.addAll(topics);
        unseenSinceNanos = OptionalLong.empty();
    }

    /**
     * Takes part in a rebalance, if there is one; returns whether the member has its partitions before the deadline.
     *
     * @throws PacelineException when the coordinator permanently refuses this member, or a topic of a new subscription does
     *     not exist; exceptions of the listener are passed on
     */
    boolean poll(Deadline deadline) {
        state.polled();
        inListener = false;
        while (state.needsJoin()) {
            if (!knowsTopics(deadline)) {
                return false;
            }
            try {
                if (!step(deadline)) {
                    return false;
                }
                warnings.clear();
            } catch (PacelineException failure) {
                if (inListener) {
                    throw failure; // The listener threw it: the membership has not failed.
                }
                noteFailure(failure);
                if (deadline.isExpired()) {
                    return false;
                }
            }
        }
        return true;
    }

    /**
     * Checks that the topics of a new subscription exist; returns false when the next check must wait for a later poll. If
     * the brokers do not answer, the member joins without the check.
     *
     * @throws PacelineException UNKNOWN_TOPIC_OR_PARTITION when brokers have not known a topic for five seconds
     */
    private boolean knowsTopics(Deadline deadline) {
        while (!unseenTopics.isEmpty()) {
            long pauseMs = (nextLookNanos - System.nanoTime()) / 1_000_000;
            if (pauseMs > 0 && !Retry.sleep(deadline, pauseMs)) {
                return false;
            }
            try {
                unseenTopics.removeAll(cluster.partitionCounts(Retry.after(lookupTime(deadline)), unseenTopics).keySet());
            } catch (PacelineException unanswered) {
                unseenTopics.clear();
            }
            long now = System.nanoTime();
            nextLookNanos = now + PAUSE_MS * 1_000_000;
            unseenSinceNanos = OptionalLong.of(unseenSinceNanos.orElse(now));
            if (!unseenTopics.isEmpty() && now - unseenSinceNanos.getAsLong() >= Absence.LIMIT_NANOS) {
                unseenSinceNanos = OptionalLong.empty();
                throw Failures.of("subscribing group " + config.groupId, ErrorCode.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
                        "brokers do not know " + String.join(", ", unseenTopics));
            }
        }
        return true;
    }

    private static Duration lookupTime(Deadline deadline) {
        long leftMs = Math.max(Retry.leftMs(deadline), SHORTEST_LOOKUP.toMillis());
        return Duration.ofMillis(Math.min(leftMs, LOOKUP_TIMEOUT.toMillis()));
    }

    /** Does one step of the join; returns false if the deadline ended before the step was complete. */
    private boolean step(Deadline deadline) {
        long quietMs = (quietUntilNanos - System.nanoTime()) / 1_000_000;
        if (quietMs > 0 && !Retry.sleep(deadline, quietMs)) {
            return false;
        }
        if (join == null && sync == null) {
            if (!prepared) {
                prepare();
                prepared = true;
            }
            sendJoin(deadline);
        }
        if (join != null) {
            JoinGroupResponse answer = await(join, deadline);
            if (answer != null) {
                join = null;
                sendSync(answer);
            }
            return answer != null;
        }
        SyncGroupResponse answer = await(sync, deadline);
        if (answer != null) {
            sync = null;
            accept(answer);
        }
        return answer != null;
    }

    /** Waits for an answer; returns null if the deadline ends or the thread is interrupted first. */
    private <T> T await(ListenableFuture<T> answer, Deadline deadline) {
        try {
            while (true) {
                state.polled();
                try {
                    return answer.get(Math.min(Retry.leftMs(deadline), config.sliceMs()), TimeUnit.MILLISECONDS);
                } catch (TimeoutException late) {
                    if (deadline.isExpired()) {
                        return null;
                    }
                }
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return null;
        } catch (ExecutionException error) {
            join = null;
            sync = null;
            PacelineException failure = error.getCause() instanceof StatusRuntimeException status
                    ? Failures.ofCall("joining group " + config.groupId, status)
                    : Failures.of("joining group " + config.groupId, ErrorCode.ERROR_CODE_UNKNOWN_SERVER_ERROR,
                            String.valueOf(error.getCause()));
            coordinator.learnFrom(failure);
            throw failure;
        }
    }

    /** Prepares another attempt after a failure that joining again may resolve; throws any other failure. */
    private void noteFailure(PacelineException failure) {
        if (!state.joinRefused(failure)) {
            throw failure;
        }
        if (failure.code() != ErrorCode.ERROR_CODE_MEMBER_ID_REQUIRED) {
            warnings.add(failure);
            long pauseMs = Math.max(PAUSE_MS, failure.details().retryAfter().toMillis());
            quietUntilNanos = System.nanoTime() + pauseMs * 1_000_000;
        }
    }

    /**
     * Before a join: awaits earlier commits, auto-commits, then calls onPartitionsRevoked. After a lost membership, only calls
     * onPartitionsLost.
     */
    private void prepare() {
        boolean wasLost = state.takeLost();
        if (!wasLost) {
            consumer.endCommits(Duration.ofMillis(config.sessionTimeoutMs() / 2));
        }
        drop(wasLost);
    }

    private void drop(boolean wasLost) {
        Set<TopicPartition> owned = consumer.assignment();
        if (owned.isEmpty()) {
            return;
        }
        Consumer<Set<TopicPartition>> notify = wasLost ? listener::onPartitionsLost : listener::onPartitionsRevoked;
        try {
            callListener(notify, owned);
        } finally {
            consumer.take(Set.of());
        }
    }

    private void sendJoin(Deadline deadline) {
        var stub = coordinator.futureStub(Retry.after(lookupTime(deadline)));
        joinedTopics = state.topics();
        JoinGroupRequest request = GroupRequests.join(config, state.identity().memberId(), joinedTopics);
        state.joinSent();
        long timeoutMs = config.maxPollIntervalMs() + JOIN_GRACE.toMillis();
        ListenableFuture<JoinGroupResponse> call =
                stub.withDeadlineAfter(timeoutMs, TimeUnit.MILLISECONDS).joinGroup(request);
        join = call;
        call.addListener(() -> answered(call), MoreExecutors.directExecutor());
    }

    /** Applies member id and generation as soon as they arrive, so that heartbeats start before the next poll. */
    private void answered(ListenableFuture<JoinGroupResponse> call) {
        JoinGroupResponse answer = null;
        try {
            answer = call.isCancelled() ? null : call.get();
        } catch (ExecutionException refused) {
            // The polling thread handles the error.
        } catch (InterruptedException impossible) {
            Thread.currentThread().interrupt();
        }
        state.joinEnded(answer);
    }

    /** Sends SyncGroup for this member's partitions; the leader sends the assignments of all members with it. */
    private void sendSync(JoinGroupResponse answer) {
        Map<String, Integer> counts = new HashMap<>();
        List<MemberAssignment> assignments = List.of();
        if (answer.getLeader().equals(answer.getMemberId())) {
            GroupRequests.topicsOf(answer).forEach(topic -> counts.put(topic, 0));
            counts.putAll(cluster.retry("assigning partitions of group " + config.groupId,
                    Retry.after(LOOKUP_TIMEOUT), deadline -> cluster.partitionCounts(deadline, counts.keySet())));
            if (!answer.getSkipAssignment()) {
                assignments = GroupRequests.assign(config, answer, counts);
            }
        }
        state.setAssignedCounts(counts);
        sync = coordinator.futureStub(Retry.after(LOOKUP_TIMEOUT))
                .withDeadlineAfter(SYNC_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS)
                .syncGroup(GroupRequests.sync(config, answer, assignments));
    }

    private void accept(SyncGroupResponse answer) {
        Set<TopicPartition> assigned = GroupRequests.partitionsOf(answer.getAssignment());
        state.assigned(joinedTopics);
        prepared = false;
        consumer.take(assigned);
        callListener(listener::onPartitionsAssigned, assigned);
    }

    private void callListener(Consumer<Set<TopicPartition>> notify, Set<TopicPartition> partitions) {
        inListener = true;
        notify.accept(partitions);
        inListener = false;
    }

    // Leaving

    /** Commits if commits are automatic, revokes the partitions, and leaves the group. */
    void leave(Duration timeout) {
        if (join != null) {
            join.cancel(true);
        }
        if (sync != null) {
            sync.cancel(true);
        }
        join = null;
        sync = null;
        prepared = false;
        boolean wasLost = state.takeLost();
        if (!wasLost) {
            consumer.endCommits(timeout.dividedBy(2));
        }
        try {
            drop(wasLost);
        } finally {
            sendLeave(timeout.dividedBy(2), false);
        }
    }

    /** Leaves the group because the program does not poll; the next poll joins again. Called by the heartbeats. */
    void leaveUnpolled() {
        sendLeave(LEAVE_TIMEOUT, true);
    }

    /** Sends LeaveGroup for a dynamic member; a static member stays in the group until its session timeout. */
    private void sendLeave(Duration timeout, boolean partitionsAreLost) {
        String leaving = state.leave(partitionsAreLost);
        if (leaving.isEmpty() || config.isStatic()) {
            return;
        }
        Deadline deadline = Retry.after(timeout).minimum(Retry.after(LEAVE_TIMEOUT));
        try {
            coordinator.callOnce("leaving group " + config.groupId, deadline,
                    stub -> stub.leaveGroup(GroupRequests.leave(config, leaving)));
        } catch (PacelineException failure) {
            // Not thrown: the coordinator removes the member after its session timeout.
            warnings.log(failure);
        }
    }
}
