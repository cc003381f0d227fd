package io.paceline.client;

import java.lang.System.Logger.Level;

/** Logs a persistent failure: first after two seconds, then every ten seconds. Safe for concurrent use. */
final class Warnings {
    private static final System.Logger LOG = System.getLogger("io.paceline.client");
    private static final long QUIET_NANOS = 2_000_000_000L;
    private static final long REMIND_NANOS = 10_000_000_000L;

    private boolean failing;
    private long dueNanos;

    /** Records a failed attempt that will be repeated. */
    synchronized void add(Throwable failure) {
        long now = System.nanoTime();
        if (!failing) {
            failing = true;
            dueNanos = now + QUIET_NANOS;
        } else if (now - dueNanos >= 0) {
            dueNanos = now + REMIND_NANOS;
            log(failure);
        }
    }

    /** Records a success. */
    synchronized void clear() {
        failing = false;
    }

    /** Logs a failure at once. */
    void log(Throwable failure) {
        log(failure.getMessage());
    }

    static void log(String message) {
        LOG.log(Level.WARNING, message);
    }
}
