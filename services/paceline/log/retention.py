"""Compute which part of a log its topic's settings retain. Source: docs/protocol/log-format.md#retention.

Retention deletes whole segments, oldest first, below the high watermark. A segment expires when its newest record does,
so a single record with a future timestamp keeps the segment. Deletion by size leaves at least ``retention.bytes``.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.log.log_config import LogConfig


@dataclass(frozen=True, slots=True)
class SegmentExtent:
    """End offset, size and newest timestamp of a segment, for retention."""

    end_offset: int
    """Base offset of the next segment; the log end offset for the active segment."""
    size_bytes: int
    newest_ms: int
    """Timestamp of its newest record, in milliseconds since 1970."""


def retained_from(
    segments: Iterable[SegmentExtent], config: LogConfig, total_bytes: int, high_watermark: int, wall_ms: int
) -> int | None:
    """Return the first retained offset, ``None`` when all records are retained.

    ``segments`` is in ascending order and is read only up to the first retained segment. ``total_bytes`` is the size of
    all segments.
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
