package io.paceline.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.paceline.v1.AdminServiceGrpc;
import io.paceline.v1.CreateTopicResult;
import io.paceline.v1.CreateTopicsResponse;
import io.paceline.v1.DeleteTopicsRequest;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.FetchPartitionResult;
import io.paceline.v1.FetchResponse;
import io.paceline.v1.InitProducerIdResponse;
import io.paceline.v1.LogServiceGrpc;
import io.paceline.v1.ProducePartitionResult;
import io.paceline.v1.ProduceResponse;
import io.paceline.v1.Record;
import io.paceline.v1.RecordList;
import io.paceline.v1.TopicError;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The first answer of each kind asks for a pause. */
@Timeout(120)
class ThrottlesTest {
    private static final int PAUSE_MS = 300;

    private final List<Long> arrivals = new CopyOnWriteArrayList<>();
    private FakeBroker broker;
    private PacelineClient client;
    private volatile int pauseMs = PAUSE_MS;

    @BeforeEach
    void start() throws IOException {
        broker = new FakeBroker();
        broker.topics.put("t", 1);
        client = PacelineClient.connect(broker.address());
    }

    @AfterEach
    void stop() {
        client.close();
        broker.close();
    }

    private int arrived() {
        arrivals.add(System.nanoTime());
        return arrivals.size() == 1 ? pauseMs : 0;
    }

    private void assertPause() {
        long pause = (arrivals.get(1) - arrivals.get(0)) / 1_000_000;
        assertTrue(pause >= PAUSE_MS, () -> "second request after " + pause + " ms");
        assertEquals(Duration.ofMillis(PAUSE_MS), client.throttleTime());
    }

    @Test
    void aProducerAboveItsQuotaSendsTheNextBatchAfterThePause() {
        broker.on(LogServiceGrpc.getInitProducerIdMethod(), request -> InitProducerIdResponse.newBuilder().setProducerId(1).build());
        broker.on(LogServiceGrpc.getProduceMethod(), request -> ProduceResponse.newBuilder().setThrottleMs(arrived())
                .addPartitions(ProducePartitionResult.newBuilder().setTopic("t").setBaseOffset(arrivals.size() - 1)).build());
        try (Producer producer = client.producer()) {
            for (int offset = 0; offset < 2; offset++) {
                assertEquals(offset, producer.send(new ProducerRecord("t", null, new byte[1])).join().offset());
            }
        }
        assertPause();
    }

    @Test
    void aConsumerAboveItsQuotaFetchesAfterThePause() {
        broker.on(LogServiceGrpc.getFetchMethod(), request -> FetchResponse.newBuilder().setThrottleMs(arrived())
                .addPartitions(FetchPartitionResult.newBuilder().setRecords(RecordList.newBuilder().addRecords(
                        Record.newBuilder().setOffset(request.getPartitions(0).getFetchOffset())))).build());
        List<Long> offsets = new ArrayList<>();
        Consumer consumer = client.consumer();
        consumer.assign("t", 0, 0);
        while (offsets.size() < 2) {
            consumer.poll(Duration.ofSeconds(1)).forEach(record -> offsets.add(record.offset()));
            client.admin().describeCluster(); // has no quota
        }
        assertEquals(List.of(0L, 1L), offsets.subList(0, 2));
        assertPause();
    }

    @Test
    void anAdminAboveItsQuotaRepeatsARefusedChangeAfterThePause() {
        broker.on(AdminServiceGrpc.getCreateTopicsMethod(), request -> {
            CreateTopicsResponse.Builder answer = CreateTopicsResponse.newBuilder().setThrottleMs(arrived());
            CreateTopicResult.Builder result = answer.addTopicsBuilder().setTopicId("id");
            if (arrivals.size() == 1) {
                result.setError(TopicError.newBuilder().setCode(ErrorCode.ERROR_CODE_THROTTLING_QUOTA_EXCEEDED));
            }
            return answer.build();
        });
        assertEquals("id", client.admin().createTopic(new NewTopic("u", 1, 1)));
        assertPause();
    }

    @Test
    void aCallWithoutTimeForThePauseFailsWithoutBeingSent() {
        pauseMs = 60_000;
        broker.on(AdminServiceGrpc.getCreateTopicsMethod(), request -> CreateTopicsResponse.newBuilder()
                .setThrottleMs(arrived()).addTopics(CreateTopicResult.newBuilder().setTopicId("id")).build());
        client.admin().createTopic(new NewTopic("u", 1, 1));
        PacelineException failure = assertThrows(PacelineException.class,
                () -> client.admin().deleteTopic("u", Duration.ofSeconds(5)));
        assertEquals(ErrorCode.ERROR_CODE_THROTTLED, failure.code());
        assertTrue(failure.definite());
        assertEquals(List.of(), broker.requests(DeleteTopicsRequest.class));
    }
}
