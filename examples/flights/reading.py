"""Progress of Spark's stream: its micro-batches, and the time until it read from the new leaders after a kill."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch whose rows are in the table."""

    at_s: float
    """Time of the batch's end."""
    duration_ms: int
    rows: int
    ends: Mapping[int, int]
    """Per partition, the offset after the last record that has been read."""


def parse_batches(lines: Iterable[str]) -> list[Batch]:
    """Return the micro-batches of a progress file; ignores a last line that is not yet complete."""
    found = []
    for line in lines:
        if not line.endswith("\n"):
            break
        fields = json.loads(line)
        ends = {int(partition): end for partition, end in fields.pop("ends").items()}
        found.append(Batch(**fields, ends=ends))
    return found


@dataclass(frozen=True, slots=True)
class Reading:
    """The whole stream, with times in seconds since the first record."""

    batches: Sequence[Batch] = ()

    @classmethod
    def since(cls, started_s: float, batches: Sequence[Batch]) -> "Reading":
        """Return a copy with times relative to ``started_s`` of the same clock."""
        return cls([replace(batch, at_s=batch.at_s - started_s) for batch in batches])

    @property
    def median_ms(self) -> int:
        """Median duration of a micro-batch."""
        return round(median(batch.duration_ms for batch in self.batches)) if self.batches else 0

    @property
    def longest_pause_ms(self) -> int:
        """Longest time in which the table got no new row, from the first record on; 0 without a micro-batch."""
        ends = [0.0, *(batch.at_s for batch in self.batches)]
        return round(1000 * max((after - before for before, after in pairwise(ends)), default=0.0))

    def read_again_ms(self, killed_at_s: float, resumed_at: Mapping[int, int]) -> dict[int, int]:
        """Return, by partition, the time from a leader's death until a row appended by its successor is in the table.

        Args:
            killed_at_s: time of the leader's death.
            resumed_at: for each partition of the dead leader, the new leader's log end offset when it began to serve.
                The result omits a partition without a later record.
        """
        found = {}
        for partition, resumed in sorted(resumed_at.items()):
            at_s = next((batch.at_s for batch in self.batches if batch.ends.get(partition, 0) > resumed), None)
            if at_s is not None:
                found[partition] = round((at_s - killed_at_s) * 1000)
        return found
