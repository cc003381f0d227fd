package io.paceline.client;

import io.grpc.Deadline;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * Idempotent producer with acks=all: appends each record once, and the records of a partition in the order of the calls. Safe
 * for concurrent use.
 *
 * <p>Close it before the client: {@link #close()} delivers the waiting records.
 */
public final class Producer implements AutoCloseable {
    private final Cluster cluster;
    private final Executor threads;
    private final ProducerConfig config;
    private final Semaphore pending;
    private final Map<String, Map<Integer, PartitionQueue>> queues = new HashMap<>();
    /** Present partition for records without a key, by topic; it changes with each batch. */
    private final Map<String, Integer> sticky = new HashMap<>();
    private boolean closed;
    private volatile boolean aborted;

    Producer(Cluster cluster, Executor threads, ProducerConfig config) {
        this.cluster = cluster;
        this.threads = threads;
        this.config = config;
        this.pending = new Semaphore(config.maxPending());
    }

    /**
     * Queues a record and returns a future of its place in the log, which fails with a {@link PacelineException}. Blocks until
     * the topic is known, and while {@link ProducerConfig#maxPending} records wait; an interrupt then fails the future. Do not
     * block in stages of the future: they run in the thread that sends.
     *
     * @throws IllegalStateException after {@link #close()}
     */
    public CompletableFuture<RecordMetadata> send(ProducerRecord record) {
        Deadline deadline = Retry.after(config.deliveryTimeout());
        var outcome = new CompletableFuture<RecordMetadata>();
        var item = new PartitionQueue.Item(record, deadline, outcome);
        if (item.size() > config.largestRecordBytes()) {
            outcome.completeExceptionally(Failures.of("producing to " + record.topic(),
                    io.paceline.v1.ErrorCode.ERROR_CODE_MESSAGE_TOO_LARGE, "the record needs " + item.size()
                    + " bytes, and a request of " + config.maxRequestBytes() + " bytes has room for "
                    + config.largestRecordBytes()));
            return outcome;
        }
        try {
            int partition = record.partition() != null
                    ? record.partition()
                    : choose(record, cluster.partitionCount("producing to " + record.topic(), deadline, record.topic()));
            if (!pending.tryAcquire(Retry.leftMs(deadline), TimeUnit.MILLISECONDS)) {
                throw Failures.of("producing to " + record.topic(), io.paceline.v1.ErrorCode.ERROR_CODE_REQUEST_TIMED_OUT,
                        config.maxPending() + " records waited for their outcome until the delivery time-out")
                        .with(true, true);
            }
            synchronized (this) {
                if (closed) {
                    pending.release();
                    throw new IllegalStateException("the producer is closed");
                }
                queueOf(record.topic(), partition).put(item);
            }
        } catch (PacelineException failure) {
            // Nothing was queued.
            outcome.completeExceptionally(failure.with(failure.retriable(), true));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            outcome.completeExceptionally(error);
        }
        return outcome;
    }

    /**
     * Ends the linger of waiting records, and waits until every earlier record has its outcome; returns false after the
     * time-out or an interrupt.
     */
    public boolean flush(Duration timeout) {
        List<CompletableFuture<Void>> open = allQueues().stream().map(PartitionQueue::flush).toList();
        try {
            CompletableFuture.allOf(open.toArray(CompletableFuture[]::new)).get(Retry.millis(timeout), TimeUnit.MILLISECONDS);
            return true;
        } catch (java.util.concurrent.TimeoutException late) {
            return false;
        } catch (java.util.concurrent.ExecutionException impossible) {
            throw new IllegalStateException(impossible);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    /** Calls {@link #close(Duration)} with the delivery time-out. */
    @Override
    public void close() {
        close(config.deliveryTimeout());
    }

    /** Delivers the waiting records and ends the producer. Records that are not sent within {@code timeout} fail. */
    public void close(Duration timeout) {
        synchronized (this) {
            closed = true;
        }
        if (!flush(timeout)) {
            aborted = true;
            // Not under the lock: the caller's stages run when the futures complete.
            allQueues().forEach(PartitionQueue::fail);
        }
    }

    /** Chooses the partition by key; without a key, the same random partition until the next batch begins. */
    private int choose(ProducerRecord record, int count) {
        if (record.key() != null) {
            return Partitioner.partitionForKey(record.key(), count);
        }
        synchronized (this) {
            return sticky.compute(record.topic(), (topic, chosen) ->
                    chosen != null && chosen < count ? chosen : ThreadLocalRandom.current().nextInt(count));
        }
    }

    /** Begins a batch of a partition: later records without a key go to another random partition. */
    synchronized void unstick(String topic, int partition) {
        sticky.remove(topic, partition);
    }

    private synchronized List<PartitionQueue> allQueues() {
        return queues.values().stream().flatMap(one -> one.values().stream()).toList();
    }

    private PartitionQueue queueOf(String topic, int partition) {
        return queues.computeIfAbsent(topic, name -> new HashMap<>()).computeIfAbsent(
                partition, number -> new PartitionQueue(this, cluster, threads, config, topic, partition));
    }

    void release(int records) {
        pending.release(records);
    }

    boolean aborted() {
        return aborted;
    }
}
