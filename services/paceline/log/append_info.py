"""The result of an append to a log."""

from dataclasses import dataclass

from paceline.log.record_batch import NO_TIMESTAMP


@dataclass(slots=True)
class AppendInfo:
    """The result of an append; offsets inclusive, times in milliseconds."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 when records keep the producer's time."""
    log_start_offset: int
    duplicate: bool = False
    """Whether the batch was in the log already; the offsets are those it got then."""
    max_timestamp_ms: int = NO_TIMESTAMP
    record_count: int = 0
