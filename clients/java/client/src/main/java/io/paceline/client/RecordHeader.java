package io.paceline.client;

import java.util.Objects;

/**
 * One header of a record.
 *
 * @param key name
 * @param value value; null differs from empty
 */
public record RecordHeader(String key, byte[] value) {
    /** Refuses a null key. */
    public RecordHeader {
        Objects.requireNonNull(key, "key");
    }
}
