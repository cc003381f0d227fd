import java.io.DataInputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Many small clients against Kafka, in the modes of clients/go/callers: callers, tail, spread and idle.
 *
 * <p>Arguments: bootstrap servers, topic, partitions, mode, count, warm-up and length in milliseconds, bytes of a value.
 * Prints MEASURE, END and RESULT with the figures as JSON.
 */
public final class KafkaCallers {
    private static final int ACTIVE_CALLERS = 50;
    private static final int SPREAD_WINDOW = 5_000;
    private static final int TAIL_RATE_PER_SEC = 1_000;

    private static volatile boolean measuring;
    private static volatile boolean stopped;
    private static final AtomicLong ERRORS = new AtomicLong();
    private static final List<Double> SAMPLES = Collections.synchronizedList(new ArrayList<>());
    private static final List<Thread> THREADS = new ArrayList<>();
    private static final List<Socket> IDLE = new ArrayList<>();

    private KafkaCallers() {}

    private interface Body {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        String mode = arguments[3];
        int count = Integer.parseInt(arguments[4]);
        long warmUpMs = Long.parseLong(arguments[5]);
        long lengthMs = Long.parseLong(arguments[6]);
        int size = Integer.parseInt(arguments[7]);
        switch (mode) {
            case "callers" -> callers(bootstrap, topic, partitions, count, size);
            case "tail" -> tail(bootstrap, topic, partitions, count, size);
            case "spread" -> spread(bootstrap, topic, partitions, size);
            case "idle" -> {
                idle(bootstrap, count);
                callers(bootstrap, topic, partitions, ACTIVE_CALLERS, size);
            }
            default -> throw new IllegalArgumentException("unknown mode " + mode);
        }
        Thread.sleep(warmUpMs);
        measuring = true;
        System.out.println("MEASURE");
        System.out.flush();
        Thread.sleep(lengthMs);
        measuring = false;
        System.out.println("END");
        System.out.flush();
        stopped = true;
        for (Thread thread : THREADS) {
            thread.join(10_000);
        }
        double[] samples = SAMPLES.stream().mapToDouble(Double::doubleValue).sorted().toArray();
        System.out.printf(
                Locale.ROOT,
                "RESULT {\"count\": %d, \"rate\": %.1f, \"errors\": %d, \"p50_ms\": %.3f, \"p99_ms\": %.3f}%n",
                samples.length,
                samples.length * 1000.0 / lengthMs,
                ERRORS.get(),
                samples[samples.length / 2],
                samples[(int) (samples.length * 0.99)]);
        System.out.flush();
        Runtime.getRuntime().halt(0); // closing hundreds of producers one by one would take minutes
    }

    private static void start(Body body) {
        Thread thread = new Thread(() -> {
            try {
                body.run();
            } catch (Exception failure) {
                if (!stopped) {
                    ERRORS.incrementAndGet();
                    failure.printStackTrace();
                }
            }
        });
        thread.setDaemon(true);
        thread.start();
        THREADS.add(thread);
    }

    private static KafkaProducer<byte[], byte[]> producer(String bootstrap, int lingerMs, long bufferBytes) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "all");
        settings.put("linger.ms", lingerMs);
        settings.put("buffer.memory", bufferBytes);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    /** Each caller sends a record, waits for its acknowledgement, and sends the next; returns when each had an answer. */
    private static void callers(String bootstrap, String topic, int partitions, int count, int size)
            throws InterruptedException {
        byte[] value = new byte[size];
        CountDownLatch started = new CountDownLatch(count);
        for (int number = 0; number < count; number++) {
            int partition = number % partitions;
            start(() -> {
                List<Double> mine = new ArrayList<>();
                KafkaProducer<byte[], byte[]> producer = producer(bootstrap, 0, 1 << 20);
                while (!stopped) {
                    long begun = System.nanoTime();
                    producer.send(new ProducerRecord<>(topic, partition, null, value)).get();
                    started.countDown();
                    if (measuring) {
                        mine.add((System.nanoTime() - begun) / 1e6);
                    }
                }
                SAMPLES.addAll(mine);
            });
        }
        if (!started.await(120, TimeUnit.SECONDS)) {
            throw new IllegalStateException("callers without an acknowledgement after 120 s: " + started.getCount());
        }
    }

    /** Writes to random partitions with a linger time, as fast as the cluster acknowledges. */
    private static void spread(String bootstrap, String topic, int partitions, int size) {
        byte[] value = new byte[size];
        Semaphore window = new Semaphore(SPREAD_WINDOW);
        start(() -> {
            KafkaProducer<byte[], byte[]> producer = producer(bootstrap, 5, 64 << 20);
            Random random = new Random(1);
            while (!stopped) {
                window.acquire();
                long begun = System.nanoTime();
                producer.send(new ProducerRecord<>(topic, random.nextInt(partitions), null, value), (at, failure) -> {
                    window.release();
                    if (failure != null) {
                        ERRORS.incrementAndGet();
                    } else if (measuring) {
                        SAMPLES.add((System.nanoTime() - begun) / 1e6);
                    }
                });
            }
        });
    }

    /** Writes 1,000 records a second, which each consumer reads; a sample is the time from send until it is read. */
    private static void tail(String bootstrap, String topic, int partitions, int count, int size) throws Exception {
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < partitions; partition++) {
            all.add(new TopicPartition(topic, partition));
        }
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "enable.auto.commit", false);
        for (int number = 0; number < count; number++) {
            start(() -> {
                List<Double> mine = new ArrayList<>();
                KafkaConsumer<byte[], byte[]> consumer =
                        new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                consumer.assign(all);
                consumer.seekToEnd(all);
                while (!stopped) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                        if (measuring && record.value().length >= 8) {
                            mine.add((nowMicros() - ByteBuffer.wrap(record.value()).getLong()) / 1e3);
                        }
                    }
                }
                SAMPLES.addAll(mine);
            });
        }
        KafkaProducer<byte[], byte[]> producer = producer(bootstrap, 5, 64 << 20);
        start(() -> {
            int number = 0;
            long next = System.nanoTime();
            while (!stopped) {
                next += 10_000_000;
                long pauseNs = next - System.nanoTime();
                if (pauseNs > 0) {
                    Thread.sleep(pauseNs / 1_000_000, (int) (pauseNs % 1_000_000));
                }
                for (int each = 0; each < TAIL_RATE_PER_SEC / 100; each++) {
                    byte[] value = new byte[size];
                    ByteBuffer.wrap(value).putLong(nowMicros());
                    producer.send(new ProducerRecord<>(topic, number++ % partitions, null, value));
                }
            }
        });
    }

    private static long nowMicros() {
        java.time.Instant now = java.time.Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
    }

    /** Opens connections that make a single request each, ApiVersions. */
    private static void idle(String bootstrap, int count) throws Exception {
        String[] addresses = bootstrap.split(",");
        byte[] apiVersions = ByteBuffer.allocate(14)
                .putInt(10)
                .putShort((short) 18)
                .putShort((short) 0)
                .putInt(1)
                .putShort((short) -1)
                .array();
        for (int number = 0; number < count; number++) {
            String[] parts = addresses[number % addresses.length].split(":");
            Socket socket = new Socket(parts[0], Integer.parseInt(parts[1]));
            socket.getOutputStream().write(apiVersions);
            DataInputStream in = new DataInputStream(socket.getInputStream());
            in.readFully(new byte[in.readInt()]);
            IDLE.add(socket);
        }
    }
}
