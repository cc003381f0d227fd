package io.paceline.client;

import java.util.Objects;

/**
 * A partition of a topic. Partitions sort by topic, then by number.
 *
 * @param topic topic
 * @param partition number of the partition
 */
public record TopicPartition(String topic, int partition) implements Comparable<TopicPartition> {
    /** Checks the topic and the number. */
    public TopicPartition {
        Objects.requireNonNull(topic, "topic");
        if (partition < 0) {
            throw new IllegalArgumentException("partition has to be 0 or more, not " + partition);
        }
    }

    @Override
    public int compareTo(TopicPartition other) {
        int byTopic = topic.compareTo(other.topic);
        return byTopic != 0 ? byTopic : Integer.compare(partition, other.partition);
    }

    @Override
    public String toString() {
        return topic + "/" + partition;
    }
}
