package io.paceline.client;

import io.paceline.v1.JoinGroupResponse;
import java.time.Duration;
import java.util.Map;
import java.util.Set;

/**
 * The part of a membership that the thread that polls shares with the heartbeats. It notifies waiting threads of changes;
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

    /** Returns the partition counts that this member has assigned by; empty unless it leads the group. */
    synchronized Map<String, Integer> assignedCounts() {
        return assignedCounts;
    }

    synchronized void setAssignedCounts(Map<String, Integer> counts) {
        assignedCounts = Map.copyOf(counts);
    }

    /** Says whether the coordinator expects heartbeats; it does not while a JoinGroup is under way. */
    synchronized boolean isBeating() {
        return generation >= 0 && !joinInFlight;
    }

    /** Returns how long the program has not polled. */
    synchronized long idleMs() {
        return (System.nanoTime() - polledNanos) / 1_000_000;
    }

    /** Takes note that the program polls. */
    synchronized void polled() {
        polledNanos = System.nanoTime();
        notifyAll();
    }

    /** Says whether this member has to join; throws when another process has taken over its instance id. */
    synchronized boolean needsJoin() {
        if (fenced != null) {
            throw fenced;
        }
        return needsJoin;
    }

    /** Waits until this member has to join again, at most so long. */
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

    /** Takes note of a refused heartbeat or commit of a generation; returns whether the refusal concerns the membership. */
    boolean refused(int seenGeneration, PacelineException failure) {
        switch (failure.code()) {
            case ERROR_CODE_REBALANCE_IN_PROGRESS -> rejoin(seenGeneration);
            case ERROR_CODE_UNKNOWN_MEMBER_ID, ERROR_CODE_FENCED_INSTANCE_ID -> lose(seenGeneration, failure, true);
            case ERROR_CODE_ILLEGAL_GENERATION -> lose(seenGeneration, failure, false);
            default -> {
                return false;
            }
        }
        return true;
    }

    /** Joins again with the next poll, if the generation is still this one. */
    void rejoin(int seenGeneration) {
        synchronized (this) {
            needsJoin |= generation == seenGeneration;
            notifyAll();
        }
        wake.run();
    }

    /** Notes that the membership was lost, if the generation is still this one: other members may own the partitions. */
    private void lose(int seenGeneration, PacelineException cause, boolean forgetMember) {
        synchronized (this) {
            if (generation != seenGeneration) {
                return;
            }
            if (cause instanceof FencedInstanceIdException) {
                fenced = cause;
            } else if (joinInFlight) {
                return; // Every partition was given up already, and the answer of JoinGroup says more.
            }
            generation = -1;
            memberId = forgetMember ? "" : memberId;
            lost = true;
            needsJoin = true;
            notifyAll();
        }
        wake.run();
    }

    // Changes by the thread that polls

    /** Says whether the membership was lost since the last call. */
    synchronized boolean takeLost() {
        boolean wasLost = lost;
        lost = false;
        return wasLost;
    }

    /** Takes note that a JoinGroup is sent. */
    synchronized void joinSent() {
        joinInFlight = true;
        lost = false;
    }

    /** Takes member id and generation from the answer of JoinGroup; null when it was refused. */
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

    /** Takes note of a refusal to join; returns whether the member may join again. */
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

    /** Takes note that the member has its partitions of these topics. */
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
            fenced = partitionsAreLost ? fenced : null; // It concerned the membership that the program ends.
            notifyAll();
        }
        wake.run();
        return leaving;
    }
}
