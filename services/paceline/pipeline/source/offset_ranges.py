"""Pack ranges of offsets into Spark tasks.

A Python task costs 11 to 28 ms before it reads a record, so many small partitions share one task, and one large
partition is split over several tasks (docs/spark.md#sizing).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from paceline.model.identifiers import TopicPartition

SLACK: Final = 0.1
"""A cut that is closer to the edge of a partition than this fraction of a task moves to the edge."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, start inclusive, end exclusive."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""
    """Topic id when the read was planned; empty skips the check that the topic has not been re-created."""
    leader: str = ""
    """``host:port`` of the leader when the read was planned; empty when not known."""
    bytes_per_record: float = 1024.0
    """Estimated mean stored size of a record."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def records(self) -> int:
        """Number of offsets in the range; compaction may have removed some of the records."""
        return self.end - self.start

    @property
    def estimated_bytes(self) -> float:
        return self.records * self.bytes_per_record


def pack(
    ranges: Sequence[OffsetRange],
    max_tasks: int,
    target_task_bytes: int,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[list[OffsetRange]]:
    """Return the ranges of each task; empty ranges are left out.

    By default the number of tasks is the total size divided by ``target_task_bytes``, at most ``max_tasks``.
    ``min_partitions`` raises that number, and ``max_records_per_partition`` splits tasks that have more offsets; both
    override ``max_tasks``.
    """
    wanted = sorted((r for r in ranges if r.records > 0), key=lambda r: (r.leader, r.topic, r.partition, r.start))
    if not wanted:
        return []
    total_bytes = sum(each.estimated_bytes for each in wanted)
    count = max(1, min(max_tasks, math.ceil(total_bytes / target_task_bytes)))
    tasks = _cut(wanted, [each.bytes_per_record for each in wanted], count, SLACK)
    if min_partitions is not None and min_partitions > len(tasks):
        tasks = _cut(wanted, [1.0] * len(wanted), min_partitions, 0.0)
    if max_records_per_partition is None:
        return tasks
    limited: list[list[OffsetRange]] = []
    for task in tasks:
        pieces = math.ceil(sum(each.records for each in task) / max_records_per_partition)
        limited.extend(_cut(task, [1.0] * len(task), pieces, 0.0))
    return limited


def _cut(ranges: Sequence[OffsetRange], weights: Sequence[float], count: int, slack: float) -> list[list[OffsetRange]]:
    """Lay the ranges end to end, each record as long as its weight, and cut the line into ``count`` equal parts.

    There are never more parts than records.
    """
    count = min(count, sum(each.records for each in ranges))
    total = sum(each.records * weight for each, weight in zip(ranges, weights, strict=True))
    share = total / count
    tasks: list[list[OffsetRange]] = [[]]
    before, number = 0.0, 1
    for each, weight in zip(ranges, weights, strict=True):
        start, after = each.start, before + each.records * weight
        while number < count and number * total / count < after - slack * share:
            cut = each.start + int((number * total / count - before) / weight + 1e-9)
            if (cut - each.start) * weight <= slack * share:
                cut = each.start
            if cut > start:
                tasks[-1].append(replace(each, start=start, end=cut))
                start = cut
            tasks.append([])
            number += 1
        if start < each.end:
            tasks[-1].append(replace(each, start=start))
        before = after
    return [task for task in tasks if task]
