"""Compute how much of a log its topic's settings allow to delete. Source: docs/protocol/log-format.md#retention.

Whole segments go, oldest first, and only committed ones. A segment is too old when its newest record is, so a single
record with a future timestamp keeps it. The rest is never less than ``retention.bytes``.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.log.log_config import LogConfig


@dataclass(frozen=True, slots=True)
class SegmentExtent:
    """The facts of a segment that retention uses."""

    end_offset: int
    """Where the next segment begins; the log end for the active one."""
    size_bytes: int
    newest_ms: int
    """Timestamp of its newest record, milliseconds since 1970."""


def retained_from(
    segments: Iterable[SegmentExtent], config: LogConfig, total_bytes: int, high_watermark: int, wall_ms: int
) -> int | None:
    """Return the offset from which on records stay, None when all do.

    ``segments`` ascend and are asked for one at a time, as long as they go; ``total_bytes`` is the size of all.
    """
    excess = total_bytes - config.retention_bytes if config.retention_bytes >= 0 else -1
    start = None
    for segment in segments:
        if segment.end_offset > high_watermark:
            break
        is_too_old = 0 <= config.retention_ms < wall_ms - segment.newest_ms
        if segment.size_bytes > excess and not is_too_old:
            break
        excess -= segment.size_bytes
        start = segment.end_offset
    return start
