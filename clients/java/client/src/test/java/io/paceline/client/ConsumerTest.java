package io.paceline.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.paceline.v1.EpochEndOffset;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.FetchPartition;
import io.paceline.v1.FetchPartitionResult;
import io.paceline.v1.FetchRequest;
import io.paceline.v1.FetchResponse;
import io.paceline.v1.ListOffsetsPartitionResult;
import io.paceline.v1.ListOffsetsResponse;
import io.paceline.v1.LogServiceGrpc;
import io.paceline.v1.PartitionError;
import io.paceline.v1.Record;
import io.paceline.v1.RecordList;
import java.io.IOException;
import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;

class ConsumerTest {
    @Test
    void recordsOfOnePartitionDoNotWaitForTheFetchOfAnother() throws IOException {
        CountDownLatch released = new CountDownLatch(1);
        try (FakeBroker broker = new FakeBroker(); PacelineClient client = PacelineClient.connect(broker.address())) {
            broker.topics.put("t", 2);
            broker.on(LogServiceGrpc.getFetchMethod(), request -> {
                int partition = request.getPartitions(0).getPartition();
                if (partition == 1) {
                    awaitQuietly(released);
                }
                return FetchResponse.newBuilder().addPartitions(FetchPartitionResult.newBuilder().setTopic("t")
                        .setPartition(partition).setRecords(RecordList.newBuilder().addRecords(
                                Record.newBuilder().setOffset(request.getPartitions(0).getFetchOffset())))).build();
            });
            Consumer consumer = client.consumer();
            consumer.assign("t", 0, 0L);
            consumer.assign("t", 1, 0L);
            // The fetch of partition 1 fails after ten seconds at the earliest.
            assertTimeoutPreemptively(Duration.ofSeconds(8), () -> {
                for (long offset = 0; offset < 3; offset++) {
                    ConsumerRecord record = consumer.poll(Duration.ofSeconds(20)).get(0);
                    assertEquals(0, record.partition());
                    assertEquals(offset, record.offset());
                }
            });
            released.countDown();
            int found = 0;
            while (found != 1) {
                found = consumer.poll(Duration.ofSeconds(20)).get(0).partition();
            }
        } finally {
            released.countDown();
        }
    }

    @Test
    void aTopicThatWasCreatedAgainIsReadFromItsBeginning() throws IOException {
        try (FakeBroker broker = new FakeBroker(); PacelineClient client = PacelineClient.connect(broker.address())) {
            broker.topics.put("t", 1);
            Consumer consumer = client.consumer();
            Consumer strict = client.consumer(ConsumerConfig.defaults().withReset(ResetPolicy.ERROR));
            for (Consumer one : List.of(consumer, strict)) {
                one.assign("t", 0, 4L);
                assertEquals(6, one.poll(Duration.ofSeconds(20)).size());
            }
            broker.ids.put("t", "another");
            assertEquals(0, consumer.poll(Duration.ofSeconds(20)).get(0).offset());
            assertEquals(10, consumer.position("t", 0).orElseThrow());
            PacelineException failure =
                    assertThrows(PacelineException.class, () -> strict.poll(Duration.ofSeconds(20)));
            assertEquals("OFFSET_OUT_OF_RANGE", failure.codeName());
            strict.assign("t", 0, 9L);
            assertEquals(9, strict.poll(Duration.ofSeconds(20)).get(0).offset());
        }
    }

    @Test
    void aPositionInADeletedTopicIsNotCommitted() throws IOException {
        try (FakeBroker broker = new FakeBroker(); PacelineClient client = PacelineClient.connect(broker.address())) {
            broker.topics.put("t", 1);
            Consumer consumer = client.consumer();
            consumer.assign("t", 0, 4L);
            assertEquals(6, consumer.poll(Duration.ofSeconds(20)).size());
            assertEquals(10, consumer.consumed().get(new TopicPartition("t", 0)).offset());
            broker.ids.put("t", "another");
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(40);
            while (broker.requests(FetchRequest.class).stream().noneMatch(
                    one -> one.getPartitions(0).getTopicId().equals("another"))) {
                assertEquals(List.of(), consumer.poll(Duration.ZERO));
                pause(20);
            }
            // The answer comes between two polls.
            while (!consumer.consumed().isEmpty()) {
                assertTrue(System.nanoTime() < end, "the position of the deleted topic is kept");
                pause(5);
            }
        }
    }

    @Test
    void aLeaderWithoutTheLastEpochIsNoTruncationWhileItHasEveryRecord() throws IOException {
        try (FakeBroker broker = new FakeBroker(); PacelineClient client = PacelineClient.connect(broker.address())) {
            broker.topics.put("t", 1);
            broker.on(LogServiceGrpc.getFetchMethod(), request -> {
                FetchPartition asked = request.getPartitions(0);
                var result = FetchPartitionResult.newBuilder().setTopic("t");
                // The leader of epoch 5 died before it wrote a record.
                if (asked.hasLastFetchedEpoch() && asked.getLastFetchedEpoch() == 5 && asked.getFetchOffset() == 1) {
                    result.setDivergingEpoch(EpochEndOffset.newBuilder().setEpoch(3).setEndOffset(1));
                } else {
                    result.setRecords(RecordList.newBuilder().addRecords(Record.newBuilder().setOffset(asked.getFetchOffset())));
                }
                return FetchResponse.newBuilder().addPartitions(result).build();
            });
            Consumer consumer = client.consumer();
            consumer.assign("t", 0, 0L);
            assertEquals(0, consumer.poll(Duration.ofSeconds(20)).get(0).offset());
            assertEquals(1, consumer.poll(Duration.ofSeconds(20)).get(0).offset());
            assertEquals(3, broker.requests(FetchRequest.class).get(2).getPartitions(0).getLastFetchedEpoch());
        }
    }

    @Test
    void aRecordThatIsWrittenWhileATimeIsLookedUpIsNotSkipped() throws IOException {
        try (FakeBroker broker = new FakeBroker(); PacelineClient client = PacelineClient.connect(broker.address())) {
            broker.topics.put("t", 1);
            AtomicLong end = new AtomicLong(7);
            broker.on(LogServiceGrpc.getListOffsetsMethod(), request -> {
                var found = ListOffsetsPartitionResult.newBuilder();
                if (request.getPartitions(0).getSpec() == io.paceline.v1.OffsetSpec.OFFSET_SPEC_TIMESTAMP) {
                    end.incrementAndGet(); // The first record of that time is written after the answer.
                } else {
                    found.setOffset(end.get());
                }
                return ListOffsetsResponse.newBuilder().addPartitions(found).build();
            });
            Consumer consumer = client.consumer();
            consumer.assign("t", 0, OffsetSpec.at(Instant.now()));
            assertEquals(7, consumer.poll(Duration.ofSeconds(20)).get(0).offset());
        }
    }

    @Test
    void aTopicThatIsRecreatedBeforeTheFirstFetchIsLookedUpAgain() throws IOException {
        try (FakeBroker broker = new FakeBroker(); PacelineClient client = PacelineClient.connect(broker.address())) {
            broker.topics.put("t", 1);
            broker.on(LogServiceGrpc.getListOffsetsMethod(), request -> {
                // The topic is re-created right after the first answer; its successor has three records.
                long end = broker.ids.put("t", "another") == null ? 7 : 3;
                boolean isEnd = request.getPartitions(0).getSpec() == io.paceline.v1.OffsetSpec.OFFSET_SPEC_LATEST;
                return ListOffsetsResponse.newBuilder()
                        .addPartitions(ListOffsetsPartitionResult.newBuilder().setOffset(isEnd ? end : 0)).build();
            });
            broker.on(LogServiceGrpc.getFetchMethod(), request -> {
                FetchPartition asked = request.getPartitions(0);
                var result = FetchPartitionResult.newBuilder().setTopic("t");
                if (!asked.getTopicId().equals("another")) {
                    result.getErrorBuilder().setCode(ErrorCode.ERROR_CODE_INCONSISTENT_TOPIC_ID).setMessage("on purpose");
                } else if (asked.getFetchOffset() > 3) {
                    result.getErrorBuilder().setCode(ErrorCode.ERROR_CODE_OFFSET_OUT_OF_RANGE).setMessage("on purpose");
                } else {
                    result.setRecords(RecordList.newBuilder().addRecords(Record.newBuilder().setOffset(asked.getFetchOffset())));
                }
                return FetchResponse.newBuilder().addPartitions(result).build();
            });
            Consumer consumer = client.consumer();
            consumer.assign("t", 0, OffsetSpec.latest());
            assertEquals(3, consumer.poll(Duration.ofSeconds(20)).get(0).offset());
        }
    }

    @Test
    void aTopicThatNoBrokerKnowsIsReportedAndReadWhenItIsCreated() throws IOException {
        try (FakeBroker broker = new FakeBroker(); PacelineClient client = PacelineClient.connect(broker.address())) {
            Consumer atOffset = client.consumer();
            Consumer atPlace = client.consumer();
            atOffset.assign("new", 0, 4L);
            atPlace.assign("new", 0, OffsetSpec.earliest());
            for (Consumer one : List.of(atOffset, atPlace)) {
                long began = System.nanoTime();
                PacelineException failure = assertThrows(PacelineException.class, () -> one.poll(Duration.ofSeconds(30)));
                assertEquals("UNKNOWN_TOPIC_OR_PARTITION", failure.codeName());
                assertTrue(System.nanoTime() - began > TimeUnit.SECONDS.toNanos(3), "a new topic needs a moment");
            }
            broker.topics.put("new", 1);
            assertEquals(4, atOffset.poll(Duration.ofSeconds(30)).get(0).offset());
            assertEquals(0, atPlace.poll(Duration.ofSeconds(30)).get(0).offset());
        }
    }

    @Test
    void aPartitionThatCannotBeReadIsReportedWithTheCauseAndReadLater() throws IOException {
        try (FakeBroker broker = new FakeBroker(); PacelineClient client = PacelineClient.connect(broker.address())) {
            broker.topics.put("t", 1);
            Consumer consumer = client.consumer(ConsumerConfig.defaults().withApiTimeout(Duration.ofSeconds(1)));
            consumer.assign("t", 0, 4L);
            assertEquals(6, consumer.poll(Duration.ofSeconds(20)).size());
            broker.topics.remove("t");
            broker.ids.put("t", "deleted");
            for (int i = 0; i < 2; i++) {
                PacelineException failure =
                        assertThrows(PacelineException.class, () -> consumer.poll(Duration.ofSeconds(20)));
                assertEquals("REQUEST_TIMED_OUT", failure.codeName());
                assertTrue(failure.getMessage().contains("t/0: REQUEST_TIMED_OUT: it could not be read for 1000 ms"),
                        failure.getMessage());
                // On a slow machine the second may have been the only answer.
                assertTrue(List.of("UNKNOWN_TOPIC_OR_PARTITION", "INCONSISTENT_TOPIC_ID")
                        .contains(((PacelineException) failure.getCause()).codeName()), failure.getMessage());
            }
            broker.topics.put("t", 1);
            assertEquals(0, consumer.poll(Duration.ofSeconds(20)).get(0).offset());
        }
    }

    @Test
    void aFailureIsReportedBesidePartitionsThatAlwaysHaveRecords() throws IOException {
        try (FakeBroker broker = new FakeBroker(); PacelineClient client = PacelineClient.connect(broker.address())) {
            broker.topics.put("t", 3);
            broker.on(LogServiceGrpc.getFetchMethod(), request -> {
                FetchPartition asked = request.getPartitions(0);
                var result = FetchPartitionResult.newBuilder().setTopic("t").setPartition(asked.getPartition());
                if (asked.getPartition() == 1) {
                    result.getErrorBuilder().setCode(ErrorCode.ERROR_CODE_CORRUPT_MESSAGE).setMessage("on purpose");
                } else {
                    result.setRecords(RecordList.newBuilder().addRecords(Record.newBuilder().setOffset(asked.getFetchOffset())));
                }
                return FetchResponse.newBuilder().addPartitions(result).build();
            });
            Consumer consumer = client.consumer();
            for (int partition = 0; partition < 3; partition++) {
                consumer.assign("t", partition, 0L);
            }
            long[] next = new long[3];
            for (int i = 0; i < 5_000 && (next[0] < 5 || next[1] < 5 || next[2] < 5); i++) {
                try {
                    for (ConsumerRecord record : consumer.poll(Duration.ofSeconds(20))) {
                        assertEquals(next[record.partition()]++, record.offset());
                    }
                } catch (PacelineException failure) {
                    assertEquals("CORRUPT_MESSAGE", failure.codeName());
                    next[1]++;
                }
                pause(20); // The fetch of one busy partition has ended when a poll begins, that of the other when it ends.
            }
            for (long one : next) {
                assertTrue(one >= 5, () -> "seen " + Arrays.toString(next));
            }
        }
    }

    private static void pause(long timeMs) {
        try {
            Thread.sleep(timeMs);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    @Test
    void partitionsAndOffsetsBelowZeroAreRefused() {
        try (PacelineClient client = PacelineClient.connect("127.0.0.1:1")) {
            Consumer consumer = client.consumer();
            assertThrows(IllegalArgumentException.class, () -> consumer.assign("t", -1, OffsetSpec.latest()));
            assertThrows(IllegalArgumentException.class, () -> consumer.assign("t", 0, -1L));
            assertThrows(IllegalStateException.class, () -> consumer.poll(Duration.ZERO), "nothing is assigned");
        }
    }

    @Test
    void theReasonWhyNothingIsReadIsLogged() throws IOException {
        try (LoggedWarnings logged = new LoggedWarnings(); FakeBroker broker = new FakeBroker();
                PacelineClient client = PacelineClient.connect(broker.address())) {
            Consumer consumer = client.consumer();
            consumer.assign("absent-" + broker.port(), 0, 0L);
            Runnable poll = () -> assertEquals(List.of(), consumer.poll(Duration.ofMillis(100)));
            logged.await("describing topic absent-" + broker.port(), poll);
            consumer.unassign(new TopicPartition("absent-" + broker.port(), 0));
            broker.topics.put("t", 1);
            consumer.assign("t", 0, 4_000L);
            broker.on(LogServiceGrpc.getFetchMethod(), request -> FetchResponse.newBuilder()
                    .addPartitions(FetchPartitionResult.newBuilder().setError(PartitionError.newBuilder()
                            .setCode(ErrorCode.ERROR_CODE_OFFSET_OUT_OF_RANGE).setMessage("on purpose"))).build());
            logged.await("reading t/0 from offset 4000: OFFSET_OUT_OF_RANGE", poll);
        }
    }

    private static void awaitQuietly(CountDownLatch latch) {
        try {
            latch.await(30, TimeUnit.SECONDS);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }
}
