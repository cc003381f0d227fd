package io.paceline.client;

import io.paceline.v1.ErrorCode;

/** Decides when a topic or partition that brokers do not know counts as missing. Not safe for concurrent use. */
final class Absence {
    /** Time for which an unknown topic or partition is retried, because a new one may not have reached the brokers yet. */
    static final long LIMIT_NANOS = 5_000_000_000L;

    private Long sinceNanos;
    private boolean isFound;
    private boolean isOver;

    /** Records the failure of an attempt. */
    void failed(PacelineException failure) {
        boolean isAbsent = !isFound && failure.code() == ErrorCode.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION;
        if (isAbsent && sinceNanos == null) {
            sinceNanos = System.nanoTime();
        }
        isOver = isAbsent && System.nanoTime() - sinceNanos >= LIMIT_NANOS;
    }

    /** Records that the partition exists: from now on it is never missing, even if a broker does not know it. */
    void found() {
        isFound = true;
    }

    /** Measures the time again from the next failure. */
    void startOver() {
        sinceNanos = null;
    }

    /** Returns whether the last attempt failed because brokers still did not know the topic after {@link #LIMIT_NANOS}. */
    boolean isOver() {
        return isOver;
    }
}
