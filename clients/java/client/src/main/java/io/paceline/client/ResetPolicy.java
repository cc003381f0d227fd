package io.paceline.client;

/** The action of a consumer whose position is out of range or, in a group, not committed. */
public enum ResetPolicy {
    /** Continue at the first offset of the log. */
    EARLIEST,
    /** Continue at the end of the log. */
    LATEST,
    /** Throw OFFSET_OUT_OF_RANGE from {@code poll}. */
    ERROR
}
