"""Decide when to roll a segment. Source: docs/protocol/log-format.md#rolling-a-segment."""

import zlib

from paceline.log.log_config import LogConfig
from paceline.log.record_batch import MAX_INT32, BatchHeader
from paceline.log.segment import Segment


def must_roll(
    config: LogConfig,
    segment: Segment,
    segment_size: int,
    first_timestamp: int,
    header: BatchHeader,
    size: int,
    now_ms: int | None,
) -> bool:
    """Whether a segment of ``segment_size`` bytes must be rolled before a batch of ``size`` bytes is appended.

    ``first_timestamp`` is the largest timestamp of the segment's first batch, -1 when it has none. ``now_ms``, wall
    clock, is used only to roll by time when the records have no timestamps.
    """
    if segment_size > config.segment_bytes - size:
        return True
    if segment.offset_index.is_full or segment.time_index.is_full:
        return True
    if header.last_offset - segment.base_offset > MAX_INT32:
        return True
    if first_timestamp >= 0:
        waited = header.max_timestamp - first_timestamp
    elif now_ms is not None and segment.created_ms is not None:
        waited = now_ms - segment.created_ms
    else:
        return False
    segment_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.compacts else config.segment_ms
    return waited > segment_ms - _jitter_ms(config, segment, segment_ms)


def _jitter_ms(config: LogConfig, segment: Segment, segment_ms: int) -> int:
    """Return a part of ``segment.jitter.ms``, derived from the segment's path, so that logs roll at different times."""
    limit = min(config.segment_jitter_ms, segment_ms)
    return zlib.crc32(segment.log_path.encode()) % limit if limit > 0 else 0
