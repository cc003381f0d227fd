package io.paceline.client;

import io.paceline.client.assignors.Assignor;
import io.paceline.client.assignors.RangeAssignor;
import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;

/** Settings of a member of a consumer group. Immutable; each {@code with} method returns a changed copy. */
public final class GroupConfig implements Cloneable {
    String groupId;
    String groupInstanceId = "";
    String clientId = "paceline-java";
    private Duration sessionTimeout = Duration.ofSeconds(45);
    private Duration heartbeatInterval = Duration.ofSeconds(3);
    private Duration maxPollInterval = Duration.ofMinutes(5);
    /** Null without automatic commits. */
    Duration autoCommitInterval = Duration.ofSeconds(5);
    Duration apiTimeout = Duration.ofSeconds(60);
    Duration metadataMaxAge = Duration.ofMinutes(5);
    int maxPollRecords = 500;
    List<Assignor> assignors = List.of(new RangeAssignor());
    ConsumerConfig reading = ConsumerConfig.defaults();

    private GroupConfig() {}

    /**
     * Returns the defaults: range assignor, session time-out of 45 s, heartbeats every 3 s, at most 5 minutes between polls,
     * automatic commits every 5 s, 500 records per poll, and the earliest offset where the group has not committed an offset.
     */
    public static GroupConfig of(String groupId) {
        if (groupId.isEmpty()) {
            throw new IllegalArgumentException("groupId is empty: name the group");
        }
        GroupConfig config = new GroupConfig();
        config.groupId = groupId;
        return config;
    }

    /**
     * Makes this a static member: it keeps its partitions when its process restarts within the session time-out. The name
     * is unique in the group and outlives the process.
     */
    public GroupConfig withGroupInstanceId(String name) {
        return changed(copy -> copy.groupInstanceId = name);
    }

    /** Sets the client id, with which the member id begins; it shows people which program this member is. */
    public GroupConfig withClientId(String name) {
        return changed(copy -> copy.clientId = name);
    }

    /** Sets the time without a heartbeat after which the coordinator removes this member. */
    public GroupConfig withSessionTimeout(Duration timeout) {
        return changed(copy -> copy.sessionTimeout = timeout);
    }

    /** Sets the interval between heartbeats; it should be at most a third of the session time-out. */
    public GroupConfig withHeartbeatInterval(Duration interval) {
        return changed(copy -> copy.heartbeatInterval = interval);
    }

    /** Sets the longest time between two calls of {@code poll}; a member that exceeds it gives up its place in the group. */
    public GroupConfig withMaxPollInterval(Duration interval) {
        return changed(copy -> copy.maxPollInterval = interval);
    }

    /** Commits automatically: in {@code poll} at this interval, before every rebalance, and in {@code close}. */
    public GroupConfig withAutoCommit(Duration interval) {
        return changed(copy -> copy.autoCommitInterval = interval);
    }

    /** Commits only when the program calls {@code commitSync} or {@code commitAsync}. */
    public GroupConfig withoutAutoCommit() {
        return changed(copy -> copy.autoCommitInterval = null);
    }

    /** Sets the time-out of calls without a time-out parameter. */
    public GroupConfig withApiTimeout(Duration timeout) {
        return changed(copy -> copy.apiTimeout = timeout);
    }

    /** Sets how often the leader of the group looks for new partitions; it looks for a missing topic about once a second. */
    public GroupConfig withMetadataMaxAge(Duration age) {
        return changed(copy -> copy.metadataMaxAge = age);
    }

    /** Sets the largest number of records that one {@code poll} returns. */
    public GroupConfig withMaxPollRecords(int records) {
        return changed(copy -> copy.maxPollRecords = records);
    }

    /** Sets the assignors that this member supports, in order of preference. All members need one in common. */
    public GroupConfig withAssignors(Assignor... known) {
        return changed(copy -> copy.assignors = List.of(known));
    }

    /** Sets the policy for partitions without a committed offset and for positions that are out of range. */
    public GroupConfig withReset(ResetPolicy policy) {
        return changed(copy -> copy.reading = reading.withReset(policy));
    }

    /** Sets how records are fetched; also replaces the policy of {@link #withReset}. */
    public GroupConfig withReading(ConsumerConfig config) {
        return changed(copy -> copy.reading = config);
    }

    private GroupConfig changed(Consumer<GroupConfig> change) {
        try {
            GroupConfig copy = (GroupConfig) clone();
            change.accept(copy);
            copy.check();
            return copy;
        } catch (CloneNotSupportedException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private void check() {
        for (Duration time : List.of(sessionTimeout, heartbeatInterval, maxPollInterval)) {
            if (time.toMillis() < 1 || time.toMillis() > Integer.MAX_VALUE) {
                throw new IllegalArgumentException(
                        "a time of a group has to be from 1 to " + Integer.MAX_VALUE + " ms, not " + time);
            }
        }
        if (maxPollRecords < 1 || assignors.isEmpty()) {
            throw new IllegalArgumentException("maxPollRecords has to be positive, and at least one assignor given");
        }
        if (assignors.stream().map(Assignor::name).distinct().count() != assignors.size()) {
            throw new IllegalArgumentException("two assignors have the same name");
        }
    }

    /** Checks settings that depend on each other; only here, because a program may set them in any order. */
    void checkTogether() {
        if (heartbeatInterval.compareTo(sessionTimeout) >= 0) {
            throw new IllegalArgumentException("heartbeatInterval has to be below sessionTimeout, not "
                    + heartbeatInterval.toMillis() + " and " + sessionTimeout.toMillis() + " ms");
        }
    }

    boolean isStatic() {
        return !groupInstanceId.isEmpty();
    }

    int sessionTimeoutMs() {
        return (int) sessionTimeout.toMillis();
    }

    int heartbeatIntervalMs() {
        return (int) heartbeatInterval.toMillis();
    }

    int maxPollIntervalMs() {
        return (int) maxPollInterval.toMillis();
    }

    /** Returns the longest single wait of a poll; after each wait it counts as a new poll for {@code maxPollInterval}. */
    long sliceMs() {
        return Math.max(1, Math.min(1_000, maxPollInterval.toMillis() / 2));
    }

    boolean autoCommit() {
        return autoCommitInterval != null;
    }
}
