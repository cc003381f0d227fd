package io.paceline.client;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.time.Duration;
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
            assertEquals(FakeBroker.END,
                    client.admin().listOffset("t", 0, OffsetSpec.latest(), Duration.ofSeconds(20)).orElseThrow());
        }
    }
}
