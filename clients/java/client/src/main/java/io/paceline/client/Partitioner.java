package io.paceline.client;

/** Chooses the partition of a record with a key; clients of all languages choose the same one. */
public final class Partitioner {
    private static final int MULTIPLIER = 0x5bd1e995;

    private Partitioner() {}

    /** Returns (murmur2(key) &amp; 0x7fffffff) mod partitionCount, with Kafka's murmur2. */
    public static int partitionForKey(byte[] key, int partitionCount) {
        return (murmur2(key) & 0x7fffffff) % partitionCount;
    }

    static int murmur2(byte[] data) {
        int hash = 0x9747b28c ^ data.length;
        int at = 0;
        for (; at + 4 <= data.length; at += 4) {
            int word = littleEndian(data, at, 4) * MULTIPLIER;
            hash = (hash * MULTIPLIER) ^ ((word ^ (word >>> 24)) * MULTIPLIER);
        }
        if (at < data.length) {
            hash = (hash ^ littleEndian(data, at, data.length - at)) * MULTIPLIER;
        }
        hash = (hash ^ (hash >>> 13)) * MULTIPLIER;
        return hash ^ (hash >>> 15);
    }

    private static int littleEndian(byte[] data, int from, int count) {
        int number = 0;
        for (int i = 0; i < count; i++) {
            number |= (data[from + i] & 0xff) << (8 * i);
        }
        return number;
    }
}
