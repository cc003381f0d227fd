package io.paceline.client;

import io.paceline.v1.ErrorCode;
import io.paceline.v1.LeaderHint;
import java.time.Duration;
import java.util.Map;

/** A failure with the code that a server sent, or the nearest code for a call without an answer. */
public sealed class PacelineException extends RuntimeException
        permits CommitFailedException, FencedInstanceIdException, RebalanceInProgressException {
    private static final long serialVersionUID = 1;

    private final ErrorCode code;
    private final boolean retriable;
    private final boolean definite;
    private final transient Details details;

    /** Data that only this library uses. */
    record Details(
            String operation, String sentence, boolean refreshMetadata, boolean answered, Duration retryAfter,
            LeaderHint leader, Map<String, String> metadata) {}

    PacelineException(ErrorCode code, boolean retriable, boolean definite, Details details, Throwable cause) {
        super(details.operation + ": " + nameOf(code) + ": " + details.sentence, cause);
        this.code = code;
        this.retriable = retriable;
        this.definite = definite;
        this.details = details;
    }

    /** Returns the server's code; REQUEST_TIMED_OUT or BROKER_NOT_AVAILABLE when no server answered. */
    public ErrorCode code() {
        return code;
    }

    /** Returns the name of the code without its prefix, for example NOT_CONTROLLER. */
    public String codeName() {
        return nameOf(code);
    }

    /** Returns whether the same call may succeed later. */
    public boolean retriable() {
        return retriable;
    }

    /** Returns whether the operation was certainly not carried out; false means that its outcome is unknown. */
    public boolean definite() {
        return definite;
    }

    Details details() {
        return details;
    }

    /** Returns a copy with these two properties, whose cause is this exception; returns this if they are equal. */
    PacelineException with(boolean isRetriable, boolean isDefinite) {
        if (isRetriable == retriable && isDefinite == definite) {
            return this;
        }
        return of(code, isRetriable, isDefinite, details, this);
    }

    /** Creates an exception of the class for its code. */
    static PacelineException of(
            ErrorCode code, boolean retriable, boolean definite, Details details, Throwable cause) {
        return switch (code) {
            case ERROR_CODE_ILLEGAL_GENERATION -> new CommitFailedException(code, retriable, definite, details, cause);
            case ERROR_CODE_FENCED_INSTANCE_ID -> new FencedInstanceIdException(code, retriable, definite, details, cause);
            case ERROR_CODE_REBALANCE_IN_PROGRESS ->
                    new RebalanceInProgressException(code, retriable, definite, details, cause);
            default -> new PacelineException(code, retriable, definite, details, cause);
        };
    }

    private static String nameOf(ErrorCode code) {
        String name = code.name();
        return name.startsWith("ERROR_CODE_") ? name.substring("ERROR_CODE_".length()) : name;
    }
}
