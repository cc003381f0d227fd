package io.paceline.client;

import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.List;

/**
 * A record that was read.
 *
 * @param topic topic
 * @param partition partition
 * @param offset offset in the partition
 * @param key key; null differs from empty
 * @param value value; null differs from empty
 * @param headers headers in order
 * @param timestamp timestamp
 */
public record ConsumerRecord(
        String topic, int partition, long offset, byte[] key, byte[] value, List<RecordHeader> headers, Instant timestamp) {
    /** Returns the key as text, or null. */
    public String keyText() {
        return text(key);
    }

    /** Returns the value as text, or null. */
    public String valueText() {
        return text(value);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }
}
