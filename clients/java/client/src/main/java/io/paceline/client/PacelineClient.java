package io.paceline.client;

import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** A client of one cluster: its producers, consumers and admin share its connections. Safe for concurrent use. */
public final class PacelineClient implements AutoCloseable {
    private final Cluster cluster;
    private final ExecutorService threads = Executors.newCachedThreadPool(task -> Connections.daemon(task, "paceline-client"));

    /** Makes a client; it connects with the first call. */
    public PacelineClient(ClientConfig config) {
        cluster = new Cluster(config);
    }

    /** Makes a client of the cluster at these addresses (host:port), with defaults. */
    public static PacelineClient connect(String... bootstrap) {
        return new PacelineClient(ClientConfig.of(bootstrap));
    }

    /** Makes a producer with defaults. */
    public Producer producer() {
        return producer(ProducerConfig.defaults());
    }

    /** Makes a producer. */
    public Producer producer(ProducerConfig config) {
        return new Producer(cluster, threads, config);
    }

    /** Makes a consumer with defaults and without partitions. */
    public Consumer consumer() {
        return consumer(ConsumerConfig.defaults());
    }

    /** Makes a consumer without partitions. */
    public Consumer consumer(ConsumerConfig config) {
        return new Consumer(cluster, threads, admin(), config);
    }

    /** Makes a member of a consumer group with defaults; call subscribe before the first poll. */
    public GroupConsumer groupConsumer(String groupId) {
        return groupConsumer(GroupConfig.of(groupId));
    }

    /** Makes a member of a consumer group; call subscribe before the first poll. */
    public GroupConsumer groupConsumer(GroupConfig config) {
        return new GroupConsumer(cluster, threads, admin(), config);
    }

    /** Returns the administrative calls. */
    public Admin admin() {
        return new Admin(cluster);
    }

    /** Closes every connection; calls in flight fail. Close producers and group consumers first. */
    @Override
    public void close() {
        cluster.close();
        threads.shutdown();
    }
}
