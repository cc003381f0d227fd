package io.paceline.client;

import io.paceline.client.assignors.Assignor;
import io.paceline.client.assignors.RangeAssignor;
import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;

/** Tuning of a group's member. Immutable; each {@code with} method returns a changed copy. */
public final class GroupConfig implements Cloneable {
    private String groupId;
    private String groupInstanceId = "";
    private String clientId = "paceline-java";
    private Duration sessionTimeout = Duration.ofSeconds(45);
    private Duration heartbeatInterval = Duration.ofSeconds(3);
    private Duration maxPollInterval = Duration.ofMinutes(5);
    private Duration autoCommitInterval = Duration.ofSeconds(5);
    private Duration apiTimeout = Duration.ofSeconds(60);
    private Duration metadataMaxAge = Duration.ofMinutes(5);
    private int maxPollRecords = 500;
    private List<Assignor> assignors = List.of(new RangeAssignor());
    private ConsumerConfig reading = ConsumerConfig.defaults();

    private GroupConfig() {}

    /**
     * Returns the defaults: range assignor, session time-out of 45 s, heartbeats every 3 s, 5 minutes between polls,
     * automatic commits every 5 s, 500 records per poll, and the earliest offset where the group has committed none.
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

    /** Names the program, for people; the name begins the member id. */
    public GroupConfig withClientId(String name) {
        return changed(copy -> copy.clientId = name);
    }

    /** Lets the group continue without this member when its heartbeats stay away for so long. */
    public GroupConfig withSessionTimeout(Duration timeout) {
        return changed(copy -> copy.sessionTimeout = timeout);
    }

    /** Sends a heartbeat so often; a third of the session time-out at most is a good value. */
    public GroupConfig withHeartbeatInterval(Duration interval) {
        return changed(copy -> copy.heartbeatInterval = interval);
    }

    /** Leaves the group when {@code poll} is not called for so long. */
    public GroupConfig withMaxPollInterval(Duration interval) {
        return changed(copy -> copy.maxPollInterval = interval);
    }

    /** Commits in {@code poll} so often, before every rebalance, and in {@code close}. */
    public GroupConfig withAutoCommit(Duration interval) {
        return changed(copy -> copy.autoCommitInterval = interval);
    }

    /** Commits only when the program calls {@code commitSync} or {@code commitAsync}. */
    public GroupConfig withoutAutoCommit() {
        return changed(copy -> copy.autoCommitInterval = null);
    }

    /** Bounds calls that take no time-out of their own. */
    public GroupConfig withApiTimeout(Duration timeout) {
        return changed(copy -> copy.apiTimeout = timeout);
    }

    /** Looks for new partitions of the topics so often; a topic that does not exist yet is looked for more often. */
    public GroupConfig withMetadataMaxAge(Duration age) {
        return changed(copy -> copy.metadataMaxAge = age);
    }

    /** Bounds the records of one {@code poll}. */
    public GroupConfig withMaxPollRecords(int records) {
        return changed(copy -> copy.maxPollRecords = records);
    }

    /** Names the assignors that this member knows, the best first. All members of the group need one in common. */
    public GroupConfig withAssignors(Assignor... known) {
        return changed(copy -> copy.assignors = List.of(known));
    }

    /** Chooses where to begin without a committed offset and when a position is out of range. */
    public GroupConfig withReset(ResetPolicy policy) {
        return changed(copy -> copy.reading = reading.withReset(policy));
    }

    /** Tunes how records are read; its reset policy counts too. */
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
                throw new IllegalArgumentException("times of a group are from 1 to " + Integer.MAX_VALUE + " ms, not " + time);
            }
        }
        if (maxPollRecords < 1 || assignors.isEmpty()) {
            throw new IllegalArgumentException("maxPollRecords has to be positive, and a group needs an assignor");
        }
        if (assignors.stream().map(Assignor::name).distinct().count() != assignors.size()) {
            throw new IllegalArgumentException("an assignor is named twice");
        }
    }

    /** Checks settings that depend on each other; a program may set them in any order. */
    void checkTogether() {
        if (heartbeatInterval.compareTo(sessionTimeout) >= 0) {
            throw new IllegalArgumentException("heartbeatInterval has to be below sessionTimeout, not "
                    + heartbeatInterval.toMillis() + " and " + sessionTimeout.toMillis() + " ms");
        }
    }

    String groupId() {
        return groupId;
    }

    String groupInstanceId() {
        return groupInstanceId;
    }

    boolean isStatic() {
        return !groupInstanceId.isEmpty();
    }

    String clientId() {
        return clientId;
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

    /** Returns how long a wait of a poll may last before the poll is noted again, so that long polls are no silence. */
    long sliceMs() {
        return Math.max(1, Math.min(1_000, maxPollInterval.toMillis() / 2));
    }

    boolean autoCommit() {
        return autoCommitInterval != null;
    }

    Duration autoCommitInterval() {
        return autoCommitInterval;
    }

    Duration apiTimeout() {
        return apiTimeout;
    }

    Duration metadataMaxAge() {
        return metadataMaxAge;
    }

    int maxPollRecords() {
        return maxPollRecords;
    }

    List<Assignor> assignors() {
        return assignors;
    }

    ConsumerConfig reading() {
        return reading;
    }
}
