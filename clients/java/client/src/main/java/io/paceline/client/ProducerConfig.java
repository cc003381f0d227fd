package io.paceline.client;

import java.time.Duration;

/**
 * Tuning of a producer. Immutable; each {@code with} method returns a changed copy.
 *
 * @param deliveryTimeout bound of the delivery of a record from {@code send} on, retries included
 * @param linger how long a batch waits for further records; zero sends at once the records that have gathered
 * @param batchBytes size from which a batch is sent
 * @param maxPending how many records may wait for their outcome before {@code send} blocks
 */
public record ProducerConfig(Duration deliveryTimeout, Duration linger, int batchBytes, int maxPending) {
    /** Checks the ranges. */
    public ProducerConfig {
        if (deliveryTimeout.isNegative() || deliveryTimeout.isZero() || linger.isNegative() || batchBytes < 1 || maxPending < 1) {
            throw new IllegalArgumentException("deliveryTimeout, batchBytes and maxPending have to be positive, linger not negative");
        }
    }

    /** Returns the defaults: 2 minutes for a delivery, no linger, batches of 256 KiB, 100,000 pending records. */
    public static ProducerConfig defaults() {
        return new ProducerConfig(Duration.ofMinutes(2), Duration.ZERO, 256 * 1024, 100_000);
    }

    /** Bounds the delivery of a record, retries included. */
    public ProducerConfig withDeliveryTimeout(Duration timeout) {
        return new ProducerConfig(timeout, linger, batchBytes, maxPending);
    }

    /** Lets a batch wait for further records. */
    public ProducerConfig withLinger(Duration time) {
        return new ProducerConfig(deliveryTimeout, time, batchBytes, maxPending);
    }

    /** Sends a batch from this size on. */
    public ProducerConfig withBatchBytes(int bytes) {
        return new ProducerConfig(deliveryTimeout, linger, bytes, maxPending);
    }

    /** Blocks {@code send} while so many records wait for their outcome. */
    public ProducerConfig withMaxPending(int records) {
        return new ProducerConfig(deliveryTimeout, linger, batchBytes, records);
    }
}
