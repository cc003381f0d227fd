package io.paceline.client;

import java.util.Map;

/**
 * A topic to create.
 *
 * @param name name
 * @param partitions number of partitions, or null for the default of the cluster
 * @param replicationFactor replicas of each partition, or null for the default of the cluster
 * @param configs configuration, for example "min.insync.replicas" to "2"
 */
public record NewTopic(String name, Integer partitions, Integer replicationFactor, Map<String, String> configs) {
    /** Makes a topic with the default configuration. */
    public NewTopic(String name, int partitions, int replicationFactor) {
        this(name, partitions, replicationFactor, Map.of());
    }

    /** Sets one key of the configuration. */
    public NewTopic withConfig(String key, String value) {
        Map<String, String> changed = new java.util.TreeMap<>(configs);
        changed.put(key, value);
        return new NewTopic(name, partitions, replicationFactor, changed);
    }
}
