package io.paceline.client;

import java.time.Duration;
import java.util.Set;

/** The methods of a group consumer that its membership calls. */
interface GroupHost {
    /** Returns the partitions of the member. */
    Set<TopicPartition> assignment();

    /** Replaces the partitions of the member. */
    void take(Set<TopicPartition> partitions);

    /** Before partitions are given up, waits for earlier commits and commits if commits are automatic. It does not throw. */
    void commitBeforeRevocation(Duration timeout);
}
