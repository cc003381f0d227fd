package io.paceline.client;

import io.paceline.v1.ErrorCode;

/** Another process has taken over the group instance id of this static member: close the consumer. */
public final class FencedInstanceIdException extends PacelineException {
    private static final long serialVersionUID = 1;

    FencedInstanceIdException(ErrorCode code, boolean retriable, boolean definite, Details details, Throwable cause) {
        super(code, retriable, definite, details, cause);
    }
}
