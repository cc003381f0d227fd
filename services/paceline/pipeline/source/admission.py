"""Limit the next batch of a streaming query to a part of the available records.

The rules are those of Spark's Kafka source: a limit is shared among the partitions in proportion to their available
records, with at least one record per partition that has any; a minimum holds a batch back until enough records are
available or the delay has passed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.model.identifiers import TopicPartition

Offsets = Mapping[TopicPartition, int]


def limit_ends(begins: Offsets, ends: Offsets, most: int, weights: Mapping[str, float] | None = None) -> Offsets:
    """Return the end offset of the next batch in each partition.

    Args:
        begins: first offset not yet read.
        ends: end of the available records, exclusive; an end before its begin means that there are no new records.
        most: limit of the batch, in records, or in bytes with ``weights``.
        weights: bytes per record by topic; absent topics count 1.
    """
    weights = weights or {}
    sizes = {tp: (end - begins[tp]) * weights.get(tp.topic, 1.0) for tp, end in ends.items() if end > begins[tp]}
    total = sum(sizes.values())
    if total <= most:
        return ends
    limited = dict(ends)
    for tp, size in sizes.items():
        share = most * (size / total) / weights.get(tp.topic, 1.0)
        # Round a share below one record up: rounded down, a small partition might never be read.
        taken = math.ceil(share) if share < 1 else math.floor(share)
        limited[tp] = min(ends[tp], begins[tp] + taken)
    return limited


@dataclass(slots=True)
class MinimumHold:
    """Holds a batch back while fewer than ``min_records`` are available, for at most ``max_delay_ms``."""

    min_records: int
    max_delay_ms: int
    last_released_ms: int | None = None
    """None before the first batch, which is never held back, as in Spark's Kafka source."""

    def should_hold(self, new_records: int, now_ms: int) -> bool:
        """Return whether a batch of ``new_records`` has to wait for more records."""
        if self.last_released_ms is None or now_ms - self.last_released_ms >= self.max_delay_ms:
            return False
        return new_records < self.min_records

    def release(self, now_ms: int) -> None:
        """Start the delay of the next batch."""
        self.last_released_ms = now_ms
