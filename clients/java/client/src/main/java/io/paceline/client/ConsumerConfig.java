package io.paceline.client;

import java.time.Duration;
import java.util.Objects;

/**
 * Settings of a consumer. Immutable; each {@code with} method returns a changed copy.
 *
 * @param reset policy for a position that is out of range, for example because its topic was re-created
 * @param maxWait longest time for which a broker waits for records before it answers a fetch
 * @param maxBytes largest response to a fetch, in bytes; only a single batch may be larger
 * @param apiTimeout time after which {@code poll} throws REQUEST_TIMED_OUT for a partition that it cannot read
 */
public record ConsumerConfig(ResetPolicy reset, Duration maxWait, int maxBytes, Duration apiTimeout) {
    private static final Duration API_TIMEOUT = Duration.ofSeconds(60);
    private static final Duration LONGEST_WAIT = Duration.ofMillis(Integer.MAX_VALUE);

    /** Checks the ranges. */
    public ConsumerConfig {
        Objects.requireNonNull(reset, "reset");
        if (maxWait.isNegative() || maxWait.compareTo(LONGEST_WAIT) > 0 || maxBytes < 1) {
            throw new IllegalArgumentException("maxWait has to be from 0 to " + Integer.MAX_VALUE + " ms, and maxBytes positive");
        }
        if (apiTimeout.isNegative() || apiTimeout.isZero()) {
            throw new IllegalArgumentException("apiTimeout has to be positive, not " + apiTimeout);
        }
    }

    /** Creates a configuration with the default {@code apiTimeout}. */
    public ConsumerConfig(ResetPolicy reset, Duration maxWait, int maxBytes) {
        this(reset, maxWait, maxBytes, API_TIMEOUT);
    }

    /** Returns the defaults: the earliest offset, {@code maxWait} 500 ms, {@code maxBytes} 1 MiB, {@code apiTimeout} 60 s. */
    public static ConsumerConfig defaults() {
        return new ConsumerConfig(ResetPolicy.EARLIEST, Duration.ofMillis(500), 1024 * 1024);
    }

    /** Sets the policy for positions that are out of range. */
    public ConsumerConfig withReset(ResetPolicy policy) {
        return new ConsumerConfig(policy, maxWait, maxBytes, apiTimeout);
    }

    /** Sets the longest time for which a broker waits for records before it answers a fetch. */
    public ConsumerConfig withMaxWait(Duration wait) {
        return new ConsumerConfig(reset, wait, maxBytes, apiTimeout);
    }

    /** Sets the largest response to a fetch, in bytes. */
    public ConsumerConfig withMaxBytes(int bytes) {
        return new ConsumerConfig(reset, maxWait, bytes, apiTimeout);
    }

    /** Sets the time after which {@code poll} throws REQUEST_TIMED_OUT for a partition that it cannot read. */
    public ConsumerConfig withApiTimeout(Duration timeout) {
        return new ConsumerConfig(reset, maxWait, maxBytes, timeout);
    }
}
