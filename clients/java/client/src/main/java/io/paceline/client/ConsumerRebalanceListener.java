package io.paceline.client;

import java.util.Set;

/**
 * Learns which partitions a {@link GroupConsumer} gets and gives up. {@code poll}, {@code unsubscribe} and {@code close} call
 * the methods in the caller's thread. The methods may commit.
 */
public interface ConsumerRebalanceListener {
    /** Called before the member gives up its partitions; their offsets can still be committed. */
    default void onPartitionsRevoked(Set<TopicPartition> partitions) {}

    /** Called after a rebalance with the partitions of the member, perhaps none. */
    default void onPartitionsAssigned(Set<TopicPartition> partitions) {}

    /** Called after the membership was lost: other members may own the partitions, and a commit would fail. */
    default void onPartitionsLost(Set<TopicPartition> partitions) {
        onPartitionsRevoked(partitions);
    }
}
