package io.paceline.client;

import java.time.Duration;
import java.util.Objects;

/**
 * Tuning of a consumer. Immutable; each {@code with} method returns a changed copy.
 *
 * @param reset what happens when a position is out of range, also because its topic was deleted and created again
 * @param maxWait how long a broker may hold a fetch without records
 * @param maxBytes bound of the answer of one fetch
 * @param apiTimeout how long a partition may be unreadable before {@code poll} reports it
 */
public record ConsumerConfig(ResetPolicy reset, Duration maxWait, int maxBytes, Duration apiTimeout) {
    private static final Duration API_TIMEOUT = Duration.ofSeconds(60);
    private static final Duration LONGEST_WAIT = Duration.ofMillis(Integer.MAX_VALUE);

    /** Checks the ranges. */
    public ConsumerConfig {
        Objects.requireNonNull(reset, "reset");
        if (maxWait.isNegative() || maxWait.compareTo(LONGEST_WAIT) > 0 || maxBytes < 1) {
            throw new IllegalArgumentException("maxWait is from 0 to " + Integer.MAX_VALUE + " ms, maxBytes has to be positive");
        }
        if (apiTimeout.isNegative() || apiTimeout.isZero()) {
            throw new IllegalArgumentException("apiTimeout has to be positive, not " + apiTimeout);
        }
    }

    /** Makes a configuration with the default time-out. */
    public ConsumerConfig(ResetPolicy reset, Duration maxWait, int maxBytes) {
        this(reset, maxWait, maxBytes, API_TIMEOUT);
    }

    /** Returns the defaults: reset to the earliest offset, 500 ms of waiting, 1 MiB, and 60 s until an error is reported. */
    public static ConsumerConfig defaults() {
        return new ConsumerConfig(ResetPolicy.EARLIEST, Duration.ofMillis(500), 1024 * 1024);
    }

    /** Chooses the policy for positions out of range. */
    public ConsumerConfig withReset(ResetPolicy policy) {
        return new ConsumerConfig(policy, maxWait, maxBytes, apiTimeout);
    }

    /** Lets a broker hold a fetch so long. */
    public ConsumerConfig withMaxWait(Duration wait) {
        return new ConsumerConfig(reset, wait, maxBytes, apiTimeout);
    }

    /** Bounds the answer of one fetch. */
    public ConsumerConfig withMaxBytes(int bytes) {
        return new ConsumerConfig(reset, maxWait, bytes, apiTimeout);
    }

    /** Reports a partition that could not be read for so long. */
    public ConsumerConfig withApiTimeout(Duration timeout) {
        return new ConsumerConfig(reset, maxWait, maxBytes, timeout);
    }
}
