package io.paceline.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Message;
import io.paceline.v1.CommitOffsetsRequest;
import io.paceline.v1.CommitOffsetsResponse;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.FindCoordinatorRequest;
import io.paceline.v1.GroupServiceGrpc;
import io.paceline.v1.HeartbeatRequest;
import io.paceline.v1.JoinGroupRequest;
import io.paceline.v1.LeaveGroupRequest;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class GroupConsumerTest {
    private static final TopicPartition FIRST = new TopicPartition("t", 0);
    private static final TopicPartition SECOND = new TopicPartition("t", 1);

    private FakeBroker broker;
    private FakeGroup group;
    private PacelineClient client;
    private GroupConsumer consumer;
    private final List<String> events = new ArrayList<>();
    private final List<Long> read = new ArrayList<>();

    @BeforeEach
    void start() throws IOException {
        broker = new FakeBroker();
        broker.topics.put("t", 2);
        group = new FakeGroup(broker);
        client = PacelineClient.connect(broker.address());
    }

    @AfterEach
    void stop() {
        if (consumer != null) {
            consumer.close(Duration.ofSeconds(1));
        }
        client.close();
        broker.close();
    }

    private static GroupConfig config() {
        return GroupConfig.of("g").withHeartbeatInterval(Duration.ofMillis(20)).withoutAutoCommit()
                .withMetadataMaxAge(Duration.ofMillis(50));
    }

    private void open(GroupConfig config) {
        consumer = client.groupConsumer(config);
        consumer.subscribe(List.of("t"), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Set<TopicPartition> partitions) {
                events.add("assigned " + partitions);
            }

            @Override
            public void onPartitionsRevoked(Set<TopicPartition> partitions) {
                events.add("revoked " + partitions);
            }

            @Override
            public void onPartitionsLost(Set<TopicPartition> partitions) {
                events.add("lost " + partitions);
            }
        });
    }

    /** Polls with a short time-out until a condition holds. */
    private void pollUntil(BooleanSupplier holds) {
        while (!holds.getAsBoolean()) {
            consumer.poll(Duration.ofMillis(50)).forEach(record -> read.add(record.offset()));
        }
    }

    private static void await(BooleanSupplier holds) throws InterruptedException {
        while (!holds.getAsBoolean()) {
            Thread.sleep(5);
        }
    }

    private <Q extends Message> int count(Class<Q> kind) {
        return broker.requests(kind).size();
    }

    @Test
    void aMemberJoinsWithTheIdOfTheCoordinatorAndBeginsAtCommittedOffsets() {
        group.committed.put(FIRST, 8L);
        open(config());
        pollUntil(() -> read.size() == 12);
        assertEquals(List.of("assigned [t/0, t/1]"), events);
        assertEquals("member-1", consumer.memberId());
        assertEquals(1, consumer.generation());
        assertEquals(10, consumer.position(FIRST).orElseThrow());
        assertEquals(List.of("", "member-1"),
                broker.requests(JoinGroupRequest.class).stream().map(JoinGroupRequest::getMemberId).toList());
        consumer.commitSync();
        assertEquals(Map.of(FIRST, 10L, SECOND, 10L), group.committed);
        consumer.close();
        assertEquals(List.of("assigned [t/0, t/1]", "revoked [t/0, t/1]"), events);
        assertEquals("member-1", broker.requests(LeaveGroupRequest.class).get(0).getMembers(0).getMemberId());
    }

    @Test
    void aRebalanceCommitsRevokesAndAssignsAgainWithoutReadingARecordTwice() {
        open(config().withAutoCommit(Duration.ofHours(1)));
        pollUntil(() -> read.size() == 20);
        group.heartbeatRefusals.add(ErrorCode.ERROR_CODE_REBALANCE_IN_PROGRESS);
        pollUntil(() -> events.size() == 3 && consumer.position(SECOND).isPresent());
        assertEquals(List.of("assigned [t/0, t/1]", "revoked [t/0, t/1]", "assigned [t/0, t/1]"), events);
        assertEquals(Map.of(FIRST, 10L, SECOND, 10L), group.committed);
        assertEquals(2, consumer.generation());
        assertEquals("member-1", consumer.memberId());
        assertEquals(20, read.size());
    }

    @Test
    void aMemberThatTheCoordinatorDoesNotKnowLosesItsPartitionsAndCommitsNothing() {
        open(config().withAutoCommit(Duration.ofHours(1)));
        pollUntil(() -> read.size() >= 10);
        group.heartbeatRefusals.add(ErrorCode.ERROR_CODE_UNKNOWN_MEMBER_ID);
        pollUntil(() -> events.size() == 3);
        assertEquals("lost [t/0, t/1]", events.get(1));
        assertEquals("member-2", consumer.memberId());
        assertEquals(0, count(CommitOffsetsRequest.class));
    }

    @Test
    void anotherProcessWithTheSameInstanceIdEndsTheConsumer() {
        open(config().withGroupInstanceId("static"));
        pollUntil(() -> !events.isEmpty());
        group.heartbeatRefusals.add(ErrorCode.ERROR_CODE_FENCED_INSTANCE_ID);
        assertThrows(FencedInstanceIdException.class, () -> pollUntil(() -> false));
        assertThrows(FencedInstanceIdException.class, () -> consumer.poll(Duration.ofMillis(50)));
        consumer.close();
        assertEquals(0, count(LeaveGroupRequest.class), "a static member does not leave");
    }

    @Test
    void commitsFollowTheCoordinatorAndAreRepeatedWhileItLoads() {
        open(config());
        pollUntil(() -> read.size() == 20);
        int finds = count(FindCoordinatorRequest.class);
        group.callRefusals.addAll(List.of(
                ErrorCode.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.ERROR_CODE_NOT_COORDINATOR));
        group.commitErrors.add(ErrorCode.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS);
        consumer.commitSync();
        assertEquals(Map.of(FIRST, 10L, SECOND, 10L), group.committed);
        assertTrue(count(FindCoordinatorRequest.class) > finds, "after NOT_COORDINATOR the coordinator is looked up again");
    }

    @Test
    void aCommitOfALostMemberIsATypedError() {
        open(config());
        CommitFailedException early = assertThrows(
                CommitFailedException.class, () -> consumer.commitSync(Map.of(FIRST, new OffsetAndMetadata(1))));
        assertTrue(early.definite());
        pollUntil(() -> read.size() == 20);
        group.commitErrors.add(ErrorCode.ERROR_CODE_REBALANCE_IN_PROGRESS);
        assertThrows(RebalanceInProgressException.class, consumer::commitSync);
        group.callRefusals.add(ErrorCode.ERROR_CODE_UNKNOWN_MEMBER_ID);
        CommitFailedException failure = assertThrows(CommitFailedException.class, consumer::commitSync);
        assertEquals(ErrorCode.ERROR_CODE_ILLEGAL_GENERATION, failure.code());
        assertTrue(failure.getMessage().contains("UNKNOWN_MEMBER_ID"), failure.getMessage());
    }

    @Test
    void aCommitThatSucceededForSomePartitionsIsNotDefinitelyRefused() {
        broker.on(GroupServiceGrpc.getCommitOffsetsMethod(), request -> {
            var answer = CommitOffsetsResponse.newBuilder();
            request.getOffsetsList().forEach(one -> {
                var result = answer.addPartitionsBuilder().setTopic(one.getTopic()).setPartition(one.getPartition());
                if (one.getPartition() == 1) {
                    result.getErrorBuilder().setCode(ErrorCode.ERROR_CODE_OFFSET_METADATA_TOO_LARGE).setMessage("on purpose");
                }
            });
            return answer.build();
        });
        consumer = client.groupConsumer(config());
        OffsetAndMetadata one = new OffsetAndMetadata(1);
        for (Map<TopicPartition, OffsetAndMetadata> offsets : List.of(Map.of(SECOND, one), Map.of(FIRST, one, SECOND, one))) {
            PacelineException failure = assertThrows(PacelineException.class, () -> consumer.commitSync(offsets));
            assertEquals("OFFSET_METADATA_TOO_LARGE", failure.codeName());
            assertEquals(offsets.size() == 1, failure.definite());
        }
    }

    @Test
    void aRefusedCommitMakesTheMemberJoinAgainBeforeTheNextHeartbeat() {
        open(config().withHeartbeatInterval(Duration.ofSeconds(40)));
        pollUntil(() -> read.size() == 20);
        group.callRefusals.add(ErrorCode.ERROR_CODE_UNKNOWN_MEMBER_ID);
        assertThrows(CommitFailedException.class, consumer::commitSync);
        pollUntil(() -> events.size() == 3);
        assertEquals("lost [t/0, t/1]", events.get(1));
        assertEquals("member-2", consumer.memberId());
        group.commitErrors.add(ErrorCode.ERROR_CODE_REBALANCE_IN_PROGRESS);
        assertThrows(RebalanceInProgressException.class, () -> consumer.commitSync(Map.of(FIRST, new OffsetAndMetadata(1))));
        pollUntil(() -> events.size() == 5);
        assertEquals("revoked [t/0, t/1]", events.get(3));
        assertEquals(0, count(HeartbeatRequest.class));
    }

    @Test
    void commitsDoNotPileUpWhileTheCoordinatorDoesNotAnswer() {
        CountDownLatch answering = new CountDownLatch(1);
        group.beforeCommit = () -> awaitQuietly(answering, 50_000);
        try {
            consumer = client.groupConsumer(config());
            List<CompletableFuture<Void>> commits = new ArrayList<>();
            for (long offset = 1; offset <= 50; offset++) {
                commits.add(consumer.commitAsync(Map.of(FIRST, new OffsetAndMetadata(offset))));
            }
            for (CompletableFuture<Void> commit : commits) {
                // The five seconds of a commit begin with its call, not with the end of the earlier commit.
                var failure = assertThrows(ExecutionException.class, () -> commit.get(20, TimeUnit.SECONDS));
                assertEquals("REQUEST_TIMED_OUT", ((PacelineException) failure.getCause()).codeName());
            }
        } finally {
            answering.countDown();
        }
        assertTrue(count(CommitOffsetsRequest.class) < 50, "most commits were not sent");
    }

    @Test
    void aCommitWaitsForTheEarlierOneAlsoWhenTheCallerHasCancelledItsFuture() throws Exception {
        CountDownLatch answering = new CountDownLatch(1);
        AtomicBoolean isFirst = new AtomicBoolean(true);
        group.beforeCommit = () -> {
            if (isFirst.getAndSet(false)) {
                awaitQuietly(answering, 50_000);
            }
        };
        try {
            consumer = client.groupConsumer(config());
            CompletableFuture<Void> first = consumer.commitAsync(Map.of(FIRST, new OffsetAndMetadata(1)));
            await(() -> count(CommitOffsetsRequest.class) == 1);
            first.cancel(true);
            CompletableFuture<Void> second = consumer.commitAsync(Map.of(FIRST, new OffsetAndMetadata(2)));
            assertThrows(TimeoutException.class, () -> second.get(300, TimeUnit.MILLISECONDS));
            answering.countDown();
            second.get(20, TimeUnit.SECONDS);
            assertEquals(Map.of(FIRST, 2L), group.committed);
        } finally {
            answering.countDown();
        }
    }

    private static void awaitQuietly(CountDownLatch latch, long limitMs) {
        try {
            latch.await(limitMs, TimeUnit.MILLISECONDS);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    @Test
    void partitionsAreRevokedAfterEarlierCommitsHaveEnded() {
        CountDownLatch impossible = new CountDownLatch(1);
        group.beforeCommit = () -> awaitQuietly(impossible, 300);
        open(config());
        pollUntil(() -> read.size() == 20);
        consumer.commitAsync(Map.of(FIRST, new OffsetAndMetadata(3)));
        int joins = count(JoinGroupRequest.class);
        group.heartbeatRefusals.add(ErrorCode.ERROR_CODE_REBALANCE_IN_PROGRESS);
        pollUntil(() -> count(JoinGroupRequest.class) > joins);
        assertEquals(Map.of(FIRST, 3L), group.committed);
        pollUntil(() -> consumer.generation() == 2 && events.size() == 3);
        CompletableFuture<Void> last = consumer.commitAsync(Map.of(FIRST, new OffsetAndMetadata(4)));
        consumer.close();
        assertTrue(last.isDone() && !last.isCompletedExceptionally());
        assertEquals(Map.of(FIRST, 4L), group.committed);
        consumer = client.groupConsumer(config());
        consumer.commitAsync(Map.of(FIRST, new OffsetAndMetadata(5)));
        consumer.close();
        assertEquals(Map.of(FIRST, 5L), group.committed);
    }

    @Test
    void aCoordinatorThatIsNotFoundEndsACommitWithThatCause() {
        consumer = client.groupConsumer(config());
        assertEquals(Map.of(), consumer.committed(List.of(FIRST)));
        int finds = count(FindCoordinatorRequest.class);
        for (int i = 0; i < 100; i++) {
            group.findRefusals.add(ErrorCode.ERROR_CODE_COORDINATOR_NOT_AVAILABLE);
        }
        group.callRefusals.add(ErrorCode.ERROR_CODE_NOT_COORDINATOR);
        PacelineException failure = assertThrows(PacelineException.class, () ->
                consumer.commitSync(Map.of(FIRST, new OffsetAndMetadata(1)), Duration.ofSeconds(3)));
        assertEquals("COORDINATOR_NOT_AVAILABLE", failure.codeName());
        assertTrue(count(FindCoordinatorRequest.class) > finds + 1, "it is looked for more than once");
    }

    @Test
    void pollThrowsARefusalThatIsNotRetriable() {
        group.joinRefusals.add(ErrorCode.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL);
        open(config());
        PacelineException failure = assertThrows(PacelineException.class, () -> pollUntil(() -> false));
        assertEquals("INCONSISTENT_GROUP_PROTOCOL", failure.codeName());
        pollUntil(() -> !events.isEmpty());
    }

    @Test
    void pollThrowsTheExceptionOfAListenerAndTheMemberKeepsItsPlace() {
        consumer = client.groupConsumer(config());
        consumer.subscribe(List.of("t"), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Set<TopicPartition> partitions) {
                // For example a commit of another consumer.
                throw Failures.of("committing", ErrorCode.ERROR_CODE_ILLEGAL_GENERATION, "on purpose");
            }
        });
        assertThrows(CommitFailedException.class, () -> pollUntil(() -> !consumer.assignment().isEmpty()));
        pollUntil(() -> read.size() == 20);
        assertEquals(1, consumer.generation());
        consumer.commitSync();
    }

    @Test
    void aMemberThatDoesNotPollLeavesAndItsNextPollJoinsAgain() throws InterruptedException {
        open(config().withMaxPollInterval(Duration.ofSeconds(1)));
        pollUntil(() -> read.size() == 20);
        await(() -> consumer.generation() == -1 && count(LeaveGroupRequest.class) >= 1);
        assertThrows(CommitFailedException.class, consumer::commitSync);
        pollUntil(() -> events.size() == 3);
        assertEquals("lost [t/0, t/1]", events.get(1));
        assertEquals("member-2", consumer.memberId());
    }

    @Test
    void aPollThatIsLongerThanTheMaximumIntervalKeepsTheMember() {
        open(config().withMaxPollInterval(Duration.ofSeconds(2)));
        pollUntil(() -> read.size() == 20);
        assertEquals(List.of(), consumer.poll(Duration.ofSeconds(3)));
        assertEquals(0, count(LeaveGroupRequest.class));
        assertEquals(List.of("assigned [t/0, t/1]"), events);
    }

    @Test
    void theLeaderJoinsAgainWhenATopicGrowsOrIsCreated() {
        open(config());
        pollUntil(() -> events.size() == 1);
        broker.topics.clear();
        group.heartbeatRefusals.add(ErrorCode.ERROR_CODE_REBALANCE_IN_PROGRESS);
        pollUntil(() -> events.size() == 3);
        assertEquals("assigned []", events.get(2));
        broker.ids.put("t", "another");
        broker.topics.put("t", 1);
        pollUntil(() -> consumer.assignment().equals(Set.of(FIRST)));
        broker.topics.put("t", 2);
        pollUntil(() -> consumer.assignment().equals(Set.of(FIRST, SECOND)));
    }

    @Test
    void aTopicThatNoBrokerKnowsIsReportedBeforeTheFirstJoin() {
        broker.topics.clear();
        open(config());
        PacelineException failure = assertThrows(PacelineException.class, () -> pollUntil(() -> false));
        assertEquals("UNKNOWN_TOPIC_OR_PARTITION", failure.codeName());
        assertTrue(failure.getMessage().contains("brokers do not know t"), failure.getMessage());
        assertEquals(0, count(JoinGroupRequest.class));
        broker.topics.put("t", 2);
        pollUntil(() -> read.size() == 20);
    }

    @Test
    void aFencedMemberMayJoinAgainAfterItsSubscriptionHasEnded() {
        open(config().withGroupInstanceId("static"));
        pollUntil(() -> !events.isEmpty());
        group.heartbeatRefusals.add(ErrorCode.ERROR_CODE_FENCED_INSTANCE_ID);
        assertThrows(FencedInstanceIdException.class, () -> pollUntil(() -> false));
        consumer.unsubscribe();
        consumer.subscribe(List.of("t"));
        pollUntil(() -> consumer.generation() == 2);
    }

    @Test
    void theResetPolicyChoosesThePositionWhereNoOffsetIsCommitted() {
        open(config().withReset(ResetPolicy.LATEST));
        pollUntil(() -> consumer.position(FIRST).isPresent());
        assertEquals(10, consumer.position(FIRST).orElseThrow());
        consumer.close();
        open(config().withReset(ResetPolicy.ERROR));
        PacelineException failure = assertThrows(PacelineException.class, () -> pollUntil(() -> false));
        assertEquals("OFFSET_OUT_OF_RANGE", failure.codeName());
    }

    @Test
    void theThreadOfAMemberEndsWithTheClient() throws InterruptedException {
        String name = "g-" + broker.port();
        client.groupConsumer(name).subscribe(List.of("t"));
        BooleanSupplier isAlive = () -> Thread.getAllStackTraces().keySet().stream()
                .anyMatch(one -> one.getName().equals("paceline-heartbeat-" + name));
        assertTrue(isAlive.getAsBoolean());
        client.close();
        await(() -> !isAlive.getAsBoolean());
    }

    @Test
    void heartbeatsAreSentWhileTheProgramDoesNotPoll() throws InterruptedException {
        open(config());
        pollUntil(() -> !events.isEmpty());
        int before = count(HeartbeatRequest.class);
        await(() -> count(HeartbeatRequest.class) >= before + 5);
    }

    @Test
    void settingsThatCannotWorkAreRefused() {
        assertThrows(IllegalArgumentException.class, () -> GroupConfig.of(""));
        assertThrows(IllegalArgumentException.class, () -> GroupConfig.of("g").withSessionTimeout(Duration.ZERO));
        GroupConfig late = GroupConfig.of("g").withSessionTimeout(Duration.ofSeconds(2));
        assertThrows(IllegalArgumentException.class, () -> client.groupConsumer(late));
        GroupConsumer unsubscribed = client.groupConsumer("g");
        assertThrows(IllegalStateException.class, () -> unsubscribed.poll(Duration.ZERO));
        assertThrows(IllegalArgumentException.class, () -> unsubscribed.subscribe(List.of()));
    }
}
