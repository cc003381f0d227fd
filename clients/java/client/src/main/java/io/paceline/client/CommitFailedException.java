package io.paceline.client;

import io.paceline.v1.ErrorCode;

/**
 * The commit was refused because this consumer is not a member of the group's current generation; other members may own its
 * partitions. The code is ILLEGAL_GENERATION. The next {@code poll} joins the group again.
 */
public final class CommitFailedException extends PacelineException {
    private static final long serialVersionUID = 1;

    CommitFailedException(ErrorCode code, boolean retriable, boolean definite, Details details, Throwable cause) {
        super(code, retriable, definite, details, cause);
    }
}
