package io.paceline.client;

import io.paceline.v1.JoinGroupResponse;
import java.time.Duration;
import java.util.Map;
import java.util.Set;

/**
 * The state of a membership that the polling thread shares with the heartbeat thread. A change notifies waiting threads;
 * {@code wake} ends the wait of a poll.
 */
final class MemberState {
    private final Runnable wake;
    private String memberId = "";
    private int generation = -1;
    private boolean needsJoin = true;
    private boolean lost;
    private boolean joinInFlight;
    private long polledNanos = System.nanoTime();
    private PacelineException fenced;
    private Set<String> topics = Set.of();
    private Map<String, Integer> assignedCounts = Map.of();

    /** Member id and generation, for requests. */
    record Identity(String memberId, int generation) {}

    MemberState(Runnable wake) {
        this.wake = wake;
    }

    synchronized Identity identity() {
        return new Identity(memberId, generation);
    }

    synchronized Set<String> topics() {
        return topics;
    }

    synchronized void subscribe(Set<String> wanted) {
        topics = Set.copyOf(wanted);
        needsJoin = true;
        polled();
    }

    /** Returns the partition counts from which this member made the assignments; empty unless it leads the group. */
    synchronized Map<String, Integer> assignedCounts() {
        return assignedCounts;
    }

    synchronized void setAssignedCounts(Map<String, Integer> counts) {
        assignedCounts = Map.copyOf(counts);
    }

    /** Returns whether the coordinator expects heartbeats; it expects none while a JoinGroup is in flight. */
    synchronized boolean isBeating() {
        return generation >= 0 && !joinInFlight;
    }

    /** Returns the time since the last poll. */
    synchronized long idleMs() {
        return (System.nanoTime() - polledNanos) / 1_000_000;
    }

    /** Records that the program polls. */
    synchronized void polled() {
        polledNanos = System.nanoTime();
        notifyAll();
    }

    /** Returns whether this member must join; throws when another process has taken over its instance id. */
    synchronized boolean needsJoin() {
        if (fenced != null) {
            throw fenced;
        }
        return needsJoin;
    }

    /** Waits at most {@code atMost} until this member must join again. */
    synchronized void awaitRebalance(Duration atMost) {
        try {
            if (!needsJoin && fenced == null) {
                wait(Math.max(1, atMost.toMillis()));
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    // Changes by heartbeats and commits

    /** Applies the refusal of a heartbeat or commit of a generation; returns whether it concerns the membership. */
    boolean refused(int seenGeneration, PacelineException failure) {
        switch (failure.code()) {
            case ERROR_CODE_REBALANCE_IN_PROGRESS -> rejoin(seenGeneration);
            // After a refusal of access the next poll joins again, and throws the refusal.
            case ERROR_CODE_UNKNOWN_MEMBER_ID, ERROR_CODE_FENCED_INSTANCE_ID, ERROR_CODE_GROUP_AUTHORIZATION_FAILED ->
                    lose(seenGeneration, failure, true);
            case ERROR_CODE_ILLEGAL_GENERATION -> lose(seenGeneration, failure, false);
            default -> {
                return false;
            }
        }
        return true;
    }

    /** Makes the next poll join again, unless the generation has changed since. */
    void rejoin(int seenGeneration) {
        synchronized (this) {
            needsJoin |= generation == seenGeneration;
            notifyAll();
        }
        wake.run();
    }

    /** Records that the membership is lost, unless the generation has changed: other members may own the partitions. */
    private void lose(int seenGeneration, PacelineException cause, boolean forgetMember) {
        synchronized (this) {
            if (generation != seenGeneration) {
                return;
            }
            if (cause instanceof FencedInstanceIdException) {
                fenced = cause;
            } else if (joinInFlight) {
                return; // All partitions were already given up; the response of JoinGroup decides.
            }
            generation = -1;
            memberId = forgetMember ? "" : memberId;
            lost = true;
            needsJoin = true;
            notifyAll();
        }
        wake.run();
    }

    // Changes by the polling thread

    /** Returns whether the membership was lost since the last call. */
    synchronized boolean takeLost() {
        boolean wasLost = lost;
        lost = false;
        return wasLost;
    }

    /** Records that a JoinGroup is sent. */
    synchronized void joinSent() {
        joinInFlight = true;
        lost = false;
    }

    /** Sets member id and generation from the response of JoinGroup, which is null when it was refused. */
    void joinEnded(JoinGroupResponse answer) {
        synchronized (this) {
            joinInFlight = false;
            if (answer != null) {
                memberId = answer.getMemberId();
                generation = answer.getGenerationId();
            }
            notifyAll();
        }
        wake.run();
    }

    /** Applies the refusal of a JoinGroup; returns whether the member may join again. */
    synchronized boolean joinRefused(PacelineException failure) {
        switch (failure.code()) {
            case ERROR_CODE_MEMBER_ID_REQUIRED -> memberId = failure.details().metadata().getOrDefault("member_id", "");
            case ERROR_CODE_UNKNOWN_MEMBER_ID -> {
                memberId = "";
                generation = -1;
            }
            case ERROR_CODE_ILLEGAL_GENERATION -> generation = -1;
            case ERROR_CODE_REBALANCE_IN_PROGRESS -> { }
            case ERROR_CODE_FENCED_INSTANCE_ID -> {
                fenced = failure;
                return false;
            }
            default -> {
                return failure.retriable();
            }
        }
        return true;
    }

    /** Records that the member has its partitions of these topics; it joins again if its topics have changed. */
    synchronized void assigned(Set<String> joinedTopics) {
        needsJoin = lost || !topics.equals(joinedTopics);
    }

    /** Forgets the membership and returns the member id. */
    String leave(boolean partitionsAreLost) {
        String leaving;
        synchronized (this) {
            leaving = memberId;
            memberId = "";
            generation = -1;
            lost |= partitionsAreLost;
            needsJoin = true;
            fenced = partitionsAreLost ? fenced : null; // The fencing concerned the membership that the program ends.
            notifyAll();
        }
        wake.run();
        return leaving;
    }
}
