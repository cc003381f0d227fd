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
 * Sends records with acks=all, idempotent: in order per partition, each once. Safe for many threads.
 *
 * <p>Close it before the client: {@link #close()} delivers the records that wait.
 */
public final class Producer implements AutoCloseable {
    private final Cluster cluster;
    private final Executor threads;
    private final ProducerConfig config;
    private final Semaphore pending;
    private final Map<String, Map<Integer, PartitionQueue>> queues = new HashMap<>();
    /** The partition that gets records without a key, by topic, until a batch of it is taken. */
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
     * Queues a record and returns its outcome: where it lies, or a {@link PacelineException}. Records of one partition keep
     * the order of the calls. It blocks while too many records wait, and on the first use of a topic. Do not block in
     * stages that run when the future completes: they run in the thread that sends.
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
                    : choose(record, cluster.partitionCount(deadline, record.topic()));
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
     * Sends the records that linger, and waits until every record sent before has its outcome; returns false when the time
     * is over first.
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

    /** Delivers the records that wait, within the delivery time-out, and ends the producer. */
    @Override
    public void close() {
        close(config.deliveryTimeout());
    }

    /** Delivers the records that wait and ends the producer. Records without an outcome by then fail. */
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

    /** Chooses the partition by key; without a key one partition until a batch of that partition is taken. */
    private int choose(ProducerRecord record, int count) {
        if (record.key() != null) {
            return Partitioner.partitionForKey(record.key(), count);
        }
        synchronized (this) {
            return sticky.compute(record.topic(), (topic, chosen) ->
                    chosen != null && chosen < count ? chosen : ThreadLocalRandom.current().nextInt(count));
        }
    }

    /** Lets records without a key go to another partition from now on. */
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
