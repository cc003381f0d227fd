package io.paceline.client;

import io.grpc.Context;
import io.grpc.StatusRuntimeException;
import io.paceline.v1.ClusterEvent;
import io.paceline.v1.EventBatch;
import io.paceline.v1.MetadataServiceGrpc;
import io.paceline.v1.WatchEventsRequest;
import io.paceline.v1.WatchEventsResponse;
import java.time.Duration;
import java.util.Iterator;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Predicate;

/** Reads the events of the active controller; continues at the next one when it dies, resigns, or sends nothing. */
final class EventWatch {
    /** Longest time without a message; servers send a keepalive message every ten seconds. */
    static final Duration SILENCE = Duration.ofSeconds(25);
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    private final Cluster cluster;
    private final Duration silence;
    private final WatchEventsRequest.Builder request = WatchEventsRequest.newBuilder().setActiveControllerOnly(true);
    private final Warnings warnings = new Warnings();

    /** Creates a watch that leaves a controller which sends nothing for {@code silence}. */
    EventWatch(Cluster cluster, Duration silence) {
        this.cluster = cluster;
        this.silence = silence;
    }

    /** Calls {@code handle} with each batch until it returns false, the thread is interrupted, or the client is closed. */
    void run(Predicate<EventBatch> handle) {
        while (!cluster.closed() && !Thread.currentThread().isInterrupted()) {
            String operation = "finding the controller";
            String address = cluster.retry(
                    operation, Retry.after(PATIENCE), deadline -> cluster.controllerOnce(operation, deadline));
            if (!follow(address, handle)) {
                return;
            }
            Retry.sleep(Retry.after(Duration.ofSeconds(1)), Retry.LONGEST_PAUSE_MS / 4);
        }
    }

    /** Reads one stream to its end and sets in {@code request} where the next begins; returns false if {@code handle} did. */
    private boolean follow(String address, Predicate<EventBatch> handle) {
        Context.CancellableContext context = Context.current().withCancellation();
        try {
            Iterator<WatchEventsResponse> answers = open(address, context);
            for (EventBatch batch = next(answers, context); batch != null; batch = next(answers, context)) {
                if ((batch.getEventsCount() > 0 || batch.hasGap()) && !handle.test(batch)) {
                    return false;
                }
                // Another controller cannot use the cursor; it begins at the time of the last event.
                long untilMs = batch.getEventsList().stream().mapToLong(ClusterEvent::getTimeMs).max()
                        .orElseGet(() -> request.hasSinceMs() ? request.getSinceMs() : System.currentTimeMillis());
                request.setCursor(batch.getCursor()).setSinceMs(Math.max(request.getSinceMs(), untilMs));
            }
            return true;
        } finally {
            context.cancel(null);
        }
    }

    private Iterator<WatchEventsResponse> open(String address, Context.CancellableContext context) {
        Context before = context.attach();
        try {
            return MetadataServiceGrpc.newBlockingStub(cluster.channel(address)).watchEvents(request.build());
        } finally {
            context.detach(before);
        }
    }

    /** Waits for the next batch; returns null when the stream has ended or broken, or was silent for too long. */
    private EventBatch next(Iterator<WatchEventsResponse> answers, Context.CancellableContext context) {
        var heard = new CompletableFuture<Void>().orTimeout(silence.toMillis(), TimeUnit.MILLISECONDS);
        heard.whenComplete((nothing, late) -> {
            if (late != null) {
                context.cancel(new TimeoutException("no sign of life for " + silence.toMillis() + " ms"));
            }
        });
        try {
            if (!answers.hasNext()) {
                return null;
            }
            warnings.clear();
            return answers.next().getBatch();
        } catch (StatusRuntimeException broken) {
            PacelineException failure = Failures.ofCall("watching events", broken);
            if (!failure.retriable()) {
                throw failure;
            }
            // The caller opens the next stream at the controller that is active then.
            warnings.add(failure);
            return null;
        } finally {
            heard.complete(null);
        }
    }
}
