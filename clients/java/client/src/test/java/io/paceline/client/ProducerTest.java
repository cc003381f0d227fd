package io.paceline.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Deadline;
import io.grpc.Status;
import io.paceline.v1.DescribeTopicsRequest;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.InitProducerIdResponse;
import io.paceline.v1.LogServiceGrpc;
import io.paceline.v1.ProducePartitionResult;
import io.paceline.v1.ProduceRequest;
import io.paceline.v1.ProduceResponse;
import io.paceline.v1.RecordList;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Function;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The broker of these tests takes requests of 4 MiB, as real ones do by default. */
@Timeout(60)
class ProducerTest {
    private static final int LIMIT = 4 * 1024 * 1024;

    private FakeBroker broker;
    private PacelineClient client;

    @BeforeEach
    void start() throws IOException {
        AtomicLong end = new AtomicLong();
        broker = new FakeBroker();
        broker.topics.put("t", 1);
        broker.on(LogServiceGrpc.getInitProducerIdMethod(), request -> InitProducerIdResponse.newBuilder().setProducerId(1).build());
        broker.on(LogServiceGrpc.getProduceMethod(), request -> ProduceResponse.newBuilder()
                .addPartitions(ProducePartitionResult.newBuilder().setTopic("t").setBaseOffset(
                        end.getAndAdd(request.getPartitions(0).getRecords().getRecordsCount()))).build());
        client = PacelineClient.connect(broker.address());
    }

    @AfterEach
    void stop() {
        client.close();
        broker.close();
    }

    private static ProducerRecord record(int bytes) {
        return new ProducerRecord("t", null, new byte[bytes]);
    }

    @Test
    void aBatchAboveTheLimitOfARequestIsSplit() {
        ProducerConfig config = ProducerConfig.defaults().withBatchBytes(64 * 1024 * 1024).withLinger(Duration.ofMillis(50));
        try (Producer producer = client.producer(config)) {
            List<CompletableFuture<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < 12; i++) {
                sent.add(producer.send(record(1024 * 1024)));
            }
            for (int i = 0; i < 12; i++) {
                assertEquals(i, sent.get(i).join().offset());
            }
        }
        List<ProduceRequest> requests = broker.requests(ProduceRequest.class);
        requests.forEach(request -> assertTrue(request.getSerializedSize() <= LIMIT));
        assertTrue(requests.stream().anyMatch(request -> request.getPartitions(0).getRecords().getRecordsCount() > 1));
    }

    @Test
    void aBatchThatIsTooLargeForItsTopicIsSplit() {
        AtomicLong end = new AtomicLong();
        broker.on(LogServiceGrpc.getProduceMethod(), request -> {
            RecordList list = request.getPartitions(0).getRecords();
            var result = ProducePartitionResult.newBuilder().setTopic("t");
            if (list.getRecordsList().stream().mapToInt(one -> one.getValue().size()).sum() > 200) {
                result.getErrorBuilder().setCode(ErrorCode.ERROR_CODE_MESSAGE_TOO_LARGE).setMessage("on purpose");
            } else if (list.getBaseSequence() != end.get()) {
                result.getErrorBuilder().setCode(ErrorCode.ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER).setMessage("on purpose");
            } else {
                result.setBaseOffset(end.getAndAdd(list.getRecordsCount()));
            }
            return ProduceResponse.newBuilder().addPartitions(result).build();
        });
        List<CompletableFuture<RecordMetadata>> sent = new ArrayList<>();
        try (Producer producer = client.producer(ProducerConfig.defaults().withLinger(Duration.ofMillis(50)))) {
            for (int i = 0; i < 9; i++) {
                sent.add(producer.send(record(i == 4 ? 300 : 90)));
            }
        }
        for (int i = 0; i < 9; i++) {
            if (i != 4) {
                assertEquals(i < 4 ? i : i - 1, sent.get(i).join().offset());
            }
        }
        PacelineException failure =
                (PacelineException) assertThrows(CompletionException.class, sent.get(4)::join).getCause();
        assertEquals("MESSAGE_TOO_LARGE", failure.codeName());
        assertTrue(failure.definite());
    }

    @Test
    void aRequestThatTheServerRefusesForItsSizeIsSurelyNotInTheLog() {
        broker.on(LogServiceGrpc.getProduceMethod(), request -> {
            throw Status.RESOURCE_EXHAUSTED.withDescription("SERVER: Received message larger than max (9 vs. 8)")
                    .asRuntimeException();
        });
        try (Producer producer = client.producer()) {
            PacelineException failure = (PacelineException) assertThrows(
                    CompletionException.class, () -> producer.send(record(9)).join()).getCause();
            assertEquals("MESSAGE_TOO_LARGE", failure.codeName());
            assertTrue(failure.definite());
        }
    }

    @Test
    void aRequestWhoseResponseIsTooLargeMayBeInTheLog() {
        broker.on(LogServiceGrpc.getProduceMethod(), request -> {
            throw Status.RESOURCE_EXHAUSTED.withDescription("SERVER: Sent message larger than max (9 vs. 8)")
                    .asRuntimeException();
        });
        try (Producer producer = client.producer()) {
            PacelineException failure = (PacelineException) assertThrows(
                    CompletionException.class, () -> producer.send(record(9)).join()).getCause();
            assertEquals("MESSAGE_TOO_LARGE", failure.codeName());
            assertFalse(failure.definite());
        }
    }

    @Test
    void flushWaitsForARecordWhoseFutureTheCallerHasEnded() throws InterruptedException {
        CountDownLatch answering = new CountDownLatch(1);
        broker.on(LogServiceGrpc.getProduceMethod(), request -> {
            awaitQuietly(answering);
            return ProduceResponse.newBuilder()
                    .addPartitions(ProducePartitionResult.newBuilder().setTopic("t").setBaseOffset(7)).build();
        });
        try (Producer producer = client.producer()) {
            CompletableFuture<RecordMetadata> first = producer.send(record(1));
            producer.send(record(1)).cancel(true);
            assertFalse(producer.flush(Duration.ofMillis(300)));
            answering.countDown();
            assertTrue(producer.flush(Duration.ofSeconds(30)));
            assertEquals(7, first.getNow(null).offset());
        } finally {
            answering.countDown();
        }
    }

    @Test
    void aRecordWhoseTopicWasNotFoundIsSurelyNotInTheLog() {
        try (Producer producer = client.producer(ProducerConfig.defaults().withDeliveryTimeout(Duration.ofSeconds(1)))) {
            PacelineException failure = (PacelineException) assertThrows(CompletionException.class,
                    () -> producer.send(new ProducerRecord("absent", "key", "value")).join()).getCause();
            assertEquals("UNKNOWN_TOPIC_OR_PARTITION", failure.codeName());
            assertTrue(failure.definite());
        }
    }

    private static void awaitQuietly(CountDownLatch latch) {
        try {
            latch.await(30, TimeUnit.SECONDS);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private static ProducerRecord record(String topic, Integer partition) {
        return new ProducerRecord(topic, partition, null, new byte[1], List.of(), null);
    }

    /** Sends a record in another thread, because send waits for a topic that no broker knows. */
    private static CompletableFuture<RecordMetadata> sendBeside(Producer producer, ProducerRecord record) {
        return CompletableFuture.supplyAsync(() -> producer.send(record), task -> new Thread(task).start())
                .thenCompose(Function.identity());
    }

    private static PacelineException failureOf(CompletableFuture<RecordMetadata> sent) {
        return (PacelineException) assertThrows(ExecutionException.class, () -> sent.get(30, TimeUnit.SECONDS)).getCause();
    }

    @Test
    void aRecordOfATopicThatNoBrokerKnowsFailsAfterSomeSeconds() {
        Producer producer = client.producer();
        long began = System.nanoTime();
        List<CompletableFuture<RecordMetadata>> sent = List.of(
                sendBeside(producer, record("absent", null)), sendBeside(producer, record("absent", 0)),
                sendBeside(producer, record("t", 1)));
        for (CompletableFuture<RecordMetadata> one : sent) {
            PacelineException failure = failureOf(one);
            assertEquals("UNKNOWN_TOPIC_OR_PARTITION", failure.codeName());
            assertTrue(failure.definite());
            assertTrue(System.nanoTime() - began > TimeUnit.SECONDS.toNanos(3), "a new topic needs a moment");
        }
    }

    @Test
    void allBatchesOfATopicThatNoBrokerKnowsFailAtTheSameTime() {
        Producer producer = client.producer(ProducerConfig.defaults().withBatchBytes(1));
        List<CompletableFuture<RecordMetadata>> sent =
                Stream.generate(() -> producer.send(record("absent", 0))).limit(20).toList();
        sent.forEach(one -> assertEquals("UNKNOWN_TOPIC_OR_PARTITION", failureOf(one).codeName()));
        broker.topics.put("absent", 1);
        assertEquals(0, producer.send(record("absent", 0)).orTimeout(30, TimeUnit.SECONDS).join().offset());
    }

    @Test
    void aTopicThatIsCreatedWhileTheProducerWaitsTakesItsRecords() throws Exception {
        Producer producer = client.producer();
        List<CompletableFuture<RecordMetadata>> sent = List.of(
                sendBeside(producer, record("new", null)), sendBeside(producer, record("new", 0)));
        while (broker.requests(DescribeTopicsRequest.class).size() < 4) {
            Thread.sleep(5);
        }
        broker.topics.put("new", 1);
        for (CompletableFuture<RecordMetadata> one : sent) {
            one.get(30, TimeUnit.SECONDS);
        }
    }

    @Test
    void aProducerLogsWhyItWaitsAndItsErrorHasTheCause() {
        ClientConfig unreachable = ClientConfig.of("127.0.0.1:1");
        CountDownLatch answering = new CountDownLatch(1);
        broker.on(LogServiceGrpc.getProduceMethod(), request -> {
            awaitQuietly(answering);
            return ProduceResponse.getDefaultInstance();
        });
        try (LoggedWarnings logged = new LoggedWarnings(); PacelineClient lonely = new PacelineClient(unreachable)) {
            ProducerConfig config = ProducerConfig.defaults().withDeliveryTimeout(Duration.ofSeconds(5));
            List<CompletableFuture<RecordMetadata>> sent = List.of(
                    sendBeside(lonely.producer(config), record("u", null)), sendBeside(lonely.producer(config), record("u", 3)));
            client.producer().send(record("t", 0));
            logged.await("producing to u: waiting for a response: describing the cluster: BROKER_NOT_AVAILABLE");
            logged.await("producing to u/3: waiting for a response: describing the cluster: BROKER_NOT_AVAILABLE");
            sent.forEach(one -> assertFalse(one.isDone(), "the reason is logged before the end"));
            logged.await("producing to t/0: waiting for a response");
            for (CompletableFuture<RecordMetadata> one : sent) {
                PacelineException failure = failureOf(one);
                assertEquals("BROKER_NOT_AVAILABLE", failure.codeName());
                assertTrue(failure.getMessage().contains("Connection refused"), failure.getMessage());
                assertTrue(failure.definite());
            }
        } finally {
            answering.countDown();
        }
    }

    @Test
    void aRecordThatWaitedForAlmostItsWholeDeliveryTimeIsNotSent() throws Exception {
        AtomicLong endNanos = new AtomicLong();
        broker.on(LogServiceGrpc.getInitProducerIdMethod(), request -> {
            try {
                // The answer leaves 80 ms of the delivery time.
                TimeUnit.NANOSECONDS.sleep(endNanos.get() - System.nanoTime() - 80_000_000);
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
            return InitProducerIdResponse.newBuilder().setProducerId(1).build();
        });
        // The first record loads classes, which takes longer than the attempt that this test is about.
        assertEquals(0, client.producer().send(record("t", 0)).get(30, TimeUnit.SECONDS).offset());
        Producer producer = client.producer(ProducerConfig.defaults().withDeliveryTimeout(Duration.ofSeconds(2)));
        endNanos.set(System.nanoTime() + TimeUnit.SECONDS.toNanos(2));
        PacelineException failure = failureOf(producer.send(record("t", 0)));
        assertEquals("REQUEST_TIMED_OUT", failure.codeName());
        assertTrue(failure.definite(), failure.getMessage());
        assertEquals(1, broker.requests(ProduceRequest.class).size());
    }

    @Test
    void everyRecordHasItsOutcomeWhenCloseReturns() throws Exception {
        CountDownLatch answering = new CountDownLatch(1);
        broker.on(LogServiceGrpc.getProduceMethod(), request -> {
            awaitQuietly(answering);
            return ProduceResponse.newBuilder().addPartitions(ProducePartitionResult.newBuilder().setTopic("t")).build();
        });
        try {
            Producer producer = client.producer();
            CompletableFuture<RecordMetadata> inFlight = producer.send(record(1));
            while (broker.requests(ProduceRequest.class).isEmpty()) {
                Thread.sleep(5);
            }
            CompletableFuture<RecordMetadata> unsent = producer.send(record(1));
            producer.close(Duration.ofMillis(100));
            assertTrue(inFlight.isDone() && unsent.isDone());
            assertFalse(failureOf(inFlight).definite(), "the broker may have appended it");
            assertTrue(failureOf(unsent).definite());
        } finally {
            answering.countDown();
        }
    }

    @Test
    void aTopicThatWasCreatedAgainTakesRecordsSoonAfterAnAttemptWithoutAnAnswer() throws Exception {
        var answer = ProduceResponse.newBuilder().addPartitions(ProducePartitionResult.newBuilder().setTopic("t")).build();
        broker.on(LogServiceGrpc.getProduceMethod(), request -> {
            if (broker.ids.put("t", "another") == null) {
                throw Status.UNAVAILABLE.withDescription("the connection broke").asRuntimeException();
            }
            return answer;
        });
        ClientConfig config = ClientConfig.of(broker.address()).withRequestTimeout(Duration.ofSeconds(2));
        try (PacelineClient impatient = new PacelineClient(config)) {
            Producer producer = impatient.producer();
            CompletableFuture<RecordMetadata> unknown = producer.send(record(1));
            // The delivery time-out is two minutes.
            PacelineException failure = (PacelineException) assertThrows(
                    ExecutionException.class, () -> unknown.get(20, TimeUnit.SECONDS)).getCause();
            assertEquals("UNKNOWN_TOPIC_OR_PARTITION", failure.codeName());
            assertFalse(failure.definite());
            assertEquals(0, producer.send(record(2)).get(20, TimeUnit.SECONDS).offset());
        }
        List<ProduceRequest> requests = broker.requests(ProduceRequest.class);
        assertEquals(List.of("id-of-t", "another"),
                requests.stream().map(one -> one.getPartitions(0).getTopicId()).distinct().toList());
    }

    /** The log of a leader that checks sequence numbers; an unclean election takes records from its end. */
    private final class LeaderLog {
        private final List<RecordList> batches = new ArrayList<>();
        private long producerIds;
        private boolean deposed;

        LeaderLog() {
            broker.on(LogServiceGrpc.getInitProducerIdMethod(), request -> nextId());
            broker.on(LogServiceGrpc.getProduceMethod(), request -> ProduceResponse.newBuilder()
                    .addPartitions(append(request.getPartitions(0).getRecords())).build());
        }

        synchronized InitProducerIdResponse nextId() {
            return InitProducerIdResponse.newBuilder().setProducerId(++producerIds).build();
        }

        synchronized ProducePartitionResult.Builder append(RecordList batch) {
            var result = ProducePartitionResult.newBuilder().setTopic("t").setBaseOffset(batches.size());
            int next = batches.stream().filter(one -> one.getProducerId() == batch.getProducerId())
                    .mapToInt(one -> one.getBaseSequence() + 1).max().orElse(batch.getBaseSequence());
            if (deposed) {
                deposed = false;
                result.getErrorBuilder().setCode(ErrorCode.ERROR_CODE_NOT_LEADER_OR_FOLLOWER).setMessage("on purpose");
            } else if (batch.getBaseSequence() != next) {
                result.getErrorBuilder().setCode(ErrorCode.ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER).setMessage("on purpose");
            } else {
                batches.add(batch);
            }
            return result;
        }

        /** Removes the last batch; {@code unknown} leaves the outcome of the next attempt unknown. */
        synchronized void lose(boolean unknown) {
            batches.remove(batches.size() - 1);
            deposed = unknown;
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aLeaderThatLostRecordsGetsTheNextOnesUnderANewProducerId(boolean unknown) {
        LeaderLog log = new LeaderLog();
        try (LoggedWarnings logged = new LoggedWarnings(); Producer producer = client.producer()) {
            producer.send(record(1)).join();
            producer.send(record(2)).join();
            log.lose(unknown);
            assertEquals(1, producer.send(record(3)).join().offset());
            assertEquals(2, producer.send(record(4)).join().offset());
            logged.await("leader lost acknowledged records: producing to t/0: OUT_OF_ORDER_SEQUENCE_NUMBER");
        }
        assertEquals(List.of(1, 3, 4), log.batches.stream().map(one -> one.getRecords(0).getValue().size()).toList());
        assertEquals(2, log.producerIds);
    }

    @Test
    void aLeaderThatRefusesEverySequenceGetsFewRequestsUntilTheDeliveryTimeout() {
        broker.on(LogServiceGrpc.getProduceMethod(), request -> {
            var result = ProducePartitionResult.newBuilder().setTopic("t");
            result.getErrorBuilder().setCode(ErrorCode.ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER).setMessage("on purpose");
            return ProduceResponse.newBuilder().addPartitions(result).build();
        });
        ProducerConfig config = ProducerConfig.defaults().withDeliveryTimeout(Duration.ofSeconds(2));
        try (Producer producer = client.producer(config)) {
            PacelineException failure = failureOf(producer.send(record(1)));
            assertEquals("OUT_OF_ORDER_SEQUENCE_NUMBER", failure.codeName());
            assertTrue(failure.definite());
        }
        int requests = broker.requests(ProduceRequest.class).size();
        assertTrue(requests > 1 && requests < 20, requests + " requests");
    }

    @Test
    void flushSendsRecordsThatLinger() {
        ProducerConfig config = ProducerConfig.defaults().withLinger(Duration.ofMinutes(10));
        Producer producer = client.producer(config);
        CompletableFuture<RecordMetadata> first = producer.send(record(1));
        assertTrue(producer.flush(Duration.ofSeconds(30)));
        assertEquals(0, first.getNow(null).offset());
        CompletableFuture<RecordMetadata> second = producer.send(record(1));
        producer.close(Duration.ofSeconds(30));
        assertEquals(1, second.getNow(null).offset());
    }

    @Test
    void recordsThatLingerFailWhenTheClientIsClosed() throws InterruptedException {
        CompletableFuture<RecordMetadata> sent =
                client.producer(ProducerConfig.defaults().withLinger(Duration.ofMinutes(10))).send(record(1));
        while (Thread.getAllStackTraces().values().stream().noneMatch(stack -> Stream.of(stack).limit(4).anyMatch(one ->
                one.getClassName().equals(Object.class.getName()) && one.getMethodName().startsWith("wait"))
                && Stream.of(stack).anyMatch(one -> one.getMethodName().equals("linger")))) {
            Thread.sleep(5);
        }
        client.close();
        assertThrows(ExecutionException.class, () -> sent.get(30, TimeUnit.SECONDS));
    }

    @Test
    void anErrorOfTheSenderFailsItsBatchOnly() throws Exception {
        var ticker = new Deadline.Ticker() {
            @Override
            public long nanoTime() {
                return System.nanoTime();
            }
        };
        try (Cluster cluster = new Cluster(ClientConfig.of(broker.address()));
                Producer producer = client.producer()) {
            var queue = new PartitionQueue(
                    producer, cluster, task -> new Thread(task).start(), ProducerConfig.defaults(), "t", 0);
            // gRPC throws an AssertionError for a deadline with a clock of its own.
            CompletableFuture<RecordMetadata> broken = new CompletableFuture<>();
            queue.put(new PartitionQueue.Item(record(1), Deadline.after(1, TimeUnit.MINUTES, ticker), broken));
            assertInstanceOf(AssertionError.class, assertThrows(
                    ExecutionException.class, () -> broken.get(30, TimeUnit.SECONDS)).getCause());
            CompletableFuture<RecordMetadata> next = new CompletableFuture<>();
            queue.put(new PartitionQueue.Item(record(1), Retry.after(Duration.ofSeconds(30)), next));
            assertEquals(0, next.get(30, TimeUnit.SECONDS).offset());
        }
    }

    @Test
    void stagesOfARecordThatACloseFailsMayUseTheProducer() throws Exception {
        CountDownLatch ended = new CountDownLatch(1);
        broker.on(LogServiceGrpc.getProduceMethod(), request -> {
            awaitQuietly(ended);
            return ProduceResponse.newBuilder().addPartitions(ProducePartitionResult.newBuilder().setTopic("t")).build();
        });
        try {
            Producer producer = client.producer();
            producer.send(record(1));
            while (broker.requests(ProduceRequest.class).isEmpty()) {
                Thread.sleep(5);
            }
            CompletableFuture<Boolean> flushed = producer.send(record(1)).handle((where, failure) -> CompletableFuture
                    .supplyAsync(() -> producer.flush(Duration.ZERO)).completeOnTimeout(null, 10, TimeUnit.SECONDS).join());
            producer.close(Duration.ofMillis(100));
            assertEquals(false, flushed.get(30, TimeUnit.SECONDS));
        } finally {
            ended.countDown();
        }
    }

    @Test
    void aRecordAboveTheLimitOfARequestIsRefusedBeforeItIsSent() {
        try (Producer producer = client.producer()) {
            PacelineException failure = (PacelineException) assertThrows(
                    CompletionException.class, () -> producer.send(record(LIMIT)).join()).getCause();
            assertEquals("MESSAGE_TOO_LARGE", failure.codeName());
            assertTrue(failure.definite());
            assertEquals(0, broker.requests.size());
            // The largest record that is sent fits into a request.
            assertEquals(0, producer.send(record(LIMIT - 1024 - 32)).join().offset());
        }
        assertTrue(broker.requests(ProduceRequest.class).get(0).getSerializedSize() <= LIMIT);
    }
}
