package io.paceline.samples;

import io.paceline.client.PacelineClient;
import io.paceline.client.Producer;
import io.paceline.client.ProducerConfig;
import io.paceline.client.ProducerRecord;
import io.paceline.client.RecordMetadata;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Writes records to a topic and prints their partitions and offsets. */
public final class Produce {
    /** Options: --bootstrap, --topic, --count. */
    public static void main(String[] arguments) {
        Options options = new Options(arguments);
        int count = options.number("count", 10);
        try (PacelineClient client = options.client();
                Producer producer = client.producer(ProducerConfig.defaults().withLinger(Duration.ofMillis(5)))) {
            List<CompletableFuture<RecordMetadata>> outcomes = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                outcomes.add(producer.send(new ProducerRecord(options.text("topic", "rides"), "key-" + i % 16, "value-" + i)));
            }
            for (CompletableFuture<RecordMetadata> outcome : outcomes) {
                RecordMetadata where = outcome.join();
                if (count <= 10) {
                    System.out.println("partition " + where.partition() + ", offset " + where.offset());
                }
            }
            System.out.println(count + " records acknowledged by every in-sync replica");
        }
    }

    private Produce() {}
}
