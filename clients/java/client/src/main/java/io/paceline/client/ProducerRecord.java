package io.paceline.client;

import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.List;
import java.util.Objects;

/**
 * A record to send. The arrays are not copied: leave them alone until the delivery is complete.
 *
 * @param topic topic
 * @param partition partition, or null: by the key, or one partition per batch without a key
 * @param key key; null differs from empty
 * @param value value; null differs from empty
 * @param headers headers; order and repetition are kept
 * @param timestamp timestamp, or null for the present moment
 */
public record ProducerRecord(
        String topic, Integer partition, byte[] key, byte[] value, List<RecordHeader> headers, Instant timestamp) {
    /** Checks topic and partition. */
    public ProducerRecord {
        Objects.requireNonNull(topic, "topic");
        if (partition != null && partition < 0) {
            throw new IllegalArgumentException("partition has to be 0 or more, or null, not " + partition);
        }
        headers = List.copyOf(headers);
    }

    /** Makes a record without headers, of the present moment, in the partition of its key. */
    public ProducerRecord(String topic, byte[] key, byte[] value) {
        this(topic, null, key, value, List.of(), null);
    }

    /** Makes a record of texts in UTF-8, in the partition of its key. */
    public ProducerRecord(String topic, String key, String value) {
        this(topic, bytes(key), bytes(value));
    }

    private static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }
}
