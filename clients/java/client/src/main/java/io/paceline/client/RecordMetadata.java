package io.paceline.client;

/**
 * Where an acknowledged record lies.
 *
 * @param topic topic
 * @param partition partition
 * @param offset offset in the partition
 */
public record RecordMetadata(String topic, int partition, long offset) {}
