package io.paceline.client;

import io.grpc.Deadline;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.paceline.v1.BrokerInfo;
import io.paceline.v1.DescribeClusterRequest;
import io.paceline.v1.DescribeClusterResponse;
import io.paceline.v1.DescribeTopicsRequest;
import io.paceline.v1.DescribeTopicsResponse;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.LeaderHint;
import io.paceline.v1.LogServiceGrpc;
import io.paceline.v1.LogServiceGrpc.LogServiceBlockingStub;
import io.paceline.v1.MetadataServiceGrpc;
import io.paceline.v1.MetadataServiceGrpc.MetadataServiceBlockingStub;
import io.paceline.v1.PartitionDescription;
import io.paceline.v1.TopicDescription;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.function.Supplier;

/** Caches the brokers, controller and leaders of a cluster, and sends each call to the right process. */
final class Cluster implements AutoCloseable {
    private static final Duration ASK_TIMEOUT = Duration.ofSeconds(2);
    private static final Duration METADATA_MAX_AGE = Duration.ofMinutes(5);

    private final List<String> bootstrap;
    private final Duration requestTimeout;
    private final Duration metadataMaxAge;
    private final Connections connections;
    private final Map<Integer, String> brokers = new HashMap<>();
    private final Map<String, Topic> topics = new HashMap<>();
    /** Largest known number of partitions by topic: topics never lose partitions, so a smaller number is outdated. */
    private final Map<String, PartitionCount> counts = new HashMap<>();
    private String controller = "";

    /** Address and epoch of a leader; the address is null until the next metadata refresh. */
    record Leader(String address, int epoch) {}

    private record PartitionCount(String topicId, int count) {}

    /** Stub, leader and topic id for one attempt of a call to the leader of a partition. */
    record Route(LogServiceBlockingStub log, Leader leader, String topicId) {}

    private record Answer(MetadataServiceBlockingStub from, DescribeClusterResponse cluster) {}

    private record Topic(String id, int partitionCount, Map<Integer, Leader> leaders, long askedNanos) {
        Topic askedNow() {
            return new Topic(id, partitionCount, leaders, System.nanoTime());
        }
    }

    Cluster(ClientConfig config) {
        this(config, METADATA_MAX_AGE);
    }

    /** Refreshes a topic after {@code metadataMaxAge}. */
    Cluster(ClientConfig config, Duration metadataMaxAge) {
        this.metadataMaxAge = metadataMaxAge;
        bootstrap = config.bootstrap();
        requestTimeout = config.requestTimeout();
        connections = new Connections(config.tls());
    }

    Duration requestTimeout() {
        return requestTimeout;
    }

    boolean closed() {
        return connections.closed();
    }

    Duration throttleTime() {
        return Duration.ofMillis(connections.throttles().totalMs());
    }

    ManagedChannel channel(String address) {
        return connections.to(address);
    }

    @Override
    public void close() {
        connections.close();
    }

    <T> T retry(String operation, Deadline deadline, Function<Deadline, T> attempt) {
        return Retry.until(operation, deadline, requestTimeout, this::closed, attempt);
    }

    /** Retries a call that needs a topic; gives up when the topic or partition counts as missing. */
    <T> T retryUnlessMissing(
            String operation, Deadline deadline, Absence absence, BooleanSupplier stopped, Function<Deadline, T> attempt) {
        return Retry.until(operation, deadline, requestTimeout, () -> stopped.getAsBoolean() || absence.isOver(), one -> {
            try {
                return attempt.apply(one);
            } catch (PacelineException failure) {
                absence.failed(failure);
                throw failure;
            }
        });
    }

    /** Makes a call; converts a gRPC status to an exception with an error code. */
    static <T> T call(String operation, Supplier<T> call) {
        try {
            return call.get();
        } catch (StatusRuntimeException error) {
            throw Failures.ofCall(operation, error);
        }
    }

    /**
     * Calls the known addresses in random order until a process answers; throws the last failure if no process answers.
     * Always includes the bootstrap addresses: a broker that is cut off returns old metadata, perhaps with itself as the
     * only broker.
     */
    private <T> T askAny(Deadline deadline, Function<MetadataServiceBlockingStub, T> ask) {
        Set<String> known = new HashSet<>(bootstrap);
        synchronized (this) {
            known.addAll(brokers.values());
        }
        List<String> addresses = new ArrayList<>(known);
        Collections.shuffle(addresses);
        PacelineException last = null;
        for (String address : addresses) {
            try {
                return ask.apply(metadata(address, deadline));
            } catch (PacelineException error) {
                last = error;
            }
            if (deadline.isExpired() || closed()) {
                break;
            }
        }
        throw last;
    }

    private MetadataServiceBlockingStub metadata(String address, Deadline deadline) {
        return MetadataServiceGrpc.newBlockingStub(channel(address)).withDeadline(deadline.minimum(Retry.after(ASK_TIMEOUT)));
    }

    /** Requests brokers and controller once, without a retry, and caches them. */
    DescribeClusterResponse describeOnce(Deadline deadline) {
        return describeFrom(deadline).cluster;
    }

    private Answer describeFrom(Deadline deadline) {
        Answer answer = askAny(deadline, stub -> new Answer(stub, describe(stub)));
        DescribeClusterResponse found = answer.cluster;
        MetadataServiceBlockingStub from = answer.from;
        String address = found.getControllerHost().isEmpty() ? "" : join(found.getControllerHost(), found.getControllerPort());
        if (found.getBrokersCount() == 0) {
            // A standby controller returns only the address of the active controller.
            from = metadata(address, deadline);
            found = describe(from);
        }
        synchronized (this) {
            controller = address;
            if (found.getBrokersCount() > 0) {
                brokers.clear();
                for (BrokerInfo broker : found.getBrokersList()) {
                    brokers.put(broker.getId(), join(broker.getHost(), broker.getPort()));
                }
            }
        }
        return new Answer(from.withDeadline(deadline.minimum(Retry.after(ASK_TIMEOUT))), found);
    }

    private static DescribeClusterResponse describe(MetadataServiceBlockingStub stub) {
        String operation = "describing the cluster";
        DescribeClusterResponse answer = call(operation, () -> stub.describeCluster(DescribeClusterRequest.getDefaultInstance()));
        if (answer.getBrokersCount() == 0 && answer.getControllerHost().isEmpty()) {
            throw Failures.of(operation, ErrorCode.ERROR_CODE_NOT_CONTROLLER, "the process has no metadata of the cluster yet");
        }
        return answer;
    }

    /** Requests the address of the active controller and returns it. */
    String controllerOnce(String operation, Deadline deadline) {
        describeOnce(deadline);
        synchronized (this) {
            if (controller.isEmpty()) {
                throw Failures.of(operation, ErrorCode.ERROR_CODE_NOT_CONTROLLER, "no controller is active");
            }
            return controller;
        }
    }

    /** Requests brokers and topic from the same process, because two processes may contradict each other. */
    TopicDescription describeTopicOnce(Deadline deadline, String topic) {
        MetadataServiceBlockingStub from = describeFrom(deadline).from;
        String operation = "describing topic " + topic;
        DescribeTopicsRequest request = DescribeTopicsRequest.newBuilder().addTopics(topic).build();
        DescribeTopicsResponse answer = call(operation, () -> from.describeTopics(request));
        if (answer.getTopicsCount() != 1) {
            throw Failures.of(operation, ErrorCode.ERROR_CODE_UNKNOWN_SERVER_ERROR,
                    "the response has " + answer.getTopicsCount() + " topics instead of one");
        }
        if (answer.getTopics(0).hasError()) {
            Failures.throwTopic(operation, answer.getTopics(0).getError());
        }
        return answer.getTopics(0);
    }

    /** Refreshes the leaders of a topic; metadata with an older leader epoch does not replace a known leader. */
    private Topic refresh(Deadline deadline, String name) {
        TopicDescription description = describeTopicOnce(deadline, name);
        if (description.getPartitionsCount() == 0) {
            throw Failures.of("describing topic " + name, ErrorCode.ERROR_CODE_LEADER_NOT_AVAILABLE,
                    "the topic has no partitions yet");
        }
        synchronized (this) {
            Topic before = topics.get(name);
            boolean isSame = before != null && before.id.equals(description.getTopicId());
            Map<Integer, Leader> leaders = new HashMap<>(isSame ? before.leaders : Map.of());
            for (PartitionDescription partition : description.getPartitionsList()) {
                Leader known = leaders.get(partition.getPartition());
                if (known == null || known.epoch <= partition.getLeaderEpoch()) {
                    String address = partition.hasLeader() ? brokers.get(partition.getLeader()) : null;
                    leaders.put(partition.getPartition(), new Leader(address, partition.getLeaderEpoch()));
                }
            }
            Topic topic = new Topic(description.getTopicId(), largestCount(description), leaders, System.nanoTime());
            topics.put(name, topic);
            return topic;
        }
    }

    private synchronized int largestCount(TopicDescription topic) {
        PartitionCount before = counts.get(topic.getName());
        boolean isSame = before != null && before.topicId.equals(topic.getTopicId());
        int count = isSame ? Math.max(before.count, topic.getPartitionsCount()) : topic.getPartitionsCount();
        counts.put(topic.getName(), new PartitionCount(topic.getTopicId(), count));
        return count;
    }

    /** Returns the cached topic, or null. If it is too old, one caller refreshes it, and other callers get the old value. */
    private Topic known(Deadline deadline, String name) {
        Topic known;
        synchronized (this) {
            known = topics.get(name);
            if (known == null || System.nanoTime() - known.askedNanos < metadataMaxAge.toNanos()) {
                return known;
            }
            topics.put(name, known.askedNow());
        }
        try {
            return refresh(deadline.minimum(Retry.after(ASK_TIMEOUT)), name);
        } catch (PacelineException failure) {
            return known;
        }
    }

    /** Returns the number of partitions from the cache, which is refreshed regularly because a topic can grow. */
    int partitionCount(String operation, Deadline deadline, String name) {
        Topic known = known(deadline, name);
        return (known != null ? known : retryUnlessMissing(
                operation, deadline, new Absence(), this::closed, one -> refresh(one, name))).partitionCount;
    }

    /** Makes one attempt of a call at the leader of a partition; a failure updates the cached leader. */
    <T> T onLeader(Deadline deadline, String topic, int partition, Function<Route, T> call) {
        Topic known = known(deadline, topic);
        Leader leader = leaderOf(known, partition);
        if (leader == null) {
            known = refresh(deadline, topic);
            String operation = "finding the leader of " + topic + "/" + partition;
            if (partition >= known.partitionCount) {
                throw Failures.of(operation, ErrorCode.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
                        "the topic has " + known.partitionCount + " partitions");
            }
            leader = leaderOf(known, partition);
            if (leader == null) {
                throw Failures.of(operation, ErrorCode.ERROR_CODE_LEADER_NOT_AVAILABLE, "the partition has no leader");
            }
        }
        try {
            LogServiceBlockingStub log = LogServiceGrpc.newBlockingStub(channel(leader.address)).withDeadline(deadline);
            return call.apply(new Route(log, leader, known.id));
        } catch (PacelineException failure) {
            learnFrom(failure, topic, partition, leader);
            throw failure;
        }
    }

    /** Returns the leader of a partition; null while its address is not known. */
    private synchronized Leader leaderOf(Topic topic, int partition) {
        Leader leader = topic == null ? null : topic.leaders.get(partition);
        return leader == null || leader.address == null ? null : leader;
    }

    /**
     * Caches the leader that a failure names; without a valid hint, forgets the address, so that the next attempt refreshes
     * the topic. Keeps the epoch, so that a broker with old metadata cannot bring back the previous leader.
     */
    private synchronized void learnFrom(PacelineException failure, String name, int partition, Leader used) {
        Topic topic = topics.get(name);
        // A re-created topic starts with lower epochs; a call without a topic id detects it only by this code.
        boolean isOtherEpoch = failure.code() == ErrorCode.ERROR_CODE_UNKNOWN_LEADER_EPOCH;
        boolean isOld = failure.details().refreshMetadata() || isOtherEpoch;
        if (topic == null || !isOld || !used.equals(topic.leaders.get(partition))) {
            return;
        }
        topic.leaders.put(partition, new Leader(null, used.epoch));
        LeaderHint hint = failure.details().leader();
        if (hint == null || hint.getHost().isEmpty() || hint.getPort() == 0) {
            return;
        }
        boolean sameTopic = hint.getTopicId().isEmpty() || hint.getTopicId().equals(topic.id);
        // A hint with an older epoch comes from a broker with old metadata.
        if (sameTopic && hint.getLeaderEpoch() >= used.epoch) {
            topic.leaders.put(partition, new Leader(join(hint.getHost(), hint.getPort()), hint.getLeaderEpoch()));
        }
    }

    /** Requests the brokers and returns their addresses in random order. */
    List<String> brokerAddresses(Deadline deadline) {
        describeOnce(deadline);
        List<String> addresses;
        synchronized (this) {
            addresses = new ArrayList<>(brokers.values());
        }
        if (addresses.isEmpty()) {
            throw Failures.of("describing the cluster", ErrorCode.ERROR_CODE_BROKER_NOT_AVAILABLE, "there is no broker");
        }
        Collections.shuffle(addresses);
        return addresses;
    }

    /** Requests topics and returns the number of partitions of each topic; omits topics that do not exist. */
    Map<String, Integer> partitionCounts(Deadline deadline, Collection<String> names) {
        return names.isEmpty() ? Map.of() : askAny(deadline, stub -> {
            Map<String, Integer> found = new TreeMap<>();
            String page = "";
            do {
                DescribeTopicsRequest request =
                        DescribeTopicsRequest.newBuilder().addAllTopics(names).setPageToken(page).build();
                DescribeTopicsResponse answer = call("describing topics", () -> stub.describeTopics(request));
                for (TopicDescription topic : answer.getTopicsList()) {
                    if (!topic.hasError()) {
                        found.put(topic.getName(), largestCount(topic));
                    }
                }
                page = answer.getNextPageToken();
            } while (!page.isEmpty());
            return found;
        });
    }

    static String join(String host, int port) {
        return (host.contains(":") ? "[" + host + "]" : host) + ":" + port;
    }
}
