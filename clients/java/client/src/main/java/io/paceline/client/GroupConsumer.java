package io.paceline.client;

import io.grpc.Deadline;
import io.paceline.v1.ErrorCode;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;

/**
 * Reads topics as a member of a consumer group, which assigns the partitions to its members and stores their offsets.
 *
 * <p>Not safe for concurrent use. {@code poll} takes part in rebalances. Between polls a background thread sends heartbeats,
 * until {@link #close()} or until {@code poll} has not been called for {@code maxPollInterval}.
 */
public final class GroupConsumer implements AutoCloseable {
    private static final Duration FETCH_TIMEOUT = Duration.ofSeconds(5);
    private static final Duration SHORTEST_FETCH = Duration.ofSeconds(1);

    private final Cluster cluster;
    private final GroupConfig config;
    private final Consumer reader;
    private final GroupCoordinator coordinator;
    private final MemberState member;
    private final GroupMembership membership;
    private final GroupOffsets offsets;
    private final Warnings warnings = new Warnings();
    private final Set<TopicPartition> assignment = new TreeSet<>();
    /** Assigned partitions whose committed offset is still unknown, so they are not read yet. */
    private final Set<TopicPartition> awaitingOffset = new TreeSet<>();
    private GroupHeartbeats heartbeats;
    private long nextCommitNanos;
    private boolean closed;

    GroupConsumer(Cluster cluster, Executor threads, Admin admin, GroupConfig config) {
        config.checkTogether();
        this.cluster = cluster;
        this.config = config;
        reader = new Consumer(cluster, threads, admin, config.reading);
        coordinator = new GroupCoordinator(cluster, config.groupId);
        member = new MemberState(reader::wake);
        membership = new GroupMembership(config, member, coordinator, cluster, this, warnings);
        offsets = new GroupOffsets(config, coordinator, member, threads);
        nextCommitNanos = System.nanoTime() + (config.autoCommit() ? config.autoCommitInterval.toNanos() : 0);
    }

    /** Replaces the subscription by these topics. The next polls join the group. */
    public void subscribe(Collection<String> topics) {
        subscribe(topics, new ConsumerRebalanceListener() {});
    }

    /**
     * Replaces the subscription by these topics. The next polls join the group and call the listener when partitions are
     * assigned or revoked. They report a topic that brokers have not known for five seconds. A topic that is deleted later is
     * read again after it is re-created.
     */
    public void subscribe(Collection<String> topics, ConsumerRebalanceListener listener) {
        requireOpen();
        if (topics.isEmpty()) {
            throw new IllegalArgumentException("topics is empty: name a topic, or call unsubscribe");
        }
        membership.subscribe(new TreeSet<>(topics), listener);
        if (heartbeats == null) {
            heartbeats = new GroupHeartbeats(config, member, membership, coordinator, cluster, warnings);
        }
    }

    /** Leaves the group and ends the subscription. */
    public void unsubscribe() {
        requireOpen();
        if (!member.topics().isEmpty()) {
            membership.leave(config.apiTimeout);
            membership.subscribe(Set.of(), new ConsumerRebalanceListener() {});
        }
    }

    /**
     * Waits for records and returns them, or an empty list after the timeout. Joins the group, takes part in its rebalances,
     * and commits when an automatic commit is due.
     *
     * @throws FencedInstanceIdException when another process has taken over the group instance id
     * @throws TruncatedException when records that were read are no longer in the log
     * @throws PacelineException for any error that is not retriable, from the coordinator or a fetch;
     *     UNKNOWN_TOPIC_OR_PARTITION when a topic of a new subscription does not exist; REQUEST_TIMED_OUT when a partition
     *     could not be read for {@link ConsumerConfig#apiTimeout}; with {@link ResetPolicy#ERROR} OFFSET_OUT_OF_RANGE when a
     *     position is missing or out of range. The next poll tries again
     * @throws RuntimeException an exception of the listener; the next poll continues
     */
    public List<ConsumerRecord> poll(Duration timeout) {
        requireOpen();
        if (member.topics().isEmpty()) {
            throw new IllegalStateException("the consumer has no topics: call subscribe first");
        }
        Deadline deadline = Retry.after(timeout);
        while (true) {
            if (membership.poll(deadline)) {
                beginAtCommitted(deadline);
                commitWhenDue();
                List<ConsumerRecord> records = read(deadline);
                if (!records.isEmpty()) {
                    return records;
                }
            }
            if (deadline.isExpired() || Thread.currentThread().isInterrupted()) {
                return List.of();
            }
        }
    }

    private List<ConsumerRecord> read(Deadline deadline) {
        Duration slice = Duration.ofMillis(Math.min(Retry.leftMs(deadline), config.sliceMs()));
        if (!reader.isIdle()) {
            return reader.poll(slice, config.maxPollRecords);
        }
        member.awaitRebalance(slice);
        return List.of();
    }

    /** Fetches committed offsets and starts to read their partitions; after a retriable failure the next poll tries again. */
    private void beginAtCommitted(Deadline deadline) {
        if (awaitingOffset.isEmpty()) {
            return;
        }
        long timeoutMs = Math.min(Math.max(Retry.leftMs(deadline), SHORTEST_FETCH.toMillis()), FETCH_TIMEOUT.toMillis());
        Map<TopicPartition, OffsetAndMetadata> committed;
        try {
            committed = offsets.fetch(awaitingOffset, Retry.after(Duration.ofMillis(timeoutMs)));
        } catch (PacelineException failure) {
            if (!failure.retriable()) {
                throw failure;
            }
            warnings.add(failure);
            return;
        }
        ResetPolicy reset = config.reading.reset();
        for (TopicPartition partition : Set.copyOf(awaitingOffset)) {
            if (!committed.containsKey(partition) && reset == ResetPolicy.ERROR) {
                throw Failures.of("reading " + partition, ErrorCode.ERROR_CODE_OFFSET_OUT_OF_RANGE,
                        "group " + config.groupId + " has committed no offset, and the reset policy is ERROR");
            }
            awaitingOffset.remove(partition);
            reader.assign(partition, committed.get(partition),
                    reset == ResetPolicy.LATEST ? OffsetSpec.latest() : OffsetSpec.earliest());
        }
    }

    private void commitWhenDue() {
        long now = System.nanoTime();
        if (!config.autoCommit() || now - nextCommitNanos < 0 || offsets.isBusy()) {
            return;
        }
        nextCommitNanos = now + config.autoCommitInterval.toNanos();
        Map<TopicPartition, OffsetAndMetadata> consumed = reader.consumed();
        if (!consumed.isEmpty()) {
            // A failure is only logged: the next automatic commit has these offsets or later ones.
            offsets.commitAsync(consumed).exceptionally(failure -> {
                Throwable cause = failure instanceof CompletionException ? failure.getCause() : failure;
                if (cause instanceof PacelineException known && known.retriable()) {
                    warnings.add(cause);
                } else {
                    warnings.log(cause);
                }
                return null;
            });
        }
    }

    // Offsets

    /** Commits the positions after all records that {@code poll} has returned, and waits for the response. */
    public void commitSync() {
        commitSync(reader.consumed());
    }

    /**
     * Commits offsets and waits for the response. A committed offset is the next offset to read: the last record's plus 1.
     *
     * @throws CommitFailedException when this consumer is not a member of the group's current generation
     * @throws RebalanceInProgressException while the group rebalances and accepts no offsets
     * @throws PacelineException when the coordinator refuses the commit, or with the last cause after the timeout
     */
    public void commitSync(Map<TopicPartition, OffsetAndMetadata> positions) {
        commitSync(positions, config.apiTimeout);
    }

    /** Commits offsets and waits for the response, at most for {@code timeout}. */
    public void commitSync(Map<TopicPartition, OffsetAndMetadata> positions, Duration timeout) {
        requireOpen();
        if (!positions.isEmpty()) {
            offsets.commit(positions, Retry.after(timeout));
        }
    }

    /** Commits the positions after all records that {@code poll} has returned, without waiting. */
    public CompletableFuture<Void> commitAsync() {
        return commitAsync(reader.consumed());
    }

    /** Commits offsets without waiting. Commits reach the group in the order of the calls. */
    public CompletableFuture<Void> commitAsync(Map<TopicPartition, OffsetAndMetadata> positions) {
        requireOpen();
        return positions.isEmpty() ? CompletableFuture.completedFuture(null) : offsets.commitAsync(positions);
    }

    /** Returns the committed offsets of the group; a partition without a committed offset is not in the map. */
    public Map<TopicPartition, OffsetAndMetadata> committed(Collection<TopicPartition> partitions) {
        requireOpen();
        return offsets.fetch(partitions, Retry.after(config.apiTimeout));
    }

    /** Returns the partitions that this member owns now. */
    public Set<TopicPartition> assignment() {
        return new TreeSet<>(assignment);
    }

    /** Returns the offset of the next record that {@code poll} will return for a partition; empty before it is known. */
    public OptionalLong position(TopicPartition partition) {
        return reader.position(partition.topic(), partition.partition());
    }

    /** Moves the position of a partition that this member owns. */
    public void seek(TopicPartition partition, long offset) {
        if (!assignment.contains(partition)) {
            throw new IllegalStateException(partition + " is not assigned to this member");
        }
        awaitingOffset.remove(partition);
        reader.assign(partition, new OffsetAndMetadata(offset), null);
    }

    /** Returns the member id that the coordinator has assigned; empty before the first join. */
    public String memberId() {
        return member.identity().memberId();
    }

    /** Returns the current generation of the group; -1 while this consumer is not a member. */
    public int generation() {
        return member.identity().generation();
    }

    /** Calls {@link #close(Duration)} with the timeout of the configuration. */
    @Override
    public void close() {
        close(config.apiTimeout);
    }

    /**
     * Waits for earlier commits, commits if commits are automatic, leaves the group, and ends the consumer. A static member
     * does not leave.
     */
    public void close(Duration timeout) {
        if (closed) {
            return;
        }
        try {
            if (member.topics().isEmpty()) {
                endCommits(timeout);
            } else {
                membership.leave(timeout);
            }
        } finally {
            closed = true;
            if (heartbeats != null) {
                heartbeats.close();
            }
        }
    }

    /** Replaces the partitions of the member. */
    void take(Set<TopicPartition> partitions) {
        assignment.forEach(reader::unassign);
        assignment.clear();
        assignment.addAll(partitions);
        awaitingOffset.clear();
        awaitingOffset.addAll(partitions);
    }

    /** Waits for earlier commits, then commits if commits are automatic. It does not throw. */
    void endCommits(Duration timeout) {
        Deadline deadline = Retry.after(timeout);
        try {
            offsets.awaitEarlier(deadline);
            Map<TopicPartition, OffsetAndMetadata> consumed = reader.consumed();
            if (config.autoCommit() && !consumed.isEmpty() && generation() >= 0) {
                offsets.commit(consumed, deadline);
            }
        } catch (PacelineException failure) {
            warnings.log(failure);
        }
    }

    private void requireOpen() {
        if (closed) {
            throw new IllegalStateException("the consumer is closed");
        }
    }
}
