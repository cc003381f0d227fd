package io.paceline.client;

import io.grpc.Deadline;
import io.paceline.v1.ErrorCode;
import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Function;

/** Repeats calls with a growing pause until a deadline. */
final class Retry {
    static final long FIRST_PAUSE_MS = 50;
    static final long LONGEST_PAUSE_MS = 1_000;
    private static final Duration LONGEST = Duration.ofDays(365);
    /** An attempt with less time than this would hardly be answered, and would make a known outcome unknown. */
    private static final long SHORTEST_ATTEMPT_MS = 200;

    private Retry() {}

    /**
     * Calls attempt until it succeeds, fails for good, the deadline passes, or {@code stopped} is true after a failure; then it
     * throws the last failure. A local time-out does not hide the last reason that a server gave, and no later refusal hides
     * that an attempt may have had an effect. Each attempt gets a deadline of its own. A long wait is logged.
     */
    static <T> T until(
            String operation, Deadline deadline, Duration requestTimeout, BooleanSupplier stopped,
            Function<Deadline, T> attempt) {
        try (WaitNotice notice = new WaitNotice(operation)) {
            return until(notice, deadline, requestTimeout, stopped, attempt);
        }
    }

    private static <T> T until(
            WaitNotice notice, Deadline deadline, Duration requestTimeout, BooleanSupplier stopped,
            Function<Deadline, T> attempt) {
        long pauseMs = FIRST_PAUSE_MS;
        PacelineException last = null;
        boolean definite = true;
        while (true) {
            PacelineException failure;
            try {
                return attempt.apply(deadline.minimum(after(requestTimeout)));
            } catch (PacelineException error) {
                failure = error;
            }
            last = last == null || weight(failure) >= weight(last) ? failure : last;
            notice.failed(last);
            definite &= failure.definite();
            if (!failure.retriable()) {
                throw failure.with(false, definite);
            }
            long chosenMs = pauseMs / 2 + ThreadLocalRandom.current().nextLong(pauseMs / 2 + 1);
            long askedMs = failure.details().retryAfter().toMillis();
            long allowedMs = leftMs(deadline) - SHORTEST_ATTEMPT_MS;
            if (stopped.getAsBoolean() || allowedMs <= askedMs
                    || !sleep(deadline, Math.min(Math.max(chosenMs, askedMs), allowedMs))) {
                throw last.with(last.retriable(), definite);
            }
            pauseMs = Math.min(pauseMs * 3 / 2, LONGEST_PAUSE_MS);
        }
    }

    /** Returns how much a failure says: a server's reason most, a mere time-out least. */
    private static int weight(PacelineException failure) {
        if (failure.details().answered()) {
            return 2;
        }
        return failure.code() == ErrorCode.ERROR_CODE_REQUEST_TIMED_OUT ? 0 : 1;
    }

    static Deadline after(Duration time) {
        return Deadline.after(millis(time), TimeUnit.MILLISECONDS);
    }

    /** Returns a time in milliseconds; one beyond 64 bits, such as that of a call without an end, is the longest. */
    static long millis(Duration time) {
        return time.compareTo(LONGEST) < 0 ? time.toMillis() : LONGEST.toMillis();
    }

    static long leftMs(Deadline deadline) {
        return Math.max(0, deadline.timeRemaining(TimeUnit.MILLISECONDS));
    }

    /** Returns how long a server may wait so that its answer arrives before the deadline. */
    static int serverWaitMs(Deadline deadline) {
        return (int) Math.min(Math.max(leftMs(deadline) * 8 / 10, 1), 600_000);
    }

    /** Pauses; returns false when the deadline comes first or the thread is interrupted. */
    static boolean sleep(Deadline deadline, long pauseMs) {
        try {
            Thread.sleep(Math.min(pauseMs, leftMs(deadline)));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return false;
        }
        return !deadline.isExpired();
    }
}
