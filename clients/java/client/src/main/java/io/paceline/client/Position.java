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

/** The read position of a consumer in one partition. */
final class Position {
    final String topic;
    final int partition;
    /** Offset to fetch next. */
    long next;
    /** Offset after the last record that was returned to the caller. */
    long returned;
    /** Offset to look up before the first fetch; null once the offset is known. */
    OffsetSpec start;
    /** Place from which {@code next} was looked up; null after the first fetch from there, and for an offset of the caller. */
    OffsetSpec lookedUp;
    /** Leader epoch under which records were last read; null before the first record. */
    Integer epoch;
    /** Id of the topic that the offsets belong to; empty until a look-up or fetch has found it. */
    String topicId = "";
    /** The fetch in flight, otherwise null. */
    CompletableFuture<Fetched> fetch;
    /** Whether a broker has known the partition since it was assigned. */
    volatile boolean isFound;
    long pausedUntilNanos = System.nanoTime();
    private long pauseMs = Retry.FIRST_PAUSE_MS;
    /** Duration of the last attempt, and of the pause before it. */
    private volatile long attemptNanos;
    private long pausedNanos;
    /** Time of attempts and pauses since the last success, and since the first answer that the partition does not exist. */
    private long failingNanos;
    private long absentNanos;
    /** Last failure since the last success; a later REQUEST_TIMED_OUT does not replace it. */
    private PacelineException failure;
    /** Reports why no records are read while fetches fail. */
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

    /** Records a successful attempt. */
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
     * Records a failed attempt, and sets the pause before the next attempt, which grows with every failure. Returns the
     * failure to throw to the caller, or null while attempts continue. Time in which the program does not poll does not
     * count towards {@code limit}.
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
        if (isAbsent && absentNanos >= Absence.LIMIT_NANOS) {
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
     * The result of a fetch or of an offset lookup.
     *
     * @param offset the offset that a lookup returned
     * @param result the response for the partition, without an error; null after a lookup
     * @param leaderEpoch epoch of the leader that answered
     * @param topicId id of the topic that the metadata had
     */
    record Fetched(long offset, FetchPartitionResult result, int leaderEpoch, String topicId) {}

    /** Returns whether the broker has refused the offset as out of range; the next poll resets the position. */
    boolean isOutOfRange() {
        return fetch != null && fetch.isDone() && fetch.handle((fetched, error) -> error != null
                && error.getCause() instanceof PacelineException known
                && known.code() == ErrorCode.ERROR_CODE_OFFSET_OUT_OF_RANGE).join();
    }

    /** Returns the records of a fetch and moves the position after them. */
    List<ConsumerRecord> accept(Fetched fetched) {
        FetchPartitionResult result = fetched.result;
        if (result == null) {
            lookedUp = start != null ? start : lookedUp;
            moveTo(fetched.offset);
            topicId = fetched.topicId;
            return List.of();
        }
        topicId = fetched.topicId;
        lookedUp = null;
        if (result.hasDivergingEpoch()) {
            long before = next;
            long end = result.getDivergingEpoch().getEndOffset();
            epoch = result.getDivergingEpoch().getEpoch();
            if (end >= before) {
                // No record that was read is missing; the next fetch sends the epoch that the leader knows.
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
