import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Measures the time from send (acks=all) to the acknowledgement, and until the consumer has the record, one record at a
 * time, like Kafka's own EndToEndLatency and with the same settings. That tool truncates each sample to whole
 * milliseconds, which is too coarse for a median of one or two milliseconds.
 *
 * <p>Arguments: bootstrap servers, topic, records, warm-up records, bytes. Prints p50 and p99 of both in milliseconds.
 */
public final class KafkaLatency {
    private KafkaLatency() {}

    public static void main(String[] arguments) {
        String bootstrap = arguments[0];
        TopicPartition partition = new TopicPartition(arguments[1], 0);
        int records = Integer.parseInt(arguments[2]);
        int warmUp = Integer.parseInt(arguments[3]);
        byte[] value = new byte[Integer.parseInt(arguments[4])];
        Map<String, Object> producing = Map.of("bootstrap.servers", bootstrap, "linger.ms", 0, "acks", "all");
        Map<String, Object> consuming =
                Map.of("bootstrap.servers", bootstrap, "enable.auto.commit", false, "fetch.max.wait.ms", 0);
        double[] acknowledged = new double[records];
        double[] consumed = new double[records];
        try (KafkaProducer<byte[], byte[]> producer =
                        new KafkaProducer<>(producing, new ByteArraySerializer(), new ByteArraySerializer());
                KafkaConsumer<byte[], byte[]> consumer =
                        new KafkaConsumer<>(consuming, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToEnd(List.of(partition));
            consumer.position(partition);
            for (int number = -warmUp; number < records; number++) {
                long begun = System.nanoTime();
                producer.send(new ProducerRecord<>(partition.topic(), 0, null, value)).get();
                long acknowledgedAt = System.nanoTime();
                while (consumer.poll(Duration.ofSeconds(10)).isEmpty()) {
                    if (System.nanoTime() - begun > 30_000_000_000L) {
                        throw new IllegalStateException("a record did not reach the consumer within 30 s");
                    }
                }
                if (number >= 0) {
                    acknowledged[number] = (acknowledgedAt - begun) / 1e6;
                    consumed[number] = (System.nanoTime() - begun) / 1e6;
                }
            }
        } catch (InterruptedException | java.util.concurrent.ExecutionException failure) {
            throw new IllegalStateException(failure);
        }
        print("ack", acknowledged);
        print("latency", consumed);
    }

    private static void print(String name, double[] samples) {
        Arrays.sort(samples);
        System.out.printf(
                Locale.ROOT,
                "%s p50 %.3f p99 %.3f%n",
                name,
                samples[samples.length / 2],
                samples[(int) (samples.length * 0.99)]);
    }
}
