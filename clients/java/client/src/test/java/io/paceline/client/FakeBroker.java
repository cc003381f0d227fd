package io.paceline.client;

import com.google.protobuf.Any;
import com.google.protobuf.Message;
import com.google.rpc.ErrorInfo;
import io.grpc.HandlerRegistry;
import io.grpc.InsecureServerCredentials;
import io.grpc.MethodDescriptor;
import io.grpc.Server;
import io.grpc.ServerMethodDefinition;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.ServerCalls;
import io.paceline.v1.BrokerInfo;
import io.paceline.v1.DescribeClusterResponse;
import io.paceline.v1.DescribeTopicsResponse;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.FetchPartition;
import io.paceline.v1.FetchPartitionResult;
import io.paceline.v1.FetchResponse;
import io.paceline.v1.ListOffsetsPartition;
import io.paceline.v1.ListOffsetsPartitionResult;
import io.paceline.v1.ListOffsetsResponse;
import io.paceline.v1.LogServiceGrpc;
import io.paceline.v1.MetadataServiceGrpc;
import io.paceline.v1.PartitionDescription;
import io.paceline.v1.PartitionError;
import io.paceline.v1.Record;
import io.paceline.v1.RecordList;
import io.paceline.v1.TopicDescription;
import io.paceline.v1.TopicError;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Function;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/** One broker on real gRPC: every partition of its topics has ten records. A test says how other methods answer. */
final class FakeBroker implements AutoCloseable {
    static final long END = 10;

    /** Numbers of partitions by topic. */
    final Map<String, Integer> topics = new ConcurrentHashMap<>();
    /** Ids of topics that were created again. */
    final Map<String, String> ids = new ConcurrentHashMap<>();
    volatile int leaderEpoch = 5;
    /** Every request, in the order of arrival. */
    final List<Message> requests = new CopyOnWriteArrayList<>();

    private final Map<String, ServerMethodDefinition<?, ?>> methods = new ConcurrentHashMap<>();
    private final Server server;

    FakeBroker() throws IOException {
        server = NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", 0), InsecureServerCredentials.create())
                .fallbackHandlerRegistry(new HandlerRegistry() {
                    @Override
                    public ServerMethodDefinition<?, ?> lookupMethod(String name, String authority) {
                        return methods.get(name);
                    }
                }).build().start();
        on(MetadataServiceGrpc.getDescribeClusterMethod(), request -> DescribeClusterResponse.newBuilder()
                .setControllerHost("127.0.0.1").setControllerPort(port())
                .addBrokers(BrokerInfo.newBuilder().setId(1).setHost("127.0.0.1").setPort(port())).build());
        on(MetadataServiceGrpc.getDescribeTopicsMethod(), request -> DescribeTopicsResponse.newBuilder()
                .addAllTopics(request.getTopicsList().stream().map(this::describe).toList()).build());
        on(LogServiceGrpc.getListOffsetsMethod(), request -> listOffset(request.getPartitions(0)));
        on(LogServiceGrpc.getFetchMethod(), request -> fetch(request.getPartitions(0)));
    }

    int port() {
        return server.getPort();
    }

    String address() {
        return "127.0.0.1:" + port();
    }

    @Override
    public void close() {
        server.shutdownNow();
    }

    /** Answers a method from now on; the function may throw a {@link #refusal}. */
    <Q, A> void on(MethodDescriptor<Q, A> method, Function<Q, A> answer) {
        methods.put(method.getFullMethodName(), ServerMethodDefinition.create(method, ServerCalls.asyncUnaryCall(
                (request, observer) -> {
                    requests.add((Message) request);
                    try {
                        A found = answer.apply(request);
                        observer.onNext(found);
                        observer.onCompleted();
                    } catch (RuntimeException failure) {
                        observer.onError(failure);
                    }
                })));
    }

    /** Returns the requests of a kind so far. */
    <Q extends Message> List<Q> requests(Class<Q> kind) {
        return requests.stream().filter(kind::isInstance).map(kind::cast).toList();
    }

    /** Makes the status by which a server refuses a call. */
    static StatusRuntimeException refusal(ErrorCode code, Map<String, String> metadata) {
        ErrorInfo info = ErrorInfo.newBuilder().setDomain("paceline")
                .setReason(code.name().substring("ERROR_CODE_".length())).putAllMetadata(metadata).build();
        return StatusProto.toStatusRuntimeException(com.google.rpc.Status.newBuilder()
                .setCode(Status.Code.FAILED_PRECONDITION.value()).setMessage("on purpose").addDetails(Any.pack(info)).build());
    }

    private TopicDescription describe(String name) {
        TopicDescription.Builder topic = TopicDescription.newBuilder().setName(name);
        if (!topics.containsKey(name)) {
            return topic.setError(TopicError.newBuilder()
                    .setCode(ErrorCode.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION).setMessage("no such topic")).build();
        }
        return topic.setTopicId(idOf(name)).addAllPartitions(IntStream.range(0, topics.get(name))
                .mapToObj(number -> PartitionDescription.newBuilder().setPartition(number).setLeader(1).setLeaderEpoch(leaderEpoch)
                        .addReplicas(1).addIsr(1).build()).toList()).build();
    }

    private ListOffsetsResponse listOffset(ListOffsetsPartition asked) {
        var found = ListOffsetsPartitionResult.newBuilder();
        if (asked.getCurrentLeaderEpoch() > leaderEpoch) {
            found.getErrorBuilder().setCode(ErrorCode.ERROR_CODE_UNKNOWN_LEADER_EPOCH).setMessage("on purpose");
        } else {
            found.setOffset(asked.getSpec() == io.paceline.v1.OffsetSpec.OFFSET_SPEC_LATEST ? END : 0);
        }
        return ListOffsetsResponse.newBuilder().addPartitions(found).build();
    }

    private String idOf(String topic) {
        return ids.getOrDefault(topic, "id-of-" + topic);
    }

    private FetchResponse fetch(FetchPartition asked) {
        if (!asked.getTopicId().equals(idOf(asked.getTopic()))) {
            return FetchResponse.newBuilder().addPartitions(FetchPartitionResult.newBuilder().setError(PartitionError
                    .newBuilder().setCode(ErrorCode.ERROR_CODE_INCONSISTENT_TOPIC_ID).setMessage("on purpose"))).build();
        }
        if (asked.getFetchOffset() >= END) {
            try {
                Thread.sleep(20);
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }
        return FetchResponse.newBuilder().addPartitions(FetchPartitionResult.newBuilder()
                .setTopic(asked.getTopic()).setPartition(asked.getPartition())
                .setRecords(RecordList.newBuilder().addAllRecords(LongStream.range(asked.getFetchOffset(), END)
                        .mapToObj(offset -> Record.newBuilder().setOffset(offset).build()).toList()))).build();
    }
}
