package io.paceline.client;

import io.grpc.Deadline;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.FetchFormat;
import io.paceline.v1.FetchPartition;
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
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;

/** Reads assigned partitions from positions of its own, without a group. Use it from one thread at a time. */
public final class Consumer {
    private final Cluster cluster;
    private final Executor threads;
    private final Admin admin;
    private final ConsumerConfig config;
    private final Map<String, Position> positions = new LinkedHashMap<>();
    /** Records that were read and not returned yet, in the order of each partition. */
    private final Deque<ConsumerRecord> buffered = new ArrayDeque<>();

    Consumer(Cluster cluster, Executor threads, Admin admin, ConsumerConfig config) {
        this.cluster = cluster;
        this.threads = threads;
        this.admin = admin;
        this.config = config;
    }

    /** Reads a partition from its beginning, its end, or a time. The offset is found with the first poll. */
    public void assign(String topic, int partition, OffsetSpec start) {
        put(new Position(topic, partition, 0, start));
    }

    /** Reads a partition from an offset. */
    public void assign(String topic, int partition, long offset) {
        put(new Position(topic, partition, offset, null));
    }

    /** Reads every partition of a topic from its beginning, its end, or a time. */
    public void assignAll(String topic, OffsetSpec start) {
        admin.describeTopic(topic).getPartitionsList().forEach(one -> assign(topic, one.getPartition(), start));
    }

    private void put(Position position) {
        positions.put(key(position.topic, position.partition), position);
        buffered.removeIf(one -> one.topic().equals(position.topic) && one.partition() == position.partition);
    }

    private static String key(String topic, int partition) {
        return topic + "/" + partition;
    }

    /** Returns the offset of the next record that {@code poll} returns of a partition; empty while it is not known. */
    public OptionalLong position(String topic, int partition) {
        Position found = positions.get(key(topic, partition));
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
     * @throws PacelineException OFFSET_OUT_OF_RANGE with {@link ResetPolicy#ERROR}, and any failure that no retry can mend
     */
    public List<ConsumerRecord> poll(Duration timeout, int limit) {
        if (positions.isEmpty()) {
            throw new IllegalStateException("the consumer has no partitions: call assign first");
        }
        Deadline deadline = Retry.after(timeout);
        long pauseMs = Retry.FIRST_PAUSE_MS;
        while (true) {
            if (!buffered.isEmpty()) {
                return give(limit);
            }
            RuntimeException failure = pollOnce(deadline);
            if (!buffered.isEmpty()) {
                // A truncation would not be found a second time: it goes first. Other failures come again.
                if (failure instanceof TruncatedException) {
                    throw failure;
                }
                continue;
            }
            if (failure != null && !isRetriable(failure)) {
                throw failure;
            }
            if (deadline.isExpired() || Thread.currentThread().isInterrupted()) {
                return List.of();
            }
            if (failure == null) {
                pauseMs = Retry.FIRST_PAUSE_MS;
                continue;
            }
            Retry.sleep(deadline, Math.max(pauseMs, ((PacelineException) failure).details().retryAfter().toMillis()));
            pauseMs = Math.min(pauseMs * 3 / 2, Retry.LONGEST_PAUSE_MS);
        }
    }

    /** Hands out records of the buffer and moves the positions that the caller sees. */
    private List<ConsumerRecord> give(int limit) {
        List<ConsumerRecord> given = new ArrayList<>();
        while (given.size() < limit && !buffered.isEmpty()) {
            ConsumerRecord record = buffered.remove();
            given.add(record);
            positions.get(key(record.topic(), record.partition())).returned = record.offset() + 1;
        }
        return given;
    }

    /** Fetches from the leader of every partition at the same time; returns the failure that matters most, or null. */
    private RuntimeException pollOnce(Deadline deadline) {
        List<CompletableFuture<List<ConsumerRecord>>> fetches = new ArrayList<>();
        for (Position position : positions.values()) {
            Executor where = positions.size() == 1 ? Runnable::run : threads;
            fetches.add(CompletableFuture.supplyAsync(() -> fetch(position, deadline), where));
        }
        RuntimeException worst = null;
        for (CompletableFuture<List<ConsumerRecord>> one : fetches) {
            try {
                buffered.addAll(one.join());
            } catch (java.util.concurrent.CompletionException error) {
                RuntimeException failure = error.getCause() instanceof RuntimeException cause ? cause : error;
                if (worst == null || failure instanceof TruncatedException
                        || isRetriable(worst) && !isRetriable(failure)) {
                    worst = failure;
                }
            }
        }
        return worst;
    }

    private static boolean isRetriable(RuntimeException failure) {
        return failure instanceof PacelineException known && known.retriable();
    }

    private List<ConsumerRecord> fetch(Position at, Deadline deadline) {
        if (at.start != null) {
            OptionalLong offset = admin.listOffset(at.topic, at.partition, at.start, deadline);
            at.moveTo(offset.isPresent()
                    ? offset.getAsLong()
                    : admin.listOffset(at.topic, at.partition, OffsetSpec.latest(), deadline).orElseThrow());
        }
        String operation = "reading " + at.topic + "/" + at.partition + " from offset " + at.next;
        Deadline bound = deadline.minimum(Retry.after(config.maxWait().plus(cluster.requestTimeout())));
        try {
            return cluster.onLeader(bound, at.topic, at.partition, route -> {
                FetchRequest request = request(at, route, bound);
                FetchResponse answer = Cluster.call(operation, () -> route.log().fetch(request));
                if (answer.getPartitionsCount() != 1) {
                    throw Failures.of(operation, ErrorCode.ERROR_CODE_UNKNOWN_SERVER_ERROR,
                            "the answer does not hold one partition");
                }
                return at.accept(operation, answer.getPartitions(0), route.leader().epoch());
            });
        } catch (PacelineException failure) {
            if (failure.code() != ErrorCode.ERROR_CODE_OFFSET_OUT_OF_RANGE || config.reset() == ResetPolicy.ERROR) {
                throw failure;
            }
            at.start = config.reset() == ResetPolicy.LATEST ? OffsetSpec.latest() : OffsetSpec.earliest();
            at.epoch = null;
            return List.of();
        }
    }

    private FetchRequest request(Position at, Cluster.Route route, Deadline bound) {
        FetchPartition.Builder partition = FetchPartition.newBuilder()
                .setTopic(at.topic).setPartition(at.partition).setTopicId(route.topicId()).setFetchOffset(at.next)
                .setCurrentLeaderEpoch(route.leader().epoch()).setMaxBytes(config.maxBytes());
        if (at.epoch != null) {
            partition.setLastFetchedEpoch(at.epoch);
        }
        return FetchRequest.newBuilder()
                .setMaxWaitMs((int) Math.min(config.maxWait().toMillis(), Retry.serverWaitMs(bound)))
                .setMinBytes(1).setMaxBytes(config.maxBytes()).setFormat(FetchFormat.FETCH_FORMAT_RECORDS)
                .addPartitions(partition).build();
    }
}
