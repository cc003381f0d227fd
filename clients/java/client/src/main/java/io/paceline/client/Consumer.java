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

/** Reads assigned partitions and keeps their positions itself, without a group. Not safe for concurrent use. */
public final class Consumer {
    private final Cluster cluster;
    private final Executor threads;
    private final Admin admin;
    private final ConsumerConfig config;
    private final Map<TopicPartition, Position> positions = new LinkedHashMap<>();
    /** Fetched records that {@code poll} has not returned yet; those of one partition are in order. */
    private final Deque<ConsumerRecord> buffered = new ArrayDeque<>();
    /** Gets a permit when a fetch ends, and from {@link #wake}. */
    private final Semaphore arrived = new Semaphore(0);
    private final AtomicBoolean woken = new AtomicBoolean();

    Consumer(Cluster cluster, Executor threads, Admin admin, ConsumerConfig config) {
        this.cluster = cluster;
        this.threads = threads;
        this.admin = admin;
        this.config = config;
    }

    /**
     * Reads a partition from its beginning, its end, or a time. {@code poll} looks up the offset, and reports a partition that
     * does not exist.
     */
    public void assign(String topic, int partition, OffsetSpec start) {
        put(new Position(topic, partition, 0, start));
    }

    /** Reads a partition from an offset on. */
    public void assign(String topic, int partition, long offset) {
        put(new Position(topic, partition, offset, null));
    }

    /** Describes a topic and assigns its present partitions, to read them from their beginning, their end, or a time. */
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

    /** Reads a partition from its committed offset, or from {@code otherwise} if there is none. */
    void assign(TopicPartition partition, OffsetAndMetadata committed, OffsetSpec otherwise) {
        Position position = new Position(partition.topic(), partition.partition(),
                committed == null ? 0 : committed.offset(), committed == null ? otherwise : null);
        // The leader of the group assigns only partitions that exist.
        position.isFound = true;
        position.epoch = committed == null ? null : committed.leaderEpoch();
        put(position);
    }

    /** Stops reading a partition and drops its buffered records. */
    void unassign(TopicPartition partition) {
        positions.remove(partition);
        dropBuffered(partition);
    }

    boolean isIdle() {
        return positions.isEmpty();
    }

    /**
     * Returns the positions after the records that {@code poll} has returned. Omits a position that is not known yet, and one
     * that is out of range, for example in a re-created topic: a group must not commit it.
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

    /** Returns the offset of the next record that {@code poll} returns for a partition; empty while it is not known. */
    public OptionalLong position(String topic, int partition) {
        Position found = positions.get(new TopicPartition(topic, partition));
        return found == null || found.start != null ? OptionalLong.empty() : OptionalLong.of(found.returned);
    }

    /** Calls {@link #poll(Duration, int)} without a limit. */
    public List<ConsumerRecord> poll(Duration timeout) {
        return poll(timeout, Integer.MAX_VALUE);
    }

    /**
     * Waits for records and returns them, or an empty list after the time-out. Returns at most {@code limit} records and keeps
     * the others for the next poll.
     *
     * @throws TruncatedException when records that were read are no longer in the log
     * @throws PacelineException for any error that is not retriable; UNKNOWN_TOPIC_OR_PARTITION when brokers have not known an
     *     assigned partition for five seconds; REQUEST_TIMED_OUT when a partition could not be read for
     *     {@link ConsumerConfig#apiTimeout}; with {@link ResetPolicy#ERROR} OFFSET_OUT_OF_RANGE. The next poll tries again
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

    /** Removes records from the buffer, and advances the positions that the caller sees. */
    private List<ConsumerRecord> give(int limit) {
        List<ConsumerRecord> given = new ArrayList<>();
        while (given.size() < limit && !buffered.isEmpty()) {
            ConsumerRecord record = buffered.remove();
            given.add(record);
            positions.get(new TopicPartition(record.topic(), record.partition())).returned = record.offset() + 1;
        }
        return given;
    }

    /** Starts a fetch for every partition without one. A fetch may outlast this poll; a later poll takes its records. */
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

    /** Waits until a fetch or a pause ends; returns false after the deadline, an interrupt, or {@link #wake}. */
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

    /** Ends the wait of the poll in another thread; if there is none, the next poll does not wait. */
    void wake() {
        woken.set(true);
        arrived.release();
    }

    /**
     * Moves the records of finished fetches to the buffer. Returns a failure for the caller, or null. The poll throws it and
     * leaves the records to the next poll; otherwise partitions that always have records would hide the failure for ever.
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

    /** Applies the outcome of a partition's fetch; returns its failure, or null if it succeeded or the next fetch may succeed. */
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
            // Look up the end first: otherwise a record written between the two calls would be skipped.
            boolean isTime = start.spec == io.paceline.v1.OffsetSpec.OFFSET_SPEC_TIMESTAMP;
            Position.Fetched none = new Position.Fetched(0, null, 0, "");
            Position.Fetched end = isTime ? listOffset(at, OffsetSpec.latest(), none, deadline) : none;
            return listOffset(at, start, end, deadline);
        };
    }

    /** Looks up an offset once; returns {@code otherwise} if there is no record at that place. */
    private Position.Fetched listOffset(Position at, OffsetSpec place, Position.Fetched otherwise, Deadline deadline) {
        return cluster.onLeader(deadline, at.topic, at.partition, route -> {
            at.isFound = true;
            OptionalLong offset = Admin.listOffset(at.topic, at.partition, place, route);
            return offset.isPresent() ? new Position.Fetched(offset.getAsLong(), null, 0, route.topicId()) : otherwise;
        });
    }

    private Supplier<Position.Fetched> fetch(Position at) {
        String topic = at.topic;
        int partition = at.partition;
        String topicId = at.topicId;
        OffsetSpec lookedUp = at.lookedUp;
        String operation = "reading " + topic + "/" + partition + " from offset " + at.next;
        FetchPartition.Builder from = FetchPartition.newBuilder()
                .setTopic(topic).setPartition(partition).setFetchOffset(at.next).setMaxBytes(config.maxBytes());
        if (at.epoch != null) {
            from.setLastFetchedEpoch(at.epoch);
        }
        return () -> {
            Deadline deadline = Retry.after(config.maxWait().plus(cluster.requestTimeout()));
            Position.Fetched fetched = cluster.onLeader(deadline, topic, partition, route -> {
                at.isFound = true;
                from.setTopicId(route.topicId()).setCurrentLeaderEpoch(route.leader().epoch());
                FetchRequest request = FetchRequest.newBuilder()
                        .setMaxWaitMs((int) config.maxWait().toMillis()).setMinBytes(1).setMaxBytes(config.maxBytes())
                        .setFormat(FetchFormat.FETCH_FORMAT_RECORDS).addPartitions(from).build();
                FetchResponse answer = Cluster.call(operation, () -> route.log().fetch(request));
                if (answer.getPartitionsCount() != 1) {
                    throw Failures.of(operation, ErrorCode.ERROR_CODE_UNKNOWN_SERVER_ERROR,
                            "the response has " + answer.getPartitionsCount() + " partitions instead of one");
                }
                FetchPartitionResult result = answer.getPartitions(0);
                // Only a response proves that the topic has this id now: the metadata may describe a deleted topic.
                boolean isOtherTopic = !topicId.isEmpty() && !topicId.equals(route.topicId());
                boolean isOutOfRange = result.getError().getCode() == ErrorCode.ERROR_CODE_OFFSET_OUT_OF_RANGE;
                if (isOtherTopic && lookedUp != null && (isOutOfRange || !result.hasError())) {
                    return null;
                }
                if (result.hasError()) {
                    Failures.throwPartition(operation, result.getError());
                }
                if (isOtherTopic) {
                    throw Failures.of(operation, ErrorCode.ERROR_CODE_OFFSET_OUT_OF_RANGE,
                            "the topic was deleted and created again");
                }
                return new Position.Fetched(0, result, route.leader().epoch(), route.topicId());
            });
            // The topic was re-created between look-up and first fetch: look up the offset in the new topic.
            return fetched == null ? lookUp(at, lookedUp).get() : fetched;
        };
    }
}
