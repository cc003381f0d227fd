"""How much of what is there goes into the next batch of a streaming query.

The rules are those of Spark's Kafka source: a limit is shared among the partitions in proportion to what each has, at
least one record per partition that has any; a minimum holds a batch back until enough is there or the delay is over.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.model.identifiers import TopicPartition

Offsets = Mapping[TopicPartition, int]


def limit_ends(begins: Offsets, ends: Offsets, most: int, weights: Mapping[str, float] | None = None) -> Offsets:
    """Return where the next batch ends in each partition.

    Args:
        begins: first offset not yet read.
        ends: end of what is there, exclusive; an end before its begin counts as nothing new.
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
        # Rounding down could give a small partition nothing for ever.
        taken = math.ceil(share) if share < 1 else math.floor(share)
        limited[tp] = min(ends[tp], begins[tp] + taken)
    return limited


@dataclass(slots=True)
class MinimumHold:
    """Holds a batch back while fewer records than a minimum are there, at most for a time."""

    min_records: int
    max_delay_ms: int
    last_released_ms: int | None = None
    """None lets the first batch pass, as in Spark's Kafka source."""

    def should_hold(self, new_records: int, now_ms: int) -> bool:
        """Return whether the records that are there have to wait for more."""
        if self.last_released_ms is None or now_ms - self.last_released_ms >= self.max_delay_ms:
            return False
        return new_records < self.min_records

    def release(self, now_ms: int) -> None:
        """Start the delay of the next batch."""
        self.last_released_ms = now_ms
