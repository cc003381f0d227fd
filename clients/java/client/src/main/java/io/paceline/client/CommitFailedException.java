package io.paceline.client;

import io.paceline.v1.ErrorCode;

/**
 * Offsets were not committed because this member has lost its place in the group; other members may own its partitions.
 * The code is ILLEGAL_GENERATION. {@code poll} joins the group again.
 */
public final class CommitFailedException extends PacelineException {
    private static final long serialVersionUID = 1;

    CommitFailedException(ErrorCode code, boolean retriable, boolean definite, Details details, Throwable cause) {
        super(code, retriable, definite, details, cause);
    }
}
