"""Progress of moves: bytes left, speed and estimated time. Pure; the clock is passed in.

The bytes left are the leader's bytes minus those of the new replicas, from their log directories. The speed is the
growth of the new replicas between two measurements.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline_client import BrokerLogDirs, Reassignment

Partition = tuple[str, int]
Sizes = Mapping[tuple[str, int, int], int]
"""Bytes per topic, partition and broker."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Progress of a move."""

    bytes_left: int | None
    """None while a broker whose sizes are needed does not answer."""
    bytes_per_second: int | None
    """None at the first measurement."""
    eta_s: int | None
    """None when it cannot be estimated, for example when no bytes are being copied."""


def sizes_of(brokers: Iterable["BrokerLogDirs"]) -> dict[tuple[str, int, int], int]:
    """Return the size of every replica in the result of `Admin.describe_log_dirs`."""
    return {
        (replica.topic_partition.topic, replica.topic_partition.partition, broker.broker_id): replica.size_bytes
        for broker in brokers
        for log_dir in broker.log_dirs
        for replica in log_dir.replicas
        if not replica.is_future
    }


class Progress:
    """Compares successive measurements of the same moves."""

    def __init__(self) -> None:
        self._before: dict[Partition, int] = {}
        self._at_s: float | None = None

    def look(self, moves: Iterable["Reassignment"], sizes: Sizes, now_s: float) -> dict[Partition, Speed]:
        """Return the progress of each move; ``now_s`` must come from a monotonic clock."""
        found: dict[Partition, Speed] = {}
        copied_now: dict[Partition, int] = {}
        passed_s = None if self._at_s is None else now_s - self._at_s
        for move in moves:
            where = move.topic_partition
            topic, index = where
            receivers = [each.broker_id for each in move.waiting_for]
            copied = copied_now[where] = sum(sizes.get((topic, index, broker), 0) for broker in move.target)
            full = None if move.leader is None else sizes.get((topic, index, move.leader))
            left = None
            if not receivers:
                left = 0
            elif full is not None:
                left = sum(max(0, full - sizes.get((topic, index, broker), 0)) for broker in receivers)
            speed = None
            if passed_s and where in self._before:
                speed = max(0, int((copied - self._before[where]) / passed_s))
            eta_s = None
            if left == 0:
                eta_s = 0
            elif left is not None and speed:
                eta_s = math.ceil(left / speed)
            found[where] = Speed(left, speed, eta_s)
        self._before, self._at_s = copied_now, now_s
        return found
