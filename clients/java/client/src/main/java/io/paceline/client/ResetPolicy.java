package io.paceline.client;

/** What a consumer does when its position is out of range. */
public enum ResetPolicy {
    /** Continue at the first offset still in the log. */
    EARLIEST,
    /** Continue at the end. */
    LATEST,
    /** Throw OFFSET_OUT_OF_RANGE from {@code poll}. */
    ERROR
}
