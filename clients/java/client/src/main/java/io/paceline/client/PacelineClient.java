package io.paceline.client;

import java.time.Duration;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** A client of one cluster: its producers, consumers and admin share its connections. Safe for concurrent use. */
public final class PacelineClient implements AutoCloseable {
    private final Cluster cluster;
    private final ExecutorService threads = Executors.newCachedThreadPool(task -> Connections.daemon(task, "paceline-client"));

    /** Creates a client; it connects with the first call. */
    public PacelineClient(ClientConfig config) {
        cluster = new Cluster(config);
    }

    /** Creates a client of the cluster at these addresses (host:port), with defaults. */
    public static PacelineClient connect(String... bootstrap) {
        return new PacelineClient(ClientConfig.of(bootstrap));
    }

    /** Creates a producer with defaults. */
    public Producer producer() {
        return producer(ProducerConfig.defaults());
    }

    /** Creates a producer. */
    public Producer producer(ProducerConfig config) {
        return new Producer(cluster, threads, config);
    }

    /** Creates a consumer with defaults; call {@code assign} before the first poll. */
    public Consumer consumer() {
        return consumer(ConsumerConfig.defaults());
    }

    /** Creates a consumer; call {@code assign} before the first poll. */
    public Consumer consumer(ConsumerConfig config) {
        return new Consumer(cluster, threads, admin(), config);
    }

    /** Creates a member of a consumer group with defaults; call {@code subscribe} before the first poll. */
    public GroupConsumer groupConsumer(String groupId) {
        return groupConsumer(GroupConfig.of(groupId));
    }

    /** Creates a member of a consumer group; call {@code subscribe} before the first poll. */
    public GroupConsumer groupConsumer(GroupConfig config) {
        return new GroupConsumer(cluster, threads, admin(), config);
    }

    /** Returns an admin client. */
    public Admin admin() {
        return new Admin(cluster);
    }

    /**
     * Returns the sum of the pauses for which brokers and controllers have asked this client, because it is above a quota.
     * Producers, consumers and administrative calls make the pauses themselves.
     */
    public Duration throttleTime() {
        return cluster.throttleTime();
    }

    /** Closes every connection; calls in flight fail. Close producers and group consumers first. */
    @Override
    public void close() {
        cluster.close();
        threads.shutdown();
    }
}
