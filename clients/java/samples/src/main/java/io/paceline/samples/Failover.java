package io.paceline.samples;

import io.paceline.client.Consumer;
import io.paceline.client.ConsumerConfig;
import io.paceline.client.ConsumerRecord;
import io.paceline.client.NewTopic;
import io.paceline.client.OffsetSpec;
import io.paceline.client.PacelineClient;
import io.paceline.client.Producer;
import io.paceline.client.ProducerConfig;
import io.paceline.client.ProducerRecord;
import io.paceline.client.RecordMetadata;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;

/**
 * Writes numbered records while you kill brokers, reads them back, and prints a summary as JSON. Exits with code 3 unless every
 * record was acknowledged and is in the log once and in order.
 */
public final class Failover {
    private static final int PARTITIONS = 3;

    private final PacelineClient client;
    private final String topic;
    private final boolean[] acknowledged;
    private int acknowledgedCount;
    private int failed;
    private int read;
    private int lost;
    private int doubled;
    private int reordered;

    private Failover(PacelineClient client, String topic, int count) {
        this.client = client;
        this.topic = topic;
        this.acknowledged = new boolean[count];
    }

    /** Options: --bootstrap, --topic (a new one), --count, --rate (records per second; 0: as fast as possible). */
    public static void main(String[] arguments) throws InterruptedException {
        Options options = new Options(arguments);
        long begin = System.nanoTime();
        Failover run;
        try (PacelineClient client = options.client()) {
            run = new Failover(
                    client, options.text("topic", "java-failover-" + System.currentTimeMillis()),
                    options.number("count", 100_000));
            client.admin().createTopic(new NewTopic(run.topic, PARTITIONS, 3).withConfig("min.insync.replicas", "2"));
            run.write(options.number("rate", 10_000));
            run.readBack();
        }
        System.out.printf("{\"topic\": \"%s\", \"acknowledged\": %d, \"failed\": %d, \"read\": %d, \"lost\": %d, "
                        + "\"doubled\": %d, \"reordered\": %d, \"seconds\": %s}%n",
                run.topic, run.acknowledgedCount, run.failed, run.read, run.lost, run.doubled, run.reordered,
                TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begin) / 1000.0);
        System.exit(run.failed + run.lost + run.doubled + run.reordered == 0 ? 0 : 3);
    }

    private void write(int rate) throws InterruptedException {
        List<CompletableFuture<RecordMetadata>> outcomes = new ArrayList<>();
        try (Producer producer = client.producer(ProducerConfig.defaults().withLinger(Duration.ofMillis(5)))) {
            long begin = System.nanoTime();
            for (int i = 0; i < acknowledged.length; i++) {
                byte[] value = Integer.toString(i).getBytes(StandardCharsets.UTF_8);
                outcomes.add(producer.send(new ProducerRecord(topic, i % PARTITIONS, null, value, List.of(), null)));
                if (rate > 0 && i % (rate / 100 + 1) == 0) {
                    long aheadNs = begin + i * 1_000_000_000L / rate - System.nanoTime();
                    TimeUnit.NANOSECONDS.sleep(aheadNs);
                }
            }
        }
        for (int i = 0; i < acknowledged.length; i++) {
            try {
                outcomes.get(i).join();
                acknowledged[i] = true;
                acknowledgedCount++;
            } catch (CompletionException error) {
                failed++;
                System.err.println("record " + i + ": " + error.getCause().getMessage());
            }
        }
    }

    /** Reads every partition to its end and counts records that are lost, doubled or out of order. */
    private void readBack() {
        int[] seen = new int[acknowledged.length];
        for (int partition = 0; partition < PARTITIONS; partition++) {
            long end = client.admin().listOffset(topic, partition, OffsetSpec.latest()).orElseThrow();
            Consumer consumer = client.consumer(ConsumerConfig.defaults().withMaxBytes(4 * 1024 * 1024));
            consumer.assign(topic, partition, 0);
            int last = -1;
            while (consumer.position(topic, partition).orElseThrow() < end) {
                List<ConsumerRecord> records = consumer.poll(Duration.ofSeconds(60));
                if (records.isEmpty()) {
                    throw new IllegalStateException(
                            "partition " + partition + ": nothing to read before offset " + end + " for 60 s");
                }
                for (ConsumerRecord record : records) {
                    int number = Integer.parseInt(record.valueText());
                    reordered += number < last ? 1 : 0;
                    last = number;
                    seen[number]++;
                    read++;
                }
            }
        }
        for (int number = 0; number < seen.length; number++) {
            doubled += seen[number] > 1 ? 1 : 0;
            lost += acknowledged[number] && seen[number] == 0 ? 1 : 0;
        }
    }
}
