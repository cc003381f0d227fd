package io.paceline.client;

import com.google.protobuf.ByteString;
import io.paceline.v1.FetchPartitionResult;
import io.paceline.v1.Record;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;

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

    /** Returns the records of an answer and moves behind them. */
    List<ConsumerRecord> accept(String operation, FetchPartitionResult result, int leaderEpoch) {
        if (result.hasError()) {
            Failures.throwPartition(operation, result.getError());
        }
        if (result.hasDivergingEpoch()) {
            long before = next;
            moveTo(Math.min(next, result.getDivergingEpoch().getEndOffset()));
            epoch = result.getDivergingEpoch().getEpoch();
            throw new TruncatedException(topic, partition, before, next);
        }
        List<ConsumerRecord> records = new ArrayList<>();
        for (Record record : result.getRecords().getRecordsList()) {
            if (record.getOffset() >= next) {
                records.add(decode(record));
                next = record.getOffset() + 1;
            }
        }
        if (!records.isEmpty()) {
            epoch = leaderEpoch;
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
