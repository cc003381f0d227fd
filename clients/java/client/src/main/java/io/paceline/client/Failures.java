package io.paceline.client;

import com.google.protobuf.Any;
import com.google.protobuf.Descriptors.EnumValueDescriptor;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.paceline.v1.CommitOffsetResult;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.Errors;
import io.paceline.v1.LeaderHint;
import io.paceline.v1.PartitionError;
import io.paceline.v1.TopicError;
import java.net.ConnectException;
import java.net.NoRouteToHostException;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.Map;

/** Converts errors in responses and failed calls into exceptions. */
final class Failures {
    /** Domain of the google.rpc.ErrorInfo details that Paceline's servers send. */
    private static final String DOMAIN = "paceline";

    private Failures() {}

    /** Options of an error code in errors.proto. */
    private record Options(boolean retriable, boolean definite, boolean refreshMetadata) {
        static Options of(ErrorCode code) {
            if (code == ErrorCode.UNRECOGNIZED) {
                return new Options(false, false, false);
            }
            EnumValueDescriptor value = code.getValueDescriptor();
            boolean refresh = value.getOptions().getExtension(Errors.refreshMetadata);
            // After a metadata refresh the call goes to another broker or has another epoch, so that a retry may succeed.
            return new Options(
                    refresh || value.getOptions().getExtension(Errors.retriable),
                    value.getOptions().getExtension(Errors.definite),
                    refresh);
        }
    }

    /** Returns an exception with the options of its error code. */
    static PacelineException of(String operation, ErrorCode code, String sentence) {
        return answered(operation, code, sentence, Duration.ZERO, null, Map.of(), null);
    }

    private static PacelineException answered(
            String operation, ErrorCode code, String sentence, Duration retryAfter, LeaderHint leader,
            Map<String, String> metadata, Throwable cause) {
        Options options = Options.of(code);
        var details = new PacelineException.Details(
                operation, sentence, options.refreshMetadata, true, retryAfter, leader, metadata);
        return PacelineException.of(code, options.retriable, options.definite, details, cause);
    }

    /** Returns the failure of a request for which there was no time; an earlier failure says more. */
    static PacelineException unsent(String operation, String sentence) {
        var details = new PacelineException.Details(operation, sentence, false, false, Duration.ZERO, null, Map.of());
        return new PacelineException(ErrorCode.ERROR_CODE_REQUEST_TIMED_OUT, true, true, details, null);
    }

    /** Throws the error of one partition. */
    static void throwPartition(String operation, PartitionError error) {
        throw answered(operation, error.getCode(), error.getMessage(), Duration.ofMillis(error.getRetryAfterMs()),
                error.hasCurrentLeader() ? error.getCurrentLeader() : null, Map.of(), null);
    }

    /** Throws the error of one topic. */
    static void throwTopic(String operation, TopicError error) {
        throw of(operation, error.getCode(), error.getMessage());
    }

    /** Throws the error of a partition of a commit, if any; not definite if other partitions were committed (isPart). */
    static void throwCommit(String operation, CommitOffsetResult result, boolean isPart) {
        if (result.hasError()) {
            PacelineException failure = of(operation, result.getError().getCode(),
                    result.getTopic() + "/" + result.getPartition() + ": " + result.getError().getMessage());
            throw failure.with(failure.retriable(), failure.definite() && !isPart);
        }
    }

    /** Returns the failure of a partition that could not be read for {@code time}. */
    static PacelineException unread(String partition, Duration time, PacelineException cause) {
        return answered("reading " + partition, ErrorCode.ERROR_CODE_REQUEST_TIMED_OUT, "it could not be read for "
                + time.toMillis() + " ms: " + cause.getMessage(), Duration.ZERO, null, Map.of(), cause);
    }

    /** Returns the failure of a commit by a member that is no longer in the group. */
    static PacelineException commitFailed(String operation, String reason, PacelineException cause) {
        var details = new PacelineException.Details(operation, "the group has rebalanced without this member; poll more "
                + "often, take fewer records per poll or raise maxPollInterval (" + reason + ")", false, true,
                Duration.ZERO, null, Map.of());
        return new CommitFailedException(ErrorCode.ERROR_CODE_ILLEGAL_GENERATION, false, true, details, cause);
    }

    /** Returns the failure of a call that ended with a gRPC status. */
    static PacelineException ofCall(String operation, StatusRuntimeException error) {
        com.google.rpc.Status status = StatusProto.fromThrowable(error);
        ErrorInfo info = null;
        Duration retryAfter = Duration.ZERO;
        try {
            for (Any detail : status == null ? java.util.List.<Any>of() : status.getDetailsList()) {
                if (detail.is(ErrorInfo.class)) {
                    ErrorInfo found = detail.unpack(ErrorInfo.class);
                    info = found.getDomain().equals(DOMAIN) ? found : info;
                } else if (detail.is(RetryInfo.class)) {
                    var delay = detail.unpack(RetryInfo.class).getRetryDelay();
                    retryAfter = Duration.ofSeconds(delay.getSeconds(), delay.getNanos());
                }
            }
        } catch (InvalidProtocolBufferException broken) {
            error.addSuppressed(broken);
        }
        if (info == null) {
            return withoutAnswer(operation, error);
        }
        ErrorCode code;
        try {
            code = ErrorCode.valueOf("ERROR_CODE_" + info.getReason());
        } catch (IllegalArgumentException unknown) {
            code = ErrorCode.ERROR_CODE_UNKNOWN_SERVER_ERROR;
        }
        return answered(operation, code, status.getMessage(), retryAfter, null, info.getMetadataMap(), error);
    }

    /** Returns the failure of a call without a response from Paceline; definite only if no server took the request. */
    private static PacelineException withoutAnswer(String operation, StatusRuntimeException error) {
        Status status = error.getStatus();
        String sentence = status.getDescription() == null ? status.getCode().name() : status.getDescription();
        ErrorCode code = ErrorCode.ERROR_CODE_UNKNOWN_SERVER_ERROR;
        boolean retriable = false;
        boolean refusedByServer = false;
        switch (status.getCode()) {
            case DEADLINE_EXCEEDED -> {
                code = ErrorCode.ERROR_CODE_REQUEST_TIMED_OUT;
                retriable = true;
            }
            case RESOURCE_EXHAUSTED -> {
                // A retry of a message over the size limit would fail again. Brokers report "Received message larger than
                // max" before they read a request, and "Sent message larger than max" after they have carried it out;
                // gRPC in this process reports "exceeds maximum" for a response.
                refusedByServer = sentence.contains("Received message larger than max");
                boolean size = sentence.contains("larger than max") || sentence.contains("exceeds maximum");
                code = size ? ErrorCode.ERROR_CODE_MESSAGE_TOO_LARGE : ErrorCode.ERROR_CODE_BROKER_NOT_AVAILABLE;
                retriable = !size;
            }
            // gRPC itself ends calls with any of these statuses when a connection breaks.
            case UNAVAILABLE, CANCELLED, INTERNAL, UNKNOWN -> {
                code = ErrorCode.ERROR_CODE_BROKER_NOT_AVAILABLE;
                retriable = true;
            }
            default -> { }
        }
        if (status.getCause() != null && status.getCause().getMessage() != null) {
            sentence += ": " + status.getCause().getMessage();
        }
        var details = new PacelineException.Details(operation, sentence, true, false, Duration.ZERO, null, Map.of());
        return new PacelineException(code, retriable, refusedByServer || neverSent(status), details, error);
    }

    /** Returns whether the call ended before a connection for the request was established. */
    private static boolean neverSent(Status status) {
        for (Throwable cause = status.getCause(); cause != null; cause = cause.getCause()) {
            if (cause instanceof ConnectException || cause instanceof UnknownHostException
                    || cause instanceof NoRouteToHostException) {
                return true;
            }
        }
        return status.getCode() == Status.Code.DEADLINE_EXCEEDED && status.getDescription() != null
                && status.getDescription().contains("waiting_for_connection");
    }
}
