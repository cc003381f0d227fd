package io.paceline.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Deadline;
import io.grpc.Status;
import io.paceline.v1.ErrorCode;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

class RetryTest {
    private static final Duration REQUEST = Duration.ofSeconds(10);

    @Test
    void aCallIsNotRepeatedWhenItsAnswerCouldNotComeInTime() {
        Deadline deadline = Retry.after(Duration.ofMillis(600));
        assertThrows(PacelineException.class, () -> Retry.until("writing", deadline, REQUEST, () -> false, one -> {
            assertTrue(Retry.leftMs(one) > 100, () -> "began with " + Retry.leftMs(one) + " ms left");
            throw Failures.of("writing", ErrorCode.ERROR_CODE_NOT_ENOUGH_REPLICAS, "one of two");
        }));
    }

    @Test
    void aFailureThatNoRepetitionCanMendIsThrownAtOnce() {
        AtomicInteger attempts = new AtomicInteger();
        PacelineException failure = assertThrows(PacelineException.class, () ->
                Retry.until("writing", Retry.after(REQUEST), REQUEST, () -> false, one -> {
                    attempts.incrementAndGet();
                    throw Failures.of("writing", ErrorCode.ERROR_CODE_MESSAGE_TOO_LARGE, "too large");
                }));
        assertEquals(1, attempts.get());
        assertEquals("MESSAGE_TOO_LARGE", failure.codeName());
        assertTrue(failure.definite());
    }

    @Test
    void aRefusalAfterAnAttemptWithoutAnAnswerIsNotDefinite() {
        for (ErrorCode last : List.of(ErrorCode.ERROR_CODE_ILLEGAL_GENERATION, ErrorCode.ERROR_CODE_NOT_ENOUGH_REPLICAS)) {
            AtomicInteger attempts = new AtomicInteger();
            PacelineException failure = assertThrows(PacelineException.class, () ->
                    Retry.until("writing", Retry.after(REQUEST), REQUEST, () -> attempts.get() == 2, one -> {
                        boolean isFirst = attempts.getAndIncrement() == 0;
                        throw Failures.of("writing", isFirst ? ErrorCode.ERROR_CODE_REQUEST_TIMED_OUT : last, "on purpose");
                    }));
            assertEquals(last, failure.code());
            assertFalse(failure.definite(), last.name());
        }
    }

    @Test
    void theLastFailureWithACauseIsThrownWhenNoServerAnswered() {
        AtomicInteger attempts = new AtomicInteger();
        PacelineException failure = assertThrows(PacelineException.class, () ->
                Retry.until("writing", Retry.after(REQUEST), REQUEST, () -> attempts.get() == 4, one -> {
                    Status status = attempts.incrementAndGet() % 3 == 1 ? Status.DEADLINE_EXCEEDED : Status.UNAVAILABLE;
                    throw Failures.ofCall("writing", status.withDescription("attempt " + attempts).asRuntimeException());
                }));
        assertEquals("writing: BROKER_NOT_AVAILABLE: attempt 3", failure.getMessage());
    }

    @Test
    void aTimeMayBeLongerThan64BitsOfMilliseconds() {
        assertTrue(Retry.leftMs(Retry.after(Duration.ofSeconds(Long.MAX_VALUE))) > Duration.ofDays(300).toMillis());
        assertTrue(Retry.leftMs(Retry.after(Duration.ofMillis(Long.MAX_VALUE))) > Duration.ofDays(300).toMillis());
        assertThrows(IllegalArgumentException.class, () -> ConsumerConfig.defaults().withMaxWait(Duration.ofDays(30)));
    }

    @Test
    void theOptionsOfACodeComeFromTheContract() {
        PacelineException failure = Failures.of("asking", ErrorCode.ERROR_CODE_FENCED_LEADER_EPOCH, "old epoch");
        assertTrue(failure.retriable(), "new metadata can mend it");
        assertTrue(failure.definite());
        assertEquals(false, Failures.of("asking", ErrorCode.UNRECOGNIZED, "newer code").retriable());
    }
}
