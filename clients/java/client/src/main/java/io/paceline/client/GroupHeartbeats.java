package io.paceline.client;

import java.time.Duration;
import java.util.Map;

/**
 * The thread that keeps a membership between polls. It sends heartbeats while the member is in a generation, and leaves the
 * group when the program has not polled for too long. For the leader it also looks for partitions added to topics.
 */
final class GroupHeartbeats implements AutoCloseable {
    private static final long RETRY_MS = 200;
    private static final long SHORTEST_TIMEOUT_MS = 500;
    private static final long LONGEST_LOOKUP_MS = 2_000;
    private static final Duration LOOK_TIMEOUT = Duration.ofSeconds(2);

    private final GroupConfig config;
    private final MemberState state;
    private final GroupMembership membership;
    private final GroupCoordinator coordinator;
    private final Cluster cluster;
    private final Warnings warnings;
    private final Thread thread;
    private boolean closed;
    private long lookedNanos = System.nanoTime();

    GroupHeartbeats(
            GroupConfig config, MemberState state, GroupMembership membership, GroupCoordinator coordinator, Cluster cluster,
            Warnings warnings) {
        this.config = config;
        this.state = state;
        this.membership = membership;
        this.coordinator = coordinator;
        this.cluster = cluster;
        this.warnings = warnings;
        thread = Connections.daemon(this::run, "paceline-heartbeat-" + config.groupId);
        thread.start();
    }

    /** Stops the thread. */
    @Override
    public void close() {
        synchronized (state) {
            closed = true;
        }
        thread.interrupt();
        try {
            thread.join(SHORTEST_TIMEOUT_MS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private void run() {
        long pauseMs = config.heartbeatIntervalMs();
        while (true) {
            if (!awaitTurn(pauseMs)) {
                return;
            }
            try {
                pauseMs = beat();
                lookForPartitions();
            } catch (RuntimeException failure) {
                if (cluster.closed()) {
                    return;
                }
                warnings.add(failure);
                pauseMs = RETRY_MS;
            }
        }
    }

    /** Waits until the next heartbeat is due; returns false when the thread must end. */
    private boolean awaitTurn(long pauseMs) {
        synchronized (state) {
            try {
                long end = System.nanoTime() + pauseMs * 1_000_000;
                while (!closed && !cluster.closed()) {
                    long leftMs = (end - System.nanoTime() + 999_999) / 1_000_000;
                    if (!state.isBeating()) {
                        state.wait(1_000);
                        end = System.nanoTime() + config.heartbeatIntervalMs() * 1_000_000L;
                    } else if (leftMs > 0) {
                        state.wait(leftMs);
                    } else {
                        return true;
                    }
                }
            } catch (InterruptedException ended) {
                // Only close interrupts this thread.
            }
            return false;
        }
    }

    /** Sends one heartbeat and returns the pause until the next heartbeat in milliseconds. */
    private long beat() {
        if (state.idleMs() > config.maxPollIntervalMs()) {
            warnings.log(Failures.commitFailed("keeping the place in group " + config.groupId,
                    "no poll for " + state.idleMs() + " ms", null));
            membership.leaveUnpolled();
            return config.heartbeatIntervalMs();
        }
        var identity = state.identity();
        long timeoutMs = Math.max(SHORTEST_TIMEOUT_MS,
                Math.min(config.sessionTimeoutMs() / 3, 2L * config.heartbeatIntervalMs()));
        try {
            // Finding a coordinator that has moved may take longer than a heartbeat.
            coordinator.find(Retry.after(Duration.ofMillis(Math.max(LONGEST_LOOKUP_MS, timeoutMs))));
            coordinator.callOnce("sending a heartbeat to group " + config.groupId,
                    Retry.after(Duration.ofMillis(timeoutMs)), stub -> stub.heartbeat(GroupRequests.heartbeat(config, identity)));
            warnings.clear();
        } catch (PacelineException failure) {
            if (!state.refused(identity.generation(), failure)) {
                warnings.add(failure);
                return RETRY_MS;
            }
        }
        return config.heartbeatIntervalMs();
    }

    /** Lets the group rebalance when the partition count of a topic differs from the count this leader has assigned. */
    private void lookForPartitions() {
        Map<String, Integer> assigned = state.assignedCounts();
        long ageMs = (System.nanoTime() - lookedNanos) / 1_000_000;
        // Look for a topic that does not exist yet with every heartbeat, but not more than once a second.
        long pauseMs = assigned.containsValue(0) ? 1_000 : config.metadataMaxAge.toMillis();
        if (assigned.isEmpty() || ageMs < pauseMs) {
            return;
        }
        int generation = state.identity().generation();
        lookedNanos = System.nanoTime();
        Map<String, Integer> present = cluster.partitionCounts(Retry.after(LOOK_TIMEOUT), assigned.keySet());
        // The broker that answered may not know a topic yet: a topic that is not found causes no rebalance.
        if (assigned.entrySet().stream().anyMatch(one ->
                !present.getOrDefault(one.getKey(), one.getValue()).equals(one.getValue()))) {
            state.rejoin(generation);
        }
    }
}
