package io.paceline.client;

import io.grpc.StatusRuntimeException;
import io.paceline.v1.CommitOffsetResult;
import io.paceline.v1.CommitOffsetsRequest;
import io.paceline.v1.CommitOffsetsResponse;
import io.paceline.v1.CommittedOffset;
import io.paceline.v1.ConsumerAssignment;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.FetchOffsetsRequest;
import io.paceline.v1.FetchOffsetsResponse;
import io.paceline.v1.FindCoordinatorResponse;
import io.paceline.v1.GroupServiceGrpc;
import io.paceline.v1.HeartbeatResponse;
import io.paceline.v1.JoinGroupMember;
import io.paceline.v1.JoinGroupRequest;
import io.paceline.v1.JoinGroupResponse;
import io.paceline.v1.LeaveGroupResponse;
import io.paceline.v1.SyncGroupRequest;
import io.paceline.v1.SyncGroupResponse;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;

/** The coordinator of a group with one member, at a {@link FakeBroker}. */
final class FakeGroup {
    final AtomicInteger generation = new AtomicInteger();
    final Map<TopicPartition, Long> committed = new ConcurrentHashMap<>();
    /** Error codes with which the next calls are refused. */
    final Queue<ErrorCode> joinRefusals = new ConcurrentLinkedQueue<>();
    final Queue<ErrorCode> heartbeatRefusals = new ConcurrentLinkedQueue<>();
    final Queue<ErrorCode> findRefusals = new ConcurrentLinkedQueue<>();
    final Queue<ErrorCode> callRefusals = new ConcurrentLinkedQueue<>();
    /** Error codes for all partitions of the next commits, in the body of the response. */
    final Queue<ErrorCode> commitErrors = new ConcurrentLinkedQueue<>();

    /** Runs before each commit is answered. */
    volatile Runnable beforeCommit = () -> { };

    private final AtomicInteger memberIds = new AtomicInteger();

    FakeGroup(FakeBroker broker) {
        broker.on(GroupServiceGrpc.getFindCoordinatorMethod(), request -> {
            refuse(findRefusals);
            return FindCoordinatorResponse.newBuilder().setHost("127.0.0.1").setPort(broker.port()).build();
        });
        broker.on(GroupServiceGrpc.getJoinGroupMethod(), this::join);
        broker.on(GroupServiceGrpc.getSyncGroupMethod(), FakeGroup::sync);
        broker.on(GroupServiceGrpc.getHeartbeatMethod(), request -> {
            refuse(heartbeatRefusals);
            return HeartbeatResponse.getDefaultInstance();
        });
        broker.on(GroupServiceGrpc.getLeaveGroupMethod(), request -> LeaveGroupResponse.getDefaultInstance());
        broker.on(GroupServiceGrpc.getCommitOffsetsMethod(), this::commit);
        broker.on(GroupServiceGrpc.getFetchOffsetsMethod(), this::fetchOffsets);
    }

    private static void refuse(Queue<ErrorCode> refusals) {
        ErrorCode code = refusals.poll();
        if (code != null) {
            throw FakeBroker.refusal(code, Map.of());
        }
    }

    private JoinGroupResponse join(JoinGroupRequest request) {
        refuse(joinRefusals);
        if (request.getMemberId().isEmpty()) {
            StatusRuntimeException required = FakeBroker.refusal(ErrorCode.ERROR_CODE_MEMBER_ID_REQUIRED,
                    Map.of("member_id", "member-" + memberIds.incrementAndGet()));
            throw required;
        }
        return JoinGroupResponse.newBuilder().setGenerationId(generation.incrementAndGet()).setProtocolType("consumer")
                .setProtocolName(request.getProtocols(0).getName()).setLeader(request.getMemberId())
                .setMemberId(request.getMemberId())
                .addMembers(JoinGroupMember.newBuilder().setMemberId(request.getMemberId())
                        .setSubscription(request.getProtocols(0).getSubscription()))
                .build();
    }

    private static SyncGroupResponse sync(SyncGroupRequest request) {
        ConsumerAssignment mine = request.getAssignmentsList().stream()
                .filter(one -> one.getMemberId().equals(request.getMemberId())).findFirst().orElseThrow().getAssignment();
        return SyncGroupResponse.newBuilder().setAssignment(mine).build();
    }

    private CommitOffsetsResponse commit(CommitOffsetsRequest request) {
        beforeCommit.run();
        refuse(callRefusals);
        ErrorCode code = commitErrors.poll();
        var answer = CommitOffsetsResponse.newBuilder();
        request.getOffsetsList().forEach(one -> {
            var result = CommitOffsetResult.newBuilder().setTopic(one.getTopic()).setPartition(one.getPartition());
            if (code != null) {
                result.getErrorBuilder().setCode(code).setMessage("on purpose");
            } else {
                committed.put(new TopicPartition(one.getTopic(), one.getPartition()), one.getOffset());
            }
            answer.addPartitions(result);
        });
        return answer.build();
    }

    private FetchOffsetsResponse fetchOffsets(FetchOffsetsRequest request) {
        var answer = FetchOffsetsResponse.newBuilder();
        request.getPartitionsList().forEach(topic -> topic.getPartitionsList().forEach(number -> {
            var found = CommittedOffset.newBuilder().setTopic(topic.getTopic()).setPartition(number);
            Long offset = committed.get(new TopicPartition(topic.getTopic(), number));
            if (offset != null) {
                found.setOffset(offset).setLeaderEpoch(5);
            }
            answer.addPartitions(found);
        }));
        return answer.build();
    }
}
