package io.paceline.client;

import java.time.Duration;
import java.util.Set;

/** The consumer, as far as its membership of a group is concerned. */
interface GroupHost {
    /** Returns the partitions of the member. */
    Set<TopicPartition> assignment();

    /** Reads exactly these partitions. */
    void take(Set<TopicPartition> partitions);

    /** Before partitions are given up, waits for earlier commits and commits if commits are automatic. It does not throw. */
    void commitBeforeRevocation(Duration timeout);
}
