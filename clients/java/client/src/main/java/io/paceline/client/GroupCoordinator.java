package io.paceline.client;

import io.grpc.Deadline;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.FindCoordinatorRequest;
import io.paceline.v1.FindCoordinatorResponse;
import io.paceline.v1.GroupServiceGrpc;
import io.paceline.v1.GroupServiceGrpc.GroupServiceBlockingStub;
import io.paceline.v1.GroupServiceGrpc.GroupServiceFutureStub;
import java.time.Duration;
import java.util.function.Function;

/** Finds the coordinator of one group and calls it. Safe for concurrent use. */
final class GroupCoordinator {
    private static final Duration ASK_TIMEOUT = Duration.ofSeconds(5);

    private final Cluster cluster;
    private final String group;
    /** The coordinator's address, null while it is not known; guarded by this. */
    private String address;

    GroupCoordinator(Cluster cluster, String group) {
        this.cluster = cluster;
        this.group = group;
    }

    /** Calls the coordinator with retries, also after it has moved; throws the last cause at the deadline. */
    <T> T call(String operation, Deadline total, Function<GroupServiceBlockingStub, T> call) {
        return cluster.retry(operation, total, deadline -> callOnce(operation, deadline, call));
    }

    /** Finds the coordinator if it is not known, calls it once, and forgets it if the failure requires that. */
    <T> T callOnce(String operation, Deadline deadline, Function<GroupServiceBlockingStub, T> call) {
        String known;
        try {
            known = addressOrFind(deadline);
        } catch (PacelineException failure) {
            // Definite: only the look-up failed, the call was not sent.
            throw failure.with(failure.retriable(), true);
        }
        try {
            return Cluster.call(operation, () -> call.apply(
                    GroupServiceGrpc.newBlockingStub(cluster.channel(known)).withDeadline(deadline)));
        } catch (PacelineException failure) {
            learnFrom(failure);
            throw failure;
        }
    }

    /** Returns a stub without a deadline, for a call that may outlast a poll; the deadline applies to the look-up only. */
    GroupServiceFutureStub futureStub(Deadline deadline) {
        return GroupServiceGrpc.newFutureStub(cluster.channel(addressOrFind(deadline)));
    }

    /** Forgets the coordinator when a failure shows that it has moved or cannot be reached. */
    synchronized void learnFrom(PacelineException failure) {
        switch (failure.code()) {
            case ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS, ERROR_CODE_THROTTLED -> { }
            case ERROR_CODE_NOT_COORDINATOR, ERROR_CODE_COORDINATOR_NOT_AVAILABLE, ERROR_CODE_SHUTTING_DOWN -> address = null;
            default -> address = failure.retriable() ? null : address;
        }
    }

    /** Finds the coordinator unless it is known. */
    void find(Deadline deadline) {
        addressOrFind(deadline);
    }

    private String addressOrFind(Deadline deadline) {
        synchronized (this) {
            if (address != null) {
                return address;
            }
        }
        String found = ask(deadline);
        synchronized (this) {
            address = found;
        }
        return found;
    }

    private String ask(Deadline deadline) {
        String operation = "finding the coordinator of group " + group;
        FindCoordinatorRequest request = FindCoordinatorRequest.newBuilder().setGroupId(group).build();
        PacelineException last = null;
        for (String broker : cluster.brokerAddresses(deadline)) {
            Deadline one = deadline.minimum(Retry.after(ASK_TIMEOUT));
            try {
                FindCoordinatorResponse answer = Cluster.call(operation, () -> GroupServiceGrpc
                        .newBlockingStub(cluster.channel(broker)).withDeadline(one).findCoordinator(request));
                return Cluster.join(answer.getHost(), answer.getPort());
            } catch (PacelineException failure) {
                last = last == null || failure.details().answered() ? failure : last;
                // After COORDINATOR_NOT_AVAILABLE another broker would give the same answer.
                boolean isFinal = !failure.retriable() || failure.code() == ErrorCode.ERROR_CODE_COORDINATOR_NOT_AVAILABLE;
                if (isFinal || deadline.isExpired()) {
                    break;
                }
            }
        }
        throw last;
    }
}
