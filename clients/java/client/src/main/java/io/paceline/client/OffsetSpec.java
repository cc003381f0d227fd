package io.paceline.client;

import java.time.Instant;

/** A place in a partition: its beginning, its end, or the first record at or after a time. */
public final class OffsetSpec {
    private static final OffsetSpec EARLIEST = new OffsetSpec(io.paceline.v1.OffsetSpec.OFFSET_SPEC_EARLIEST, 0);
    private static final OffsetSpec LATEST = new OffsetSpec(io.paceline.v1.OffsetSpec.OFFSET_SPEC_LATEST, 0);

    final io.paceline.v1.OffsetSpec spec;
    final long timestampMs;

    private OffsetSpec(io.paceline.v1.OffsetSpec spec, long timestampMs) {
        this.spec = spec;
        this.timestampMs = timestampMs;
    }

    /** Returns the first offset still in the log. */
    public static OffsetSpec earliest() {
        return EARLIEST;
    }

    /** Returns the end of the committed records, exclusive. */
    public static OffsetSpec latest() {
        return LATEST;
    }

    /** Returns the first record at or after a time. */
    public static OffsetSpec at(Instant moment) {
        return new OffsetSpec(io.paceline.v1.OffsetSpec.OFFSET_SPEC_TIMESTAMP, moment.toEpochMilli());
    }
}
