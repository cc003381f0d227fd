package io.paceline.client;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;

/** Collects the log messages of the library until it is closed. */
final class LoggedWarnings extends Handler implements AutoCloseable {
    private final Logger logger = Logger.getLogger("io.paceline.client");
    private final Queue<String> messages = new ConcurrentLinkedQueue<>();

    LoggedWarnings() {
        logger.addHandler(this);
    }

    /** Waits until a message contains a text. */
    void await(String text) {
        await(text, () -> {
            try {
                Thread.sleep(5);
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        });
    }

    /** Runs a step again and again until a message contains a text. */
    void await(String text, Runnable step) {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        while (messages.stream().noneMatch(one -> one.contains(text))) {
            assertTrue(System.nanoTime() < end, () -> "not logged: " + text + "; logged: " + messages);
            step.run();
        }
    }

    @Override
    public void publish(LogRecord record) {
        messages.add(record.getMessage());
    }

    @Override
    public void flush() {}

    @Override
    public void close() {
        logger.removeHandler(this);
    }
}
