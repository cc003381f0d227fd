package io.paceline.client;

import com.google.protobuf.ByteString;
import com.google.protobuf.UnsafeByteOperations;
import io.grpc.Deadline;
import io.paceline.v1.Acks;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.Header;
import io.paceline.v1.InitProducerIdRequest;
import io.paceline.v1.InitProducerIdResponse;
import io.paceline.v1.ProducePartition;
import io.paceline.v1.ProducePartitionResult;
import io.paceline.v1.ProduceRequest;
import io.paceline.v1.ProduceResponse;
import io.paceline.v1.Record;
import io.paceline.v1.RecordList;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;

/**
 * Sends the records of one partition, one batch at a time. It has a producer id of its own, so that an unknown outcome in
 * one partition disturbs no other. It holds a thread only while there are records.
 */
final class PartitionQueue {
    /** Pause between looks whether the client was closed. */
    private static final long LONGEST_WAIT_MS = 1_000;
    private static final long SHORTEST_ATTEMPT_MS = 100;

    private final Producer producer;
    private final Cluster cluster;
    private final Executor threads;
    private final ProducerConfig config;
    private final String topic;
    private final int partition;

    // Guarded by this.
    private final Deque<Item> items = new ArrayDeque<>();
    private long bytes;
    private boolean running;
    private boolean isFlushing;
    private CompletableFuture<Void> newest = CompletableFuture.completedFuture(null);
    private List<Item> inFlight = List.of();

    // Used by the running thread alone.
    private String topicId = "";
    private long producerId = -1;
    private int producerEpoch;
    private int nextSequence;
    /** Shared by the waiting batches, so that they fail together when the topic does not exist. */
    private final Absence absence = new Absence();

    /** A record that waits, with the end of its delivery time and its outcome. */
    static final class Item {
        private final Record encoded;
        private final int size;
        private final Deadline deadline;
        private final CompletableFuture<RecordMetadata> outcome;
        /** Completes with the outcome; the caller of send can end the outcome's future earlier. */
        private final CompletableFuture<Void> ended = new CompletableFuture<>();

        Item(ProducerRecord record, Deadline deadline, CompletableFuture<RecordMetadata> outcome) {
            this.encoded = encode(record);
            this.size = encoded.getSerializedSize() + 8;
            this.deadline = deadline;
            this.outcome = outcome;
        }

        /** Returns the size of the record in a request. */
        int size() {
            return size;
        }
    }

    PartitionQueue(
            Producer producer, Cluster cluster, Executor threads, ProducerConfig config, String topic, int partition) {
        this.producer = producer;
        this.cluster = cluster;
        this.threads = threads;
        this.config = config;
        this.topic = topic;
        this.partition = partition;
    }

    synchronized void put(Item item) {
        if (!running) {
            threads.execute(this::run);
            running = true;
        }
        items.add(item);
        bytes += item.size;
        newest = item.ended;
        notifyAll();
    }

    /** Ends the linger; returns a future that completes, never exceptionally, when the last record has its outcome. */
    synchronized CompletableFuture<Void> flush() {
        isFlushing = running;
        notifyAll();
        return newest;
    }

    /** Fails every record without an outcome; the batch in flight may still be appended. */
    void fail() {
        List<Item> unsent;
        List<Item> sent;
        synchronized (this) {
            unsent = remove(Long.MAX_VALUE);
            sent = inFlight;
        }
        PacelineException failure = Failures.of(operation(), ErrorCode.ERROR_CODE_REQUEST_TIMED_OUT,
                "the producer was closed before the record was delivered");
        finish(unsent, 0, failure.with(false, true));
        // The running thread ends the batch itself; these outcomes stay.
        sent.forEach(item -> item.outcome.completeExceptionally(failure.with(false, false)));
    }

    private String operation() {
        return "producing to " + topic + "/" + partition;
    }

    private void run() {
        linger();
        while (true) {
            List<Item> batch = take(config.batchLimitBytes());
            if (batch.isEmpty()) {
                synchronized (this) {
                    if (items.isEmpty()) {
                        running = false;
                        isFlushing = false;
                        absence.startOver();
                        return;
                    }
                }
                continue;
            }
            producer.unstick(topic, partition);
            send(batch);
        }
    }

    /** Delivers a batch; one that the broker or the topic's max.message.bytes refuses is sent again in halves. */
    private void send(List<Item> batch) {
        try {
            finish(batch, deliver(batch), null);
        } catch (RuntimeException | Error failure) {
            if (batch.size() > 1 && failure instanceof PacelineException known && isTooLarge(known)) {
                send(batch.subList(0, batch.size() / 2));
                send(batch.subList(batch.size() / 2, batch.size()));
            } else {
                finish(batch, 0, failure);
            }
        }
    }

    /** Says whether a batch was refused for its size, and is surely not in the log. */
    private static boolean isTooLarge(PacelineException failure) {
        return failure.definite() && (failure.code() == ErrorCode.ERROR_CODE_MESSAGE_TOO_LARGE
                || failure.code() == ErrorCode.ERROR_CODE_RECORD_LIST_TOO_LARGE);
    }

    private synchronized void linger() {
        long end = System.nanoTime() + config.linger().toNanos();
        try {
            for (long left = config.linger().toMillis();
                    left > 0 && bytes < config.batchLimitBytes() && !isFlushing && !cluster.closed();
                    left = (end - System.nanoTime()) / 1_000_000) {
                wait(Math.min(left, LONGEST_WAIT_MS));
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    /** Takes the next batch, which is in flight until the next call. */
    private synchronized List<Item> take(long limit) {
        inFlight = remove(limit);
        return inFlight;
    }

    private List<Item> remove(long limit) {
        List<Item> batch = new ArrayList<>();
        long size = 0;
        while (!items.isEmpty() && (batch.isEmpty() || size + items.peek().size <= limit)) {
            size += items.peek().size;
            batch.add(items.remove());
        }
        bytes -= size;
        return batch;
    }

    private void finish(List<Item> batch, long base, Throwable failure) {
        producer.release(batch.size());
        for (int i = 0; i < batch.size(); i++) {
            if (failure == null) {
                batch.get(i).outcome.complete(new RecordMetadata(topic, partition, base + i));
            } else {
                batch.get(i).outcome.completeExceptionally(failure);
            }
            batch.get(i).ended.complete(null);
        }
    }

    /** What one batch has gone through: its records, and whether the broker may have appended them. */
    private static final class Delivery {
        private final List<Record> records = new ArrayList<>();
        private boolean unknown;
        /** End of the time for which metadata with another topic id may be out of date; null while the id is the same. */
        private Deadline doubtUntil;
    }

    /**
     * Appends one batch and returns its first offset. It repeats the same records under the same sequence number until the
     * oldest record's delivery time-out; the broker recognises a repetition of records that it has appended. A leader that
     * lost acknowledged records does not have the batch: it gets the batch under a new producer id.
     */
    private long deliver(List<Item> batch) {
        Delivery delivery = new Delivery();
        batch.forEach(item -> delivery.records.add(item.encoded));
        try {
            Deadline total = batch.get(0).deadline;
            long base = cluster.retryUnlessMissing(operation(), total, absence, () -> cluster.closed() || producer.aborted(),
                    deadline -> cluster.onLeader(
                            deadline, topic, partition, route -> attempt(delivery, route, deadline, total)));
            nextSequence = after(nextSequence, batch.size());
            return base;
        } catch (PacelineException failure) {
            if (delivery.unknown || failure.code() == ErrorCode.ERROR_CODE_INVALID_PRODUCER_EPOCH) {
                // The broker may have used up the sequence numbers of the batch, or it refuses the epoch.
                producerId = -1;
            }
            // A failure before the first append, for example without a leader, surely appended nothing.
            throw failure.with(failure.retriable(), !delivery.unknown);
        } catch (RuntimeException | Error broken) {
            // The batch may have been sent.
            producerId = -1;
            throw broken;
        }
    }

    private long attempt(Delivery delivery, Cluster.Route route, Deadline deadline, Deadline total) {
        absence.found();
        identify(delivery, route);
        // An attempt without enough time for the response would make a definite outcome unknown.
        long shortestMs = Math.min(SHORTEST_ATTEMPT_MS, Retry.millis(config.deliveryTimeout()) / 2);
        if (deadline.isExpired() || Retry.leftMs(total) < shortestMs) {
            throw Failures.unsent(operation(), "the delivery time-out was over before the record could be sent");
        }
        try {
            return append(delivery, route, deadline);
        } catch (PacelineException failure) {
            if (failure.code() == ErrorCode.ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER) {
                // All sequence numbers before this batch were acknowledged, and no other batch is in flight.
                Warnings.log("leader lost acknowledged records: " + failure.getMessage());
                delivery.unknown = false;
                producerId = -1;
                throw failure.with(true, true);
            }
            delivery.unknown |= !failure.definite();
            throw failure;
        }
    }

    /**
     * Takes a producer id where there is none. A topic created again under the same name starts with a new id, unless the
     * outcome of an attempt is unknown.
     */
    private void identify(Delivery delivery, Cluster.Route route) {
        if (!topicId.equals(route.topicId()) && !delivery.unknown) {
            topicId = route.topicId();
            producerId = -1;
        }
        if (producerId >= 0) {
            return;
        }
        try {
            InitProducerIdResponse answer = Cluster.call("asking for a producer id",
                    () -> route.log().initProducerId(InitProducerIdRequest.getDefaultInstance()));
            producerId = answer.getProducerId();
            producerEpoch = answer.getProducerEpoch();
            nextSequence = 0;
        } catch (PacelineException failure) {
            // Asking appended nothing.
            throw failure.with(failure.retriable(), true);
        }
    }

    private long append(Delivery delivery, Cluster.Route route, Deadline deadline) {
        String operation = operation();
        if (!topicId.equals(route.topicId())) {
            // The broker that described the topic may be behind. When others agree, the outcome can never be learned.
            delivery.doubtUntil =
                    delivery.doubtUntil == null ? Retry.after(cluster.requestTimeout()) : delivery.doubtUntil;
            throw Failures.of(operation, ErrorCode.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
                    "the topic was deleted and created again; the deleted topic may have had the record")
                    .with(!delivery.doubtUntil.isExpired(), false);
        }
        delivery.doubtUntil = null;
        RecordList list = RecordList.newBuilder().addAllRecords(delivery.records)
                .setProducerId(producerId).setProducerEpoch(producerEpoch).setBaseSequence(nextSequence).build();
        ProduceRequest request = ProduceRequest.newBuilder()
                .setAcks(Acks.ACKS_ALL).setTimeoutMs(Retry.serverWaitMs(deadline))
                .addPartitions(ProducePartition.newBuilder()
                        .setTopic(topic).setPartition(partition).setTopicId(topicId)
                        .setCurrentLeaderEpoch(route.leader().epoch()).setRecords(list))
                .build();
        ProduceResponse answer = Cluster.call(operation, () -> route.log().produce(request));
        if (answer.getPartitionsCount() != 1) {
            throw Failures.of(operation, ErrorCode.ERROR_CODE_UNKNOWN_SERVER_ERROR, "the answer does not hold one partition");
        }
        ProducePartitionResult result = answer.getPartitions(0);
        if (result.hasError()) {
            Failures.throwPartition(operation, result.getError());
        }
        return result.getBaseOffset();
    }

    /** Returns the sequence number that follows count records; 0 follows the largest. */
    static int after(int sequence, int count) {
        return (int) (((long) sequence + count) & Integer.MAX_VALUE);
    }

    private static Record encode(ProducerRecord record) {
        Instant moment = record.timestamp() == null ? Instant.now() : record.timestamp();
        Record.Builder encoded = Record.newBuilder().setTimestampMs(moment.toEpochMilli());
        if (record.key() != null) {
            encoded.setKey(wrap(record.key()));
        }
        if (record.value() != null) {
            encoded.setValue(wrap(record.value()));
        }
        for (RecordHeader header : record.headers()) {
            Header.Builder pair = encoded.addHeadersBuilder().setKey(header.key());
            if (header.value() != null) {
                pair.setValue(wrap(header.value()));
            }
        }
        return encoded.build();
    }

    private static ByteString wrap(byte[] data) {
        return UnsafeByteOperations.unsafeWrap(data);
    }
}
