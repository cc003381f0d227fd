package io.paceline.client;

/**
 * Partition and offset of an acknowledged record.
 *
 * @param topic topic
 * @param partition partition
 * @param offset offset in the partition
 */
public record RecordMetadata(String topic, int partition, long offset) {}
