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

/** Where a consumer reads in one partition. */
final class Position {
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
    long pausedUntilNanos = System.nanoTime();
    long pauseMs = Retry.FIRST_PAUSE_MS;
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

    /** Pauses before the next fetch, longer after every failure. */
    void pause(Duration atLeast) {
        pausedUntilNanos = System.nanoTime() + Math.max(pauseMs, atLeast.toMillis()) * 1_000_000;
        pauseMs = Math.min(pauseMs * 3 / 2, Retry.LONGEST_PAUSE_MS);
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

    /** Returns the records of a fetch and moves behind them; an offset of a deleted topic is out of range in the next one. */
    List<ConsumerRecord> accept(Fetched fetched) {
        FetchPartitionResult result = fetched.result;
        if (result == null) {
            moveTo(fetched.offset);
            return List.of();
        }
        if (!topicId.isEmpty() && !topicId.equals(fetched.topicId)) {
            throw Failures.of("reading " + topic + "/" + partition + " from offset " + next,
                    ErrorCode.ERROR_CODE_OFFSET_OUT_OF_RANGE, "the topic was deleted and created again");
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
