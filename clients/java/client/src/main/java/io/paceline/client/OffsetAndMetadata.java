package io.paceline.client;

import java.util.Objects;

/**
 * A committed position.
 *
 * @param offset the next offset to read: that of the last record read, plus 1
 * @param leaderEpoch leader epoch under which the last record was read, or null when it is not known
 * @param metadata a note for people
 */
public record OffsetAndMetadata(long offset, Integer leaderEpoch, String metadata) {
    /** Checks the offset. */
    public OffsetAndMetadata {
        Objects.requireNonNull(metadata, "metadata");
        if (offset < 0) {
            throw new IllegalArgumentException("offset has to be 0 or more, not " + offset);
        }
    }

    /** Makes a position without a note. */
    public OffsetAndMetadata(long offset) {
        this(offset, null, "");
    }
}
