package io.paceline.client;

import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.List;
import java.util.Objects;

/**
 * A record to send. The arrays are not copied: do not change them until the record has its outcome.
 *
 * @param topic name of the topic
 * @param partition partition; null chooses it by the key, or for each batch at random if there is no key
 * @param key key; null differs from empty
 * @param value value; null differs from empty
 * @param headers headers in order; a name may occur several times
 * @param timestamp timestamp; null is the time of {@code send}
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

    /** Creates a record without headers, with the time of {@code send}, in the partition of its key. */
    public ProducerRecord(String topic, byte[] key, byte[] value) {
        this(topic, null, key, value, List.of(), null);
    }

    /** Creates a record of texts, encoded as UTF-8, in the partition of its key. */
    public ProducerRecord(String topic, String key, String value) {
        this(topic, bytes(key), bytes(value));
    }

    private static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }
}
