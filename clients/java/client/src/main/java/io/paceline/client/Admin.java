package io.paceline.client;

import io.paceline.v1.AdminServiceGrpc;
import io.paceline.v1.AdminServiceGrpc.AdminServiceBlockingStub;
import io.paceline.v1.ClusterEvent;
import io.paceline.v1.CreateTopicResult;
import io.paceline.v1.CreateTopicsRequest;
import io.paceline.v1.DeleteTopicResult;
import io.paceline.v1.DeleteTopicsRequest;
import io.paceline.v1.DescribeClusterResponse;
import io.paceline.v1.EventBatch;
import io.paceline.v1.ListOffsetsPartition;
import io.paceline.v1.ListOffsetsPartitionResult;
import io.paceline.v1.ListOffsetsRequest;
import io.paceline.v1.TopicDescription;
import java.time.Duration;
import java.util.OptionalLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BiFunction;
import java.util.function.Predicate;

/**
 * Creates, deletes and describes topics, looks up offsets, and watches events. Safe for concurrent use.
 *
 * <p>The time-out of a call covers all its attempts; the default is 30 s. Watches have none. Each call throws
 * {@link PacelineException} with the last cause when it fails.
 */
public final class Admin {
    private static final Duration DEFAULT_TIMEOUT = Duration.ofSeconds(30);

    private final Cluster cluster;

    Admin(Cluster cluster) {
        this.cluster = cluster;
    }

    /** Creates a topic, waits until every partition has a leader, and returns the topic's id. */
    public String createTopic(NewTopic topic) {
        return createTopic(topic, DEFAULT_TIMEOUT);
    }

    /** Creates a topic, waits until every partition has a leader, and returns the topic's id. */
    public String createTopic(NewTopic topic, Duration timeout) {
        String operation = "creating topic " + topic.name();
        var wanted = io.paceline.v1.NewTopic.newBuilder().setName(topic.name()).putAllConfigs(topic.configs());
        if (topic.partitions() != null) {
            wanted.setPartitions(topic.partitions());
        }
        if (topic.replicationFactor() != null) {
            wanted.setReplicationFactor(topic.replicationFactor());
        }
        return onController(operation, timeout, (admin, waitMs) -> {
            CreateTopicResult result = admin.createTopics(
                    CreateTopicsRequest.newBuilder().addTopics(wanted).setTimeoutMs(waitMs).build()).getTopics(0);
            if (result.hasError()) {
                Failures.throwTopic(operation, result.getError());
            }
            return result.getTopicId();
        });
    }

    /** Deletes a topic and waits until it no longer exists. */
    public void deleteTopic(String name) {
        deleteTopic(name, DEFAULT_TIMEOUT);
    }

    /** Deletes a topic and waits until it no longer exists. */
    public void deleteTopic(String name, Duration timeout) {
        String operation = "deleting topic " + name;
        onController(operation, timeout, (admin, waitMs) -> {
            DeleteTopicResult result = admin.deleteTopics(
                    DeleteTopicsRequest.newBuilder().addTopics(name).setTimeoutMs(waitMs).build()).getTopics(0);
            if (result.hasError()) {
                Failures.throwTopic(operation, result.getError());
            }
            return result;
        });
    }

    /** Returns partitions, leaders, replicas and in-sync replicas of a topic. */
    public TopicDescription describeTopic(String name) {
        return describeTopic(name, DEFAULT_TIMEOUT);
    }

    /**
     * Returns partitions, leaders, replicas and in-sync replicas of a topic.
     *
     * @throws PacelineException UNKNOWN_TOPIC_OR_PARTITION when brokers have not known the topic for five seconds
     */
    public TopicDescription describeTopic(String name, Duration timeout) {
        return cluster.retryUnlessMissing("describing topic " + name, Retry.after(timeout), new Absence(), cluster::closed,
                deadline -> cluster.describeTopicOnce(deadline, name));
    }

    /** Returns the brokers and the active controller. */
    public DescribeClusterResponse describeCluster() {
        return describeCluster(DEFAULT_TIMEOUT);
    }

    /** Returns the brokers and the active controller. */
    public DescribeClusterResponse describeCluster(Duration timeout) {
        return cluster.retry("describing the cluster", Retry.after(timeout), cluster::describeOnce);
    }

    /** Returns the offset that {@code at} specifies; empty when every record is older than its time. */
    public OptionalLong listOffset(String topic, int partition, OffsetSpec at) {
        return listOffset(topic, partition, at, DEFAULT_TIMEOUT);
    }

    /** Returns the offset that {@code at} specifies; empty when every record is older than its time. */
    public OptionalLong listOffset(String topic, int partition, OffsetSpec at, Duration timeout) {
        return cluster.retry("listing an offset of " + topic + "/" + partition, Retry.after(timeout), deadline ->
                cluster.onLeader(deadline, topic, partition, route -> listOffset(topic, partition, at, route)));
    }

    /** Sends one ListOffsets request to the leader of a partition. */
    static OptionalLong listOffset(String topic, int partition, OffsetSpec at, Cluster.Route route) {
        String operation = "listing an offset of " + topic + "/" + partition;
        var request = ListOffsetsRequest.newBuilder().addPartitions(ListOffsetsPartition.newBuilder()
                .setTopic(topic).setPartition(partition).setSpec(at.spec).setTimestampMs(at.timestampMs)
                .setCurrentLeaderEpoch(route.leader().epoch())).build();
        ListOffsetsPartitionResult result = Cluster.call(operation, () -> route.log().listOffsets(request).getPartitions(0));
        if (result.hasError()) {
            Failures.throwPartition(operation, result.getError());
        }
        return result.hasOffset() ? OptionalLong.of(result.getOffset()) : OptionalLong.empty();
    }

    /**
     * Calls {@code handle} with every event of the cluster from now on, like {@link #watchEventBatches}, but does not report
     * missing events.
     *
     * @throws PacelineException when the controller refuses the watch with an error that is not retriable, or no active
     *     controller was found within 30 s
     */
    public void watchEvents(Predicate<ClusterEvent> handle) {
        watchEventBatches(batch -> batch.getEventsList().stream().allMatch(handle));
    }

    /**
     * Calls {@code handle} with the events of the cluster from now on, until {@code handle} returns false, the thread is
     * interrupted, or the client is closed. When the controller dies, resigns, or sends nothing for 25 s, the watch continues
     * at the next active controller, which may repeat the last events. A batch with a gap means that earlier events are
     * missing: this watch was too slow, or the next controller has not seen them.
     *
     * @throws PacelineException when the controller refuses the watch with an error that is not retriable, or no active
     *     controller was found within 30 s
     */
    public void watchEventBatches(Predicate<EventBatch> handle) {
        new EventWatch(cluster, EventWatch.SILENCE).run(handle);
    }

    /**
     * Sends a call to the active controller and follows the address in NOT_CONTROLLER. Does not repeat a call with unknown
     * outcome, because the change may have been made.
     */
    private <T> T onController(String operation, Duration timeout, BiFunction<AdminServiceBlockingStub, Integer, T> call) {
        AtomicReference<String> address = new AtomicReference<>("");
        // One attempt may use the whole time-out: only a call that definitely changed nothing is repeated.
        return Retry.until(operation, Retry.after(timeout), timeout, cluster::closed, deadline -> {
            if (address.get().isEmpty()) {
                try {
                    address.set(cluster.controllerOnce(operation, deadline));
                } catch (PacelineException failure) {
                    // The change itself was not sent.
                    throw failure.with(failure.retriable(), true);
                }
            }
            AdminServiceBlockingStub admin =
                    AdminServiceGrpc.newBlockingStub(cluster.channel(address.get())).withDeadline(deadline);
            try {
                return Cluster.call(operation, () -> call.apply(admin, Retry.serverWaitMs(deadline)));
            } catch (PacelineException failure) {
                if (failure.details().refreshMetadata()) {
                    address.set(failure.details().metadata().getOrDefault("address", ""));
                }
                throw failure.with(failure.retriable() && failure.definite(), failure.definite());
            }
        });
    }
}
