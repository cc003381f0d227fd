package io.paceline.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Deadline;
import io.paceline.v1.ClusterEvent;
import io.paceline.v1.DescribeTopicsRequest;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.EventBatch;
import io.paceline.v1.EventGap;
import io.paceline.v1.MetadataServiceGrpc;
import io.paceline.v1.WatchEventsRequest;
import io.paceline.v1.WatchEventsResponse;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class ClusterTest {
    private FakeBroker broker;

    @BeforeEach
    void start() throws IOException {
        broker = new FakeBroker();
        broker.topics.put("t", 1);
    }

    @AfterEach
    void stop() {
        broker.close();
    }

    @Test
    void anOffsetIsFoundInATopicThatBeginsAgainWithLowerLeaderEpochs() {
        try (PacelineClient client = PacelineClient.connect(broker.address())) {
            assertEquals(FakeBroker.END, client.admin().listOffset("t", 0, OffsetSpec.latest()).orElseThrow());
            broker.leaderEpoch = 0;
            broker.ids.put("t", "another");
            assertEquals(FakeBroker.END,
                    client.admin().listOffset("t", 0, OffsetSpec.latest(), Duration.ofSeconds(20)).orElseThrow());
        }
    }

    @Test
    void aRefusalForGoodEndsTheWatchOfEvents() {
        broker.on(MetadataServiceGrpc.getWatchEventsMethod(), request -> {
            throw FakeBroker.refusal(ErrorCode.ERROR_CODE_CLUSTER_AUTHORIZATION_FAILED, Map.of());
        });
        try (PacelineClient client = PacelineClient.connect(broker.address())) {
            PacelineException failure = assertTimeoutPreemptively(Duration.ofSeconds(20), () ->
                    assertThrows(PacelineException.class, () -> client.admin().watchEvents(event -> true)));
            assertEquals("CLUSTER_AUTHORIZATION_FAILED", failure.codeName());
        }
    }

    @Test
    void aWatchOfEventsContinuesAtTheActiveControllerWithTheEventsSinceTheLast() {
        List<WatchEventsRequest> requests = new CopyOnWriteArrayList<>();
        broker.on(MetadataServiceGrpc.getWatchEventsMethod(), request -> {
            requests.add(request);
            return WatchEventsResponse.newBuilder().setBatch(EventBatch.newBuilder()
                    .setCursor("c" + requests.size()).addEvents(ClusterEvent.newBuilder().setTimeMs(requests.size()))).build();
        });
        try (PacelineClient client = PacelineClient.connect(broker.address())) {
            assertTimeoutPreemptively(Duration.ofSeconds(20), () ->
                    client.admin().watchEvents(event -> event.getTimeMs() < 2));
        }
        assertEquals(List.of("", "c1"), requests.stream().map(WatchEventsRequest::getCursor).toList());
        assertEquals(List.of(false, true), requests.stream().map(WatchEventsRequest::hasSinceMs).toList());
        assertEquals(1, requests.get(1).getSinceMs());
        assertEquals(List.of(true, true), requests.stream().map(WatchEventsRequest::getActiveControllerOnly).toList());
    }

    @Test
    void aWatchOfEventsLeavesAControllerThatIsSilent() {
        CountDownLatch ended = new CountDownLatch(1);
        AtomicInteger calls = new AtomicInteger();
        broker.on(MetadataServiceGrpc.getWatchEventsMethod(), request -> {
            if (calls.incrementAndGet() == 1) {
                try {
                    ended.await(50, TimeUnit.SECONDS);
                } catch (InterruptedException stopped) {
                    Thread.currentThread().interrupt();
                }
            }
            return WatchEventsResponse.newBuilder().setBatch(
                    EventBatch.newBuilder().setCursor("c").addEvents(ClusterEvent.newBuilder())).build();
        });
        try (Cluster cluster = new Cluster(ClientConfig.of(broker.address()))) {
            assertTimeoutPreemptively(Duration.ofSeconds(20), () ->
                    new EventWatch(cluster, Duration.ofMillis(300)).run(batch -> false));
        } finally {
            ended.countDown();
        }
        assertTrue(calls.get() >= 2);
    }

    @Test
    void aWatchOfEventBatchesSaysThatEventsAreMissing() {
        AtomicInteger calls = new AtomicInteger();
        broker.on(MetadataServiceGrpc.getWatchEventsMethod(), request -> {
            EventBatch.Builder batch = EventBatch.newBuilder().setCursor("c");
            // The second batch is a sign of life.
            switch (calls.incrementAndGet()) {
                case 1 -> batch.addEvents(ClusterEvent.newBuilder());
                case 3 -> batch.setGap(EventGap.newBuilder().setLostEvents(7));
                default -> { }
            }
            return WatchEventsResponse.newBuilder().setBatch(batch).build();
        });
        List<String> seen = new ArrayList<>();
        try (PacelineClient client = PacelineClient.connect(broker.address())) {
            assertTimeoutPreemptively(Duration.ofSeconds(20), () -> client.admin().watchEventBatches(batch -> {
                seen.add(batch.getEventsCount() + " events, " + batch.getGap().getLostEvents() + " lost");
                return !batch.hasGap();
            }));
        }
        assertEquals(List.of("1 events, 0 lost", "0 events, 7 lost"), seen);
    }

    @Test
    void aBrokerThatIsBehindTakesNoPartitionOfATopicAway() {
        Deadline soon = Retry.after(Duration.ofSeconds(20));
        broker.topics.put("t", 3);
        try (Cluster cluster = new Cluster(ClientConfig.of(broker.address()), Duration.ZERO)) {
            assertEquals(3, cluster.partitionCount("counting", soon, "t"));
            broker.topics.put("t", 2);
            assertEquals(3, cluster.partitionCount("counting", soon, "t"));
            assertEquals(Map.of("t", 3), cluster.partitionCounts(soon, List.of("t")));
            assertEquals(5, (int) cluster.onLeader(soon, "t", 2, route -> route.leader().epoch()));
            broker.ids.put("t", "another");
            assertEquals(2, cluster.partitionCount("counting", soon, "t"));
            assertEquals(Map.of("t", 2), cluster.partitionCounts(soon, List.of("t")));
        }
    }

    @Test
    void aTopicWhosePartitionsAreNotKnownYetIsWaitedFor() throws Exception {
        broker.topics.put("t", 0);
        try (Cluster cluster = new Cluster(ClientConfig.of(broker.address()))) {
            var count = CompletableFuture.supplyAsync(() -> cluster.partitionCount("counting", Retry.after(Duration.ofSeconds(50)), "t"));
            while (broker.requests(DescribeTopicsRequest.class).size() < 2) {
                assertFalse(count.isDone());
                Thread.sleep(5);
            }
            broker.topics.put("t", 3);
            assertEquals(3, count.get(50, TimeUnit.SECONDS));
        }
    }

    @Test
    void aBrokerThatIsBehindDoesNotBringBackTheLeaderBeforeAFailedOne() {
        try (Cluster cluster = new Cluster(ClientConfig.of(broker.address()))) {
            Deadline soon = Retry.after(Duration.ofSeconds(20));
            assertThrows(PacelineException.class, () -> cluster.onLeader(soon, "t", 0, route -> {
                throw Failures.of("calling", ErrorCode.ERROR_CODE_NOT_LEADER_OR_FOLLOWER, "on purpose");
            }));
            broker.leaderEpoch = 4;
            PacelineException failure = assertThrows(PacelineException.class, () -> leaderEpoch(cluster));
            assertEquals("LEADER_NOT_AVAILABLE", failure.codeName());
            broker.leaderEpoch = 6;
            assertEquals(6, leaderEpoch(cluster));
        }
    }

    @Test
    void aTopicThatNoBrokerKnowsIsReportedBeforeTheTimeOfTheCallIsOver() {
        try (PacelineClient client = PacelineClient.connect(broker.address())) {
            PacelineException failure = assertTimeoutPreemptively(Duration.ofSeconds(40), () -> assertThrows(
                    PacelineException.class, () -> client.admin().describeTopic("absent", Duration.ofMinutes(5))));
            assertEquals("UNKNOWN_TOPIC_OR_PARTITION", failure.codeName());
        }
    }

    @Test
    void partitionsThatWereAddedAreFoundWhenTheMetadataIsOld() {
        try (Cluster young = new Cluster(ClientConfig.of(broker.address()));
                Cluster old = new Cluster(ClientConfig.of(broker.address()), Duration.ZERO)) {
            for (Cluster cluster : List.of(young, old)) {
                assertEquals(1, cluster.partitionCount("counting", Retry.after(Duration.ofSeconds(20)), "t"));
            }
            broker.topics.put("t", 2);
            assertEquals(1, young.partitionCount("counting", Retry.after(Duration.ofSeconds(20)), "t"));
            assertEquals(2, old.partitionCount("counting", Retry.after(Duration.ofSeconds(20)), "t"));
        }
    }

    @Test
    void leadersAreAskedForAgainWhenTheMetadataIsOld() {
        try (Cluster young = new Cluster(ClientConfig.of(broker.address()));
                Cluster old = new Cluster(ClientConfig.of(broker.address()), Duration.ZERO)) {
            assertEquals(List.of(5, 5), List.of(leaderEpoch(young), leaderEpoch(old)));
            broker.leaderEpoch = 6;
            assertEquals(List.of(5, 6), List.of(leaderEpoch(young), leaderEpoch(old)));
            // A broker that is behind.
            broker.leaderEpoch = 4;
            assertEquals(6, leaderEpoch(old));
            broker.ids.put("t", "another");
            assertEquals(4, leaderEpoch(old));
        }
    }

    private static int leaderEpoch(Cluster cluster) {
        return cluster.onLeader(Retry.after(Duration.ofSeconds(20)), "t", 0, route -> route.leader().epoch());
    }

    @Test
    void theKnownNumberOfPartitionsIsUsedWhileNoBrokerAnswers() {
        try (Cluster cluster = new Cluster(ClientConfig.of(broker.address()), Duration.ZERO)) {
            broker.topics.put("t", 3);
            assertEquals(3, cluster.partitionCount("counting", Retry.after(Duration.ofSeconds(20)), "t"));
            broker.close();
            assertEquals(3, cluster.partitionCount("counting", Retry.after(Duration.ofSeconds(20)), "t"));
        }
    }
}
