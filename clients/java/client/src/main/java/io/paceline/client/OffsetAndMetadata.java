package io.paceline.client;

import java.util.Objects;

/**
 * A committed position.
 *
 * @param offset the next offset to read: the offset of the last record read, plus 1
 * @param leaderEpoch leader epoch under which the last record was read, or null when it is not known
 * @param metadata any text of the application, stored with the offset; may be empty
 */
public record OffsetAndMetadata(long offset, Integer leaderEpoch, String metadata) {
    /** Checks that the offset is not negative. */
    public OffsetAndMetadata {
        Objects.requireNonNull(metadata, "metadata");
        if (offset < 0) {
            throw new IllegalArgumentException("offset has to be 0 or more, not " + offset);
        }
    }

    /** Creates a position without leader epoch and text. */
    public OffsetAndMetadata(long offset) {
        this(offset, null, "");
    }
}
