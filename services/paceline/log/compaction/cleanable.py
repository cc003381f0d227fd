"""Select the segments of a log that may be cleaned, and compute how much of them is dirty.

Only whole segments below a limit may be cleaned, never the active segment. The limit is never above the last stable
offset. The part that the last cleaning did not cover is dirty.

Source: docs/protocol/log-format.md#compaction; Kafka 2.8 LogCleanerManager.cleanableOffsets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from paceline.log.log_config import LogConfig
from paceline.log.segment import Segment


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The part of a log that may be cleaned; it always has dirty bytes."""

    segments: tuple[Segment, ...]
    ends: tuple[int, ...]
    """First offset of the segment after each of ``segments``."""
    first_dirty_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Whether a dirty record is older than ``max.compaction.lag.ms``."""

    @property
    def dirty_ratio(self) -> float:
        """Dirty bytes divided by all cleanable bytes, 0 to 1."""
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    def is_due(self, config: LogConfig) -> bool:
        """Whether the topic's settings require a cleaning now."""
        return self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio


def find_cleanable(
    segments: Sequence[Segment], first_dirty_offset: int, limit_offset: int, config: LogConfig, wall_ms: int
) -> Cleanable | None:
    """Return the cleanable part of a log with these segments, ``None`` when it has no dirty bytes.

    ``limit_offset`` is exclusive: a segment with records at or above it is not cleaned.

    Raises:
        OSError: storage failed.
        CorruptMessageError: a segment contains bytes that are not a batch.
    """
    chosen: list[Segment] = []
    ends: list[int] = []
    clean_bytes = dirty_bytes = 0
    oldest_ms: int | None = None
    for segment, following in pairwise(segments):
        end = following.base_offset
        if end > limit_offset:
            break
        is_dirty = end > first_dirty_offset
        if is_dirty and config.min_compaction_lag_ms and segment.newest_ms > wall_ms - config.min_compaction_lag_ms:
            break
        if is_dirty:
            dirty_bytes += segment.size
            if segment.size and segment.first_max_timestamp >= 0:
                first_ms = segment.first_max_timestamp
                oldest_ms = first_ms if oldest_ms is None else min(oldest_ms, first_ms)
        else:
            clean_bytes += segment.size
        chosen.append(segment)
        ends.append(end)
    if not dirty_bytes:
        return None
    is_overdue = oldest_ms is not None and wall_ms - oldest_ms > config.max_compaction_lag_ms
    return Cleanable(tuple(chosen), tuple(ends), first_dirty_offset, clean_bytes, dirty_bytes, is_overdue)
