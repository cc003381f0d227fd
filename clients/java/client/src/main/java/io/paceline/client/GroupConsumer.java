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
 * Reads topics as a member of a group: the members share the partitions, and the group keeps the offsets.
 *
 * <p>Use it from one thread at a time. {@code poll} takes part in rebalances; a thread of its own keeps the membership alive
 * in between, until {@link #close()} or until {@code poll} was not called for {@code maxPollInterval}.
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
    /** Partitions that are not read yet because their committed offset is not known. */
    private final Set<TopicPartition> awaitingOffset = new TreeSet<>();
    private GroupHeartbeats heartbeats;
    private long nextCommitNanos;
    private boolean closed;

    GroupConsumer(Cluster cluster, Executor threads, Admin admin, GroupConfig config) {
        config.checkTogether();
        this.cluster = cluster;
        this.config = config;
        reader = new Consumer(cluster, threads, admin, config.reading());
        coordinator = new GroupCoordinator(cluster, config.groupId());
        member = new MemberState(reader::wake);
        membership = new GroupMembership(config, member, coordinator, cluster, new Host(), warnings);
        offsets = new GroupOffsets(config, coordinator, member, threads);
        nextCommitNanos = System.nanoTime() + (config.autoCommit() ? config.autoCommitInterval().toNanos() : 0);
    }

    /** Shares the partitions of topics with the other members of the group. The next polls join the group. */
    public void subscribe(Collection<String> topics) {
        subscribe(topics, new ConsumerRebalanceListener() {});
    }

    /**
     * Shares the partitions of topics with the other members of the group. The next polls join the group; they call the
     * listener when partitions come and go. A topic that does not exist yet is read as soon as it does.
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

    /** Leaves the group and reads nothing. */
    public void unsubscribe() {
        requireOpen();
        if (!member.topics().isEmpty()) {
            membership.leave(config.apiTimeout());
            membership.subscribe(Set.of(), new ConsumerRebalanceListener() {});
        }
    }

    /**
     * Waits until there are records or the time is over; then the list is empty. Joins the group and takes part in its
     * rebalances, and commits when an automatic commit is due.
     *
     * @throws FencedInstanceIdException when another process has taken over the group instance id
     * @throws TruncatedException when records that were read are not in the log any more
     * @throws PacelineException when the coordinator refuses this member for good, OFFSET_OUT_OF_RANGE without a position
     *     and with {@link ResetPolicy#ERROR}, and any failure that no retry can mend
     * @throws RuntimeException what the listener throws; the next poll continues
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
            return reader.poll(slice, config.maxPollRecords());
        }
        member.awaitRebalance(slice);
        return List.of();
    }

    /** Begins to read partitions whose committed offset can be learned; the others wait for a later poll. */
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
        ResetPolicy reset = config.reading().reset();
        for (TopicPartition partition : Set.copyOf(awaitingOffset)) {
            if (!committed.containsKey(partition) && reset == ResetPolicy.ERROR) {
                throw Failures.of("reading " + partition, ErrorCode.ERROR_CODE_OFFSET_OUT_OF_RANGE,
                        "group " + config.groupId() + " has committed no offset, and the reset policy is ERROR");
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
        nextCommitNanos = now + config.autoCommitInterval().toNanos();
        Map<TopicPartition, OffsetAndMetadata> consumed = reader.consumed();
        if (!consumed.isEmpty()) {
            // The next commit, a moment later, makes up for one that failed.
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

    /** Commits the positions after all records that {@code poll} has returned, and waits. */
    public void commitSync() {
        commitSync(reader.consumed());
    }

    /**
     * Commits offsets and waits. An offset is the next one to read: that of the last record read, plus 1.
     *
     * @throws CommitFailedException when this member has lost its place in the group
     * @throws RebalanceInProgressException when the group takes no offsets at the moment
     * @throws PacelineException when the coordinator refuses, or the time is over; then with the last cause
     */
    public void commitSync(Map<TopicPartition, OffsetAndMetadata> positions) {
        commitSync(positions, config.apiTimeout());
    }

    /** Commits offsets and waits, at most so long. */
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

    /** Returns the committed offsets of the group; a partition without one is not in the map. */
    public Map<TopicPartition, OffsetAndMetadata> committed(Collection<TopicPartition> partitions) {
        requireOpen();
        return offsets.fetch(partitions, Retry.after(config.apiTimeout()));
    }

    /** Returns the partitions that this member owns now. */
    public Set<TopicPartition> assignment() {
        return new TreeSet<>(assignment);
    }

    /** Returns the offset of the next record that {@code poll} returns of a partition; empty while it is not known. */
    public OptionalLong position(TopicPartition partition) {
        return reader.position(partition.topic(), partition.partition());
    }

    /** Continues a partition that this member owns at another offset. */
    public void seek(TopicPartition partition, long offset) {
        if (!assignment.contains(partition)) {
            throw new IllegalStateException(partition + " is not assigned to this member");
        }
        awaitingOffset.remove(partition);
        reader.assign(partition, new OffsetAndMetadata(offset), null);
    }

    /** Returns the id of this member; empty while it has none. */
    public String memberId() {
        return member.identity().memberId();
    }

    /** Returns the generation of the group that this member is in; -1 while it is in none. */
    public int generation() {
        return member.identity().generation();
    }

    /** Waits for commits, leaves the group, and ends the consumer, within the time-out of the configuration. */
    @Override
    public void close() {
        close(config.apiTimeout());
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

    /** Waits for earlier commits, then commits if commits are automatic. It does not throw. */
    private void endCommits(Duration timeout) {
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

    private final class Host implements GroupHost {
        @Override
        public Set<TopicPartition> assignment() {
            return GroupConsumer.this.assignment();
        }

        @Override
        public void take(Set<TopicPartition> partitions) {
            assignment.forEach(reader::unassign);
            assignment.clear();
            assignment.addAll(partitions);
            awaitingOffset.clear();
            awaitingOffset.addAll(partitions);
        }

        @Override
        public void commitBeforeRevocation(Duration timeout) {
            endCommits(timeout);
        }
    }
}
