package io.paceline.client;

import io.grpc.Deadline;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.FetchFormat;
import io.paceline.v1.FetchPartition;
import io.paceline.v1.FetchPartitionResult;
import io.paceline.v1.FetchRequest;
import io.paceline.v1.FetchResponse;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Supplier;

/** Reads assigned partitions from positions of its own, without a group. Use it from one thread at a time. */
public final class Consumer {
    private final Cluster cluster;
    private final Executor threads;
    private final Admin admin;
    private final ConsumerConfig config;
    private final Map<TopicPartition, Position> positions = new LinkedHashMap<>();
    /** Records that were read and not returned yet, in the order of each partition. */
    private final Deque<ConsumerRecord> buffered = new ArrayDeque<>();
    /** Counts fetches that have ended since the last look. */
    private final Semaphore arrived = new Semaphore(0);
    private final AtomicBoolean woken = new AtomicBoolean();

    Consumer(Cluster cluster, Executor threads, Admin admin, ConsumerConfig config) {
        this.cluster = cluster;
        this.threads = threads;
        this.admin = admin;
        this.config = config;
    }

    /**
     * Reads a partition from its beginning, its end, or a time. The first poll finds the offset, and reports a partition
     * that does not exist.
     */
    public void assign(String topic, int partition, OffsetSpec start) {
        put(new Position(topic, partition, 0, start));
    }

    /** Reads a partition from an offset. */
    public void assign(String topic, int partition, long offset) {
        put(new Position(topic, partition, offset, null));
    }

    /** Reads every partition that a topic has now from its beginning, its end, or a time. */
    public void assignAll(String topic, OffsetSpec start) {
        admin.describeTopic(topic).getPartitionsList().forEach(one -> assign(topic, one.getPartition(), start));
    }

    private void put(Position position) {
        if (position.partition < 0 || position.next < 0) {
            throw new IllegalArgumentException("partition and offset have to be 0 or more, not " + position.partition + " and "
                    + position.next);
        }
        positions.put(new TopicPartition(position.topic, position.partition), position);
        dropBuffered(new TopicPartition(position.topic, position.partition));
    }

    private void dropBuffered(TopicPartition partition) {
        buffered.removeIf(one -> one.topic().equals(partition.topic()) && one.partition() == partition.partition());
    }

    /** Continues after a committed position, or at a place where there is none. */
    void assign(TopicPartition partition, OffsetAndMetadata committed, OffsetSpec otherwise) {
        Position position = new Position(partition.topic(), partition.partition(),
                committed == null ? 0 : committed.offset(), committed == null ? otherwise : null);
        // The leader of the group has found it.
        position.isFound = true;
        position.epoch = committed == null ? null : committed.leaderEpoch();
        put(position);
    }

    /** Reads a partition no more. */
    void unassign(TopicPartition partition) {
        positions.remove(partition);
        dropBuffered(partition);
    }

    boolean isIdle() {
        return positions.isEmpty();
    }

    /**
     * Returns the positions after the records that {@code poll} has returned, as far as they are known. One that is out of
     * range, perhaps in a topic that was created again, is none: a group must not commit it.
     */
    Map<TopicPartition, OffsetAndMetadata> consumed() {
        Map<TopicPartition, OffsetAndMetadata> consumed = new TreeMap<>();
        positions.forEach((partition, at) -> {
            if (at.start == null && !at.isOutOfRange()) {
                consumed.put(partition, new OffsetAndMetadata(at.returned, at.epoch, ""));
            }
        });
        return consumed;
    }

    /** Returns the offset of the next record that {@code poll} returns of a partition; empty while it is not known. */
    public OptionalLong position(String topic, int partition) {
        Position found = positions.get(new TopicPartition(topic, partition));
        return found == null || found.start != null ? OptionalLong.empty() : OptionalLong.of(found.returned);
    }

    /** Waits until there are records or the time is over; then the list is empty. */
    public List<ConsumerRecord> poll(Duration timeout) {
        return poll(timeout, Integer.MAX_VALUE);
    }

    /**
     * Waits until there are records or the time is over; then the list is empty. It returns at most {@code limit} records
     * and keeps the others for the next poll.
     *
     * @throws TruncatedException when records that were read are not in the log any more
     * @throws PacelineException UNKNOWN_TOPIC_OR_PARTITION when brokers have said for some seconds that an assigned
     *     partition does not exist, REQUEST_TIMED_OUT when a partition could not be read for {@code apiTimeout},
     *     OFFSET_OUT_OF_RANGE with {@link ResetPolicy#ERROR}, and any failure that no retry can mend; the next poll tries
     *     again
     */
    public List<ConsumerRecord> poll(Duration timeout, int limit) {
        if (positions.isEmpty()) {
            throw new IllegalStateException("the consumer has no partitions: call assign first");
        }
        Deadline deadline = Retry.after(timeout);
        while (true) {
            if (!buffered.isEmpty()) {
                return give(limit);
            }
            startFetches();
            RuntimeException failure = collect();
            if (failure != null) {
                throw failure;
            }
            if (buffered.isEmpty() && !awaitFetch(deadline)) {
                return List.of();
            }
        }
    }

    /** Hands out records of the buffer and moves the positions that the caller sees. */
    private List<ConsumerRecord> give(int limit) {
        List<ConsumerRecord> given = new ArrayList<>();
        while (given.size() < limit && !buffered.isEmpty()) {
            ConsumerRecord record = buffered.remove();
            given.add(record);
            positions.get(new TopicPartition(record.topic(), record.partition())).returned = record.offset() + 1;
        }
        return given;
    }

    /** Starts a fetch in every partition without one; it may outlive this poll, and a later one takes its records. */
    private void startFetches() {
        long now = System.nanoTime();
        for (Position at : positions.values()) {
            if (at.fetch == null && at.pausedUntilNanos - now <= 0) {
                Supplier<Position.Fetched> fetch = at.start == null ? fetch(at) : lookUp(at, at.start);
                at.fetch = CompletableFuture.supplyAsync(() -> at.timed(fetch), threads);
                at.fetch.whenComplete((fetched, failure) -> arrived.release());
            }
        }
    }

    /** Waits for the next fetch to end, or for the end of a pause; returns false at the deadline or after {@link #wake}. */
    private boolean awaitFetch(Deadline deadline) {
        long now = System.nanoTime();
        long waitNanos = deadline.timeRemaining(TimeUnit.NANOSECONDS);
        if (waitNanos <= 0) {
            return false;
        }
        for (Position at : positions.values()) {
            if (at.fetch == null) {
                waitNanos = Math.min(waitNanos, Math.max(at.pausedUntilNanos - now, 0));
            }
        }
        try {
            if (arrived.tryAcquire(waitNanos, TimeUnit.NANOSECONDS)) {
                arrived.drainPermits();
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return false;
        }
        return !woken.getAndSet(false);
    }

    /** Ends the wait of a poll of another thread, or else of the next poll. */
    void wake() {
        woken.set(true);
        arrived.release();
    }

    /**
     * Moves the records of finished fetches to the buffer. It returns a failure for the caller, or null. The failure goes
     * before records, which the next poll returns: behind partitions that always have records it would wait for ever.
     */
    private RuntimeException collect() {
        for (Position at : positions.values()) {
            if (at.fetch != null && at.fetch.isDone()) {
                RuntimeException failure = take(at);
                if (failure != null) {
                    return failure;
                }
            }
        }
        return null;
    }

    /** Takes the outcome of a partition's fetch; returns its failure unless a later fetch may mend it. */
    private RuntimeException take(Position at) {
        CompletableFuture<Position.Fetched> finished = at.fetch;
        at.fetch = null;
        try {
            buffered.addAll(at.accept(finished.join()));
            at.succeeded();
            return null;
        } catch (CompletionException | TruncatedException | PacelineException error) {
            boolean isFetch = error instanceof CompletionException;
            RuntimeException failure = isFetch && error.getCause() instanceof RuntimeException cause ? cause : error;
            if (!(failure instanceof PacelineException known)) {
                return failure;
            }
            if (known.code() == ErrorCode.ERROR_CODE_OFFSET_OUT_OF_RANGE && config.reset() != ResetPolicy.ERROR) {
                at.start = config.reset() == ResetPolicy.LATEST ? OffsetSpec.latest() : OffsetSpec.earliest();
                at.epoch = null;
                at.topicId = "";
                at.warnings.log(known);
                return null;
            }
            if (!known.retriable()) {
                return failure;
            }
            return at.failed(known, config.apiTimeout());
        }
    }

    private Supplier<Position.Fetched> lookUp(Position at, OffsetSpec start) {
        return () -> {
            Deadline deadline = Retry.after(cluster.requestTimeout());
            // The end comes first: a record that is written between the calls is not skipped.
            boolean isTime = start.spec == io.paceline.v1.OffsetSpec.OFFSET_SPEC_TIMESTAMP;
            long end = isTime ? listOffset(at, OffsetSpec.latest(), deadline).orElseThrow() : 0;
            OptionalLong offset = listOffset(at, start, deadline);
            return new Position.Fetched(offset.orElse(end), null, 0, "");
        };
    }

    private OptionalLong listOffset(Position at, OffsetSpec place, Deadline deadline) {
        return cluster.onLeader(deadline, at.topic, at.partition, route -> {
            at.isFound = true;
            return Admin.listOffset(at.topic, at.partition, place, route);
        });
    }

    private Supplier<Position.Fetched> fetch(Position at) {
        String topic = at.topic;
        int partition = at.partition;
        String topicId = at.topicId;
        String operation = "reading " + topic + "/" + partition + " from offset " + at.next;
        FetchPartition.Builder from = FetchPartition.newBuilder()
                .setTopic(topic).setPartition(partition).setFetchOffset(at.next).setMaxBytes(config.maxBytes());
        if (at.epoch != null) {
            from.setLastFetchedEpoch(at.epoch);
        }
        return () -> {
            Deadline deadline = Retry.after(config.maxWait().plus(cluster.requestTimeout()));
            return cluster.onLeader(deadline, topic, partition, route -> {
                at.isFound = true;
                from.setTopicId(route.topicId()).setCurrentLeaderEpoch(route.leader().epoch());
                FetchRequest request = FetchRequest.newBuilder()
                        .setMaxWaitMs((int) config.maxWait().toMillis()).setMinBytes(1).setMaxBytes(config.maxBytes())
                        .setFormat(FetchFormat.FETCH_FORMAT_RECORDS).addPartitions(from).build();
                FetchResponse answer = Cluster.call(operation, () -> route.log().fetch(request));
                if (answer.getPartitionsCount() != 1) {
                    throw Failures.of(operation, ErrorCode.ERROR_CODE_UNKNOWN_SERVER_ERROR,
                            "the answer does not hold one partition");
                }
                FetchPartitionResult result = answer.getPartitions(0);
                if (result.hasError()) {
                    Failures.throwPartition(operation, result.getError());
                }
                // Only an answer proves that the topic has this id now: metadata may be those of a deleted topic.
                if (!topicId.isEmpty() && !topicId.equals(route.topicId())) {
                    throw Failures.of(operation, ErrorCode.ERROR_CODE_OFFSET_OUT_OF_RANGE,
                            "the topic was deleted and created again");
                }
                return new Position.Fetched(0, result, route.leader().epoch(), route.topicId());
            });
        };
    }
}
