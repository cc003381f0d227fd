package io.paceline.client;

import io.paceline.v1.ErrorCode;

/** The group is rebalancing and refuses commits; call {@code poll} to take part in the rebalance. */
public final class RebalanceInProgressException extends PacelineException {
    private static final long serialVersionUID = 1;

    RebalanceInProgressException(ErrorCode code, boolean retriable, boolean definite, Details details, Throwable cause) {
        super(code, retriable, definite, details, cause);
    }
}
