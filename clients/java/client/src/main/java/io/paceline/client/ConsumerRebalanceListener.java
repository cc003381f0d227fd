package io.paceline.client;

import java.util.Set;

/**
 * Receives the rebalances of a {@link GroupConsumer}. The methods are called in {@code poll} and {@code close}, on their
 * thread, and may commit.
 */
public interface ConsumerRebalanceListener {
    /** Partitions are about to be given up; their offsets can still be committed. */
    default void onPartitionsRevoked(Set<TopicPartition> partitions) {}

    /** Partitions were assigned. A set without partitions says that the group has more members than partitions. */
    default void onPartitionsAssigned(Set<TopicPartition> partitions) {}

    /** The membership was lost, and other members may own the partitions: a commit would fail. */
    default void onPartitionsLost(Set<TopicPartition> partitions) {
        onPartitionsRevoked(partitions);
    }
}
