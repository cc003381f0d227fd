"""The result of an append to a log."""

from dataclasses import dataclass


@dataclass(slots=True)
class AppendInfo:
    """The result of an append. Both offsets are inclusive; times are in milliseconds."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 when the records keep the producer's timestamps."""
    log_start_offset: int
    duplicate: bool = False
    """Whether the batch was already in the log; the offsets are those of the first append."""
