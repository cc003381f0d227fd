package io.paceline.client;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Logs the reason of a long wait: after about two seconds, then every ten seconds, until it is closed. */
final class WaitNotice implements AutoCloseable {
    /** Less than two seconds, because a timer may be late. */
    private static final long FIRST_MS = 1_800;
    private static final long NEXT_MS = 10_000;

    private final String operation;
    private final CompletableFuture<Void> ended = new CompletableFuture<>();
    private volatile String reason = "";

    WaitNotice(String operation) {
        this.operation = operation;
        logAfter(FIRST_MS);
    }

    private void logAfter(long timeMs) {
        ended.copy().orTimeout(timeMs, TimeUnit.MILLISECONDS).whenComplete((nothing, late) -> {
            if (late != null) {
                Warnings.log(operation + ": waiting for a response" + reason);
                logAfter(NEXT_MS);
            }
        });
    }

    /** Records the failure of an attempt that will be repeated. */
    void failed(PacelineException failure) {
        reason = ": " + failure.getMessage();
    }

    @Override
    public void close() {
        ended.complete(null);
    }
}
