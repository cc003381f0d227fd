package io.paceline.client;

import com.google.protobuf.ByteString;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.FetchPartitionResult;
import io.paceline.v1.Record;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;

/** Where a consumer reads in one partition. */
final class Position {
    /** A new topic needs a moment to reach the brokers. */
    static final long NEW_TOPIC_NANOS = 5_000_000_000L;

    final String topic;
    final int partition;
    /** Offset to fetch next. */
    long next;
    /** Offset after the last record that was returned to the caller. */
    long returned;
    /** Place to look up before the first fetch; null once the offset is known. */
    OffsetSpec start;
    /** Leader epoch under which records were last read; null before the first. */
    Integer epoch;
    /** Id of the topic that the offsets belong to; empty until a fetch has confirmed it. */
    String topicId = "";
    /** The fetch under way; null while there is none. */
    CompletableFuture<Fetched> fetch;
    /** Says that brokers have known the partition since it was assigned. */
    volatile boolean isFound;
    long pausedUntilNanos = System.nanoTime();
    private long pauseMs = Retry.FIRST_PAUSE_MS;
    /** How long the last attempt took, and the pause before it. */
    private volatile long attemptNanos;
    private long pausedNanos;
    /** Time of attempts and pauses since the last success, and since the first answer that the partition does not exist. */
    private long failingNanos;
    private long absentNanos;
    /** Last failure since the last success, rather one with a reason than one without an answer in time. */
    private PacelineException failure;
    /** Says why nothing is read while fetches fail. */
    final Warnings warnings = new Warnings();

    Position(String topic, int partition, long offset, OffsetSpec start) {
        this.topic = topic;
        this.partition = partition;
        this.start = start;
        next = offset;
        returned = offset;
    }

    void moveTo(long offset) {
        next = offset;
        returned = offset;
        start = null;
    }

    /** Runs an attempt to read and measures its time. */
    Fetched timed(Supplier<Fetched> attempt) {
        long began = System.nanoTime();
        try {
            return attempt.get();
        } finally {
            attemptNanos = System.nanoTime() - began;
        }
    }

    /** Takes note of a success. */
    void succeeded() {
        isFound = true;
        pauseMs = Retry.FIRST_PAUSE_MS;
        startOver();
        warnings.clear();
    }

    private void startOver() {
        pausedNanos = 0;
        failingNanos = 0;
        absentNanos = 0;
        failure = null;
    }

    /**
     * Pauses before the next attempt, longer after every failure; returns the failure that the caller has to learn of, or
     * null while a later attempt may succeed. Time in which the program does not poll counts as no failure.
     */
    PacelineException failed(PacelineException cause, Duration limit) {
        long nanos = Math.max(pauseMs, cause.details().retryAfter().toMillis()) * 1_000_000;
        pausedUntilNanos = System.nanoTime() + nanos;
        pauseMs = Math.min(pauseMs * 3 / 2, Retry.LONGEST_PAUSE_MS);
        warnings.add(cause);
        boolean isAbsent = !isFound && cause.code() == ErrorCode.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION;
        failingNanos += pausedNanos + attemptNanos;
        if (isAbsent || absentNanos > 0) {
            absentNanos += pausedNanos + attemptNanos;
        }
        pausedNanos = nanos;
        if (failure == null || cause.code() != ErrorCode.ERROR_CODE_REQUEST_TIMED_OUT) {
            failure = cause;
        }
        PacelineException reported = null;
        if (isAbsent && absentNanos >= NEW_TOPIC_NANOS) {
            reported = cause;
        } else if (failingNanos / 1_000_000 >= Retry.millis(limit)) {
            reported = Failures.unread(topic + "/" + partition, limit, failure);
        }
        if (reported != null) {
            startOver();
        }
        return reported;
    }

    /**
     * What a fetch has found.
     *
     * @param offset the place that was looked up, when there is no result
     * @param result the answer for the partition, without an error; or null
     * @param leaderEpoch epoch of the leader that answered
     * @param topicId id of the topic that was read
     */
    record Fetched(long offset, FetchPartitionResult result, int leaderEpoch, String topicId) {}

    /** Says whether the broker has refused the offset; the next poll resets it. */
    boolean isOutOfRange() {
        return fetch != null && fetch.isDone() && fetch.handle((fetched, error) -> error != null
                && error.getCause() instanceof PacelineException known
                && known.code() == ErrorCode.ERROR_CODE_OFFSET_OUT_OF_RANGE).join();
    }

    /** Returns the records of a fetch and moves behind them. */
    List<ConsumerRecord> accept(Fetched fetched) {
        FetchPartitionResult result = fetched.result;
        if (result == null) {
            moveTo(fetched.offset);
            return List.of();
        }
        topicId = fetched.topicId;
        if (result.hasDivergingEpoch()) {
            long before = next;
            long end = result.getDivergingEpoch().getEndOffset();
            epoch = result.getDivergingEpoch().getEpoch();
            if (end >= before) {
                // Nothing that was read is missing; the next fetch names the epoch that the leader knows.
                return List.of();
            }
            moveTo(end);
            throw new TruncatedException(topic, partition, before, end);
        }
        List<ConsumerRecord> records = new ArrayList<>();
        for (Record record : result.getRecords().getRecordsList()) {
            if (record.getOffset() >= next) {
                records.add(decode(record));
                next = record.getOffset() + 1;
            }
        }
        if (!records.isEmpty()) {
            epoch = fetched.leaderEpoch;
        }
        return records;
    }

    private ConsumerRecord decode(Record record) {
        List<RecordHeader> headers = record.getHeadersList().stream()
                .map(one -> new RecordHeader(one.getKey(), one.hasValue() ? one.getValue().toByteArray() : null))
                .toList();
        return new ConsumerRecord(
                topic, partition, record.getOffset(), bytes(record.hasKey(), record.getKey()),
                bytes(record.hasValue(), record.getValue()), headers, Instant.ofEpochMilli(record.getTimestampMs()));
    }

    private static byte[] bytes(boolean present, ByteString data) {
        return present ? data.toByteArray() : null;
    }
}
