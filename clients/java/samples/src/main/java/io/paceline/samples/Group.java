package io.paceline.samples;

import io.paceline.client.ConsumerRebalanceListener;
import io.paceline.client.ConsumerRecord;
import io.paceline.client.GroupConfig;
import io.paceline.client.GroupConsumer;
import io.paceline.client.PacelineClient;
import io.paceline.client.TopicPartition;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Prints the records of a topic as a member of a group, until Ctrl-C or until --count of them. Start it several times: the
 * members share the partitions. A member that is started again continues after the last commit.
 */
public final class Group {
    /** Options: --bootstrap, --topic, --group, --count. */
    public static void main(String[] arguments) {
        Options options = new Options(arguments);
        AtomicBoolean stopping = new AtomicBoolean();
        CountDownLatch stopped = new CountDownLatch(1);
        // Ctrl-C ends the loop, so that the member leaves the group and the others need not wait for its session time-out.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping.set(true);
            try {
                stopped.await(10, TimeUnit.SECONDS);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }));
        GroupConfig config = GroupConfig.of(options.text("group", "rides-readers")).withoutAutoCommit();
        try (PacelineClient client = options.client(); GroupConsumer consumer = client.groupConsumer(config)) {
            consumer.subscribe(List.of(options.text("topic", "rides")), new Printer());
            int left = options.number("count", Integer.MAX_VALUE);
            while (left > 0 && !stopping.get()) {
                List<ConsumerRecord> records = consumer.poll(Duration.ofSeconds(1));
                for (ConsumerRecord record : records) {
                    System.out.println(record.partition() + "/" + record.offset() + " " + record.keyText() + "="
                            + record.valueText());
                }
                if (!records.isEmpty()) {
                    left -= records.size();
                    consumer.commitSync();
                }
            }
        } finally {
            stopped.countDown();
        }
    }

    private static final class Printer implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Set<TopicPartition> partitions) {
            System.err.println("assigned " + partitions);
        }

        @Override
        public void onPartitionsRevoked(Set<TopicPartition> partitions) {
            System.err.println("revoked " + partitions);
        }
    }

    private Group() {}
}
