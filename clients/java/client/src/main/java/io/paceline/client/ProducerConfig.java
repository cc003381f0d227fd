package io.paceline.client;

import java.time.Duration;

/**
 * Settings of a producer. Immutable; each {@code with} method returns a changed copy.
 *
 * @param deliveryTimeout longest time from {@code send} to the outcome of a record, retries included
 * @param linger how long a batch waits for further records; with zero it has the records that are already waiting
 * @param batchBytes size at which a batch is sent before the end of the linger
 * @param maxPending how many records may wait for their outcome before {@code send} blocks
 * @param maxRequestBytes largest request; a larger record fails before it is sent. Brokers accept 4 MiB unless their
 *     {@code socket.request.max.bytes} has another value
 */
public record ProducerConfig(Duration deliveryTimeout, Duration linger, int batchBytes, int maxPending, int maxRequestBytes) {
    /** Space in a request for all fields except the records. */
    private static final int OVERHEAD_BYTES = 1024;

    /** Checks the ranges. */
    public ProducerConfig {
        if (maxRequestBytes < 2 * OVERHEAD_BYTES) {
            throw new IllegalArgumentException("maxRequestBytes has to be at least 2048, not " + maxRequestBytes);
        }
        if (deliveryTimeout.isNegative() || deliveryTimeout.isZero() || linger.isNegative() || batchBytes < 1 || maxPending < 1) {
            throw new IllegalArgumentException("deliveryTimeout, batchBytes and maxPending have to be positive, linger not negative");
        }
    }

    /** Returns the defaults: 2 minutes for a delivery, no linger, batches of 256 KiB, 100,000 pending records, requests of 4 MiB. */
    public static ProducerConfig defaults() {
        return new ProducerConfig(Duration.ofMinutes(2), Duration.ZERO, 256 * 1024, 100_000, 4 * 1024 * 1024);
    }

    /** Sets the longest time from {@code send} to the outcome of a record, retries included. */
    public ProducerConfig withDeliveryTimeout(Duration timeout) {
        return new ProducerConfig(timeout, linger, batchBytes, maxPending, maxRequestBytes);
    }

    /** Sets how long a batch waits for further records. */
    public ProducerConfig withLinger(Duration time) {
        return new ProducerConfig(deliveryTimeout, time, batchBytes, maxPending, maxRequestBytes);
    }

    /** Sets the size at which a batch is sent before the end of the linger. */
    public ProducerConfig withBatchBytes(int bytes) {
        return new ProducerConfig(deliveryTimeout, linger, bytes, maxPending, maxRequestBytes);
    }

    /** Sets how many records may wait for their outcome before {@code send} blocks. */
    public ProducerConfig withMaxPending(int records) {
        return new ProducerConfig(deliveryTimeout, linger, batchBytes, records, maxRequestBytes);
    }

    /** Sets the size of the largest request; use the brokers' {@code socket.request.max.bytes}. */
    public ProducerConfig withMaxRequestBytes(int bytes) {
        return new ProducerConfig(deliveryTimeout, linger, batchBytes, maxPending, bytes);
    }

    int largestRecordBytes() {
        return maxRequestBytes - OVERHEAD_BYTES;
    }

    /** Returns the largest size of a batch with several records; a request has one batch. */
    int batchLimitBytes() {
        return Math.min(batchBytes, largestRecordBytes());
    }
}
