package io.paceline.client;

import io.grpc.Deadline;
import io.paceline.v1.CommitOffsetResult;
import io.paceline.v1.CommitOffsetsRequest;
import io.paceline.v1.CommitOffsetsResponse;
import io.paceline.v1.CommittedOffset;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.FetchOffsetsRequest;
import io.paceline.v1.FetchOffsetsResponse;
import io.paceline.v1.OffsetToCommit;
import java.time.Duration;
import java.util.Collection;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Commits offsets, one request at a time, and fetches committed offsets. */
final class GroupOffsets {
    private static final Duration ASYNC_TIMEOUT = Duration.ofSeconds(5);

    private final GroupConfig config;
    private final GroupCoordinator coordinator;
    private final MemberState member;
    private final Executor threads;
    private CompletableFuture<Void> newest = CompletableFuture.completedFuture(null);

    GroupOffsets(GroupConfig config, GroupCoordinator coordinator, MemberState member, Executor threads) {
        this.config = config;
        this.coordinator = coordinator;
        this.member = member;
        this.threads = threads;
    }

    /** Returns whether a commit is in flight. */
    synchronized boolean isBusy() {
        return !newest.isDone();
    }

    /** Waits for earlier commits, then commits and waits for the response. */
    void commit(Map<TopicPartition, OffsetAndMetadata> offsets, Deadline deadline) {
        CommitOffsetsRequest request = request(offsets);
        awaitEarlier(deadline);
        send(request, deadline);
    }

    /**
     * Waits until every earlier commit has ended, with success or not.
     *
     * @throws PacelineException REQUEST_TIMED_OUT after the deadline or an interrupt
     */
    void awaitEarlier(Deadline deadline) {
        CompletableFuture<Void> before;
        synchronized (this) {
            before = newest;
        }
        try {
            before.handle((nothing, failure) -> null).get(Retry.leftMs(deadline), TimeUnit.MILLISECONDS);
        } catch (TimeoutException late) {
            throw Failures.of(operation(), ErrorCode.ERROR_CODE_REQUEST_TIMED_OUT, "an earlier commit has not ended")
                    .with(true, true);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw Failures.of(operation(), ErrorCode.ERROR_CODE_REQUEST_TIMED_OUT, "the thread was interrupted")
                    .with(true, true);
        } catch (ExecutionException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /** Commits without waiting, with the present member id and generation. */
    synchronized CompletableFuture<Void> commitAsync(Map<TopicPartition, OffsetAndMetadata> offsets) {
        CommitOffsetsRequest request;
        try {
            request = request(offsets);
        } catch (PacelineException failure) {
            return CompletableFuture.failedFuture(failure);
        }
        // The time for earlier commits counts, so that commits do not pile up while the coordinator does not answer.
        Deadline deadline = Retry.after(ASYNC_TIMEOUT);
        newest = newest.handle((nothing, failure) -> null).thenRunAsync(() -> send(request, deadline), threads);
        // A copy: a caller that completes its future must not let the next commit overtake this one.
        return newest.copy();
    }

    private String operation() {
        return "committing offsets of group " + config.groupId;
    }

    private CommitOffsetsRequest request(Map<TopicPartition, OffsetAndMetadata> offsets) {
        CommitOffsetsRequest.Builder request = CommitOffsetsRequest.newBuilder()
                .setGroupId(config.groupId).setGroupInstanceId(config.groupInstanceId);
        if (!member.topics().isEmpty()) {
            MemberState.Identity identity = member.identity();
            if (identity.generation() < 0) {
                throw Failures.commitFailed(operation(), "this member is in no generation", null);
            }
            request.setGenerationId(identity.generation()).setMemberId(identity.memberId());
        }
        offsets.forEach((partition, position) -> {
            OffsetToCommit.Builder offset = request.addOffsetsBuilder().setTopic(partition.topic())
                    .setPartition(partition.partition()).setOffset(position.offset()).setMetadata(position.metadata());
            if (position.leaderEpoch() != null) {
                offset.setLeaderEpoch(position.leaderEpoch());
            }
        });
        return request.build();
    }

    private void send(CommitOffsetsRequest request, Deadline total) {
        if (total.isExpired()) {
            throw Failures.of(operation(), ErrorCode.ERROR_CODE_REQUEST_TIMED_OUT,
                    "earlier commits took all the time; this commit was not sent").with(true, true);
        }
        try {
            coordinator.call(operation(), total, stub -> {
                CommitOffsetsResponse answer = stub.commitOffsets(request);
                boolean isPart = answer.getPartitionsList().stream().anyMatch(one -> !one.hasError());
                for (CommitOffsetResult result : answer.getPartitionsList()) {
                    Failures.throwCommit(operation(), result, isPart);
                }
                return answer;
            });
        } catch (PacelineException failure) {
            boolean isLost = failure.code() == ErrorCode.ERROR_CODE_UNKNOWN_MEMBER_ID
                    || failure.code() == ErrorCode.ERROR_CODE_ILLEGAL_GENERATION;
            if (request.hasGenerationId()) {
                // The next heartbeat would get the same refusal; do not wait for it.
                member.refused(request.getGenerationId(), failure);
            }
            throw isLost
                    ? Failures.commitFailed(operation(), failure.getMessage(), failure).with(false, failure.definite())
                    : failure;
        }
    }

    /** Returns the committed offsets; omits partitions without one. */
    Map<TopicPartition, OffsetAndMetadata> fetch(Collection<TopicPartition> partitions, Deadline total) {
        Map<TopicPartition, OffsetAndMetadata> found = new TreeMap<>();
        if (partitions.isEmpty()) {
            return found;
        }
        FetchOffsetsRequest request = FetchOffsetsRequest.newBuilder().setGroupId(config.groupId)
                .addAllPartitions(GroupRequests.onWire(partitions)).build();
        FetchOffsetsResponse answer = coordinator.call("fetching the committed offsets of group " + config.groupId, total,
                stub -> stub.fetchOffsets(request));
        for (CommittedOffset one : answer.getPartitionsList()) {
            if (one.hasOffset()) {
                found.put(new TopicPartition(one.getTopic(), one.getPartition()), new OffsetAndMetadata(
                        one.getOffset(), one.hasLeaderEpoch() ? one.getLeaderEpoch() : null, one.getMetadata()));
            }
        }
        return found;
    }
}
