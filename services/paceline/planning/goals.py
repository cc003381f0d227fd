"""The loads that a plan balances, in order of priority, and the allowed deviation of each broker from its share."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

DEFAULT_THRESHOLD: Final = 0.10
"""The load of a broker within 10 % of its share counts as balanced, as in Cruise Control."""

DISK: Final = "disk"
"""Name of the goal whose weights are the sizes of the partitions, which decide the cost of a copy."""

_ROUNDING: Final = 1e-9

Partition = tuple[str, int]
Placement = Mapping[Partition, Sequence[int]]
"""Replicas of each partition, the preferred leader first."""


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """Measured load of one partition."""

    size_bytes: float = 0.0
    bytes_in_per_s: float = 0.0
    """Bytes per second written by producers."""
    bytes_out_per_s: float = 0.0
    """Bytes per second read by consumers."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A load to balance."""

    name: str
    weights: Sequence[float]
    """Load of each partition, in sorted order, for each replica or for its leader."""
    of_leaders: bool = False
    """Whether only the leader carries the load, so that moving leadership is enough and no bytes are copied."""
    threshold: float = 0.0


def count_goals(partitions: int) -> list[Goal]:
    """Return the goals of a plan without measured loads: equal numbers of replicas and of preferred leaders."""
    ones = [1.0] * partitions
    return [Goal("replicas", ones), Goal("leaders", ones, of_leaders=True)]


def load_goals(current: Placement, loads: Mapping[Partition, PartitionLoad], threshold: float) -> list[Goal]:
    """Return the goals: replicas, disk and bytes in of every replica; bytes out, bytes in and number of leaders."""
    names = sorted(current)
    none = PartitionLoad()
    measured = [loads.get(name, none) for name in names]
    ones = [1.0] * len(names)
    bytes_in = [load.bytes_in_per_s for load in measured]
    sent = [
        load.bytes_out_per_s + load.bytes_in_per_s * (len(current[name]) - 1)
        for name, load in zip(names, measured, strict=True)
    ]
    return [
        Goal("replicas", ones, False, threshold),
        Goal(DISK, [load.size_bytes for load in measured], False, threshold),
        Goal("bytes-in", bytes_in, False, threshold),
        Goal("bytes-out", sent, True, threshold),
        Goal("leader-bytes-in", bytes_in, True, threshold),
        Goal("leaders", ones, True, threshold),
    ]


@dataclass(frozen=True, slots=True)
class Balance:
    """How well a goal is met on the least and the most loaded broker."""

    goal: str
    lowest: float
    """Load of the least loaded usable broker, relative to its share."""
    highest: float
    outside: int
    """Number of usable brokers outside the limits, and of other brokers that hold a load."""


class Level:
    """The loads of the brokers under a goal, and their limits."""

    def __init__(self, goal: Goal, rows: Iterable[Sequence[int]], brokers: Iterable[int]) -> None:
        """``rows`` are the replicas of the partitions, ``brokers`` the usable brokers."""
        self.goal = goal
        self.loads = dict.fromkeys(brokers, 0.0)
        self.elsewhere: dict[int, float] = {}
        """Loads of brokers that are not usable."""
        for replicas, weight in zip(rows, goal.weights, strict=True):
            for broker in replicas[:1] if goal.of_leaders else replicas:
                held = self.loads if broker in self.loads else self.elsewhere
                held[broker] = held.get(broker, 0.0) + weight
        self.total = sum(goal.weights) or 1.0
        """Load of one replica of each partition."""
        self.share = (sum(self.loads.values()) + sum(self.elsewhere.values())) / len(self.loads)
        self.slack = _ROUNDING * self.total
        # No placement splits a partition, so a limit is never tighter than the share rounded to whole replicas.
        grain = statistics.median([weight for weight in goal.weights if weight > 0] or [1.0])
        whole = self.share / grain
        self.low = min(self.share * (1 - goal.threshold), math.floor(whole + _ROUNDING) * grain)
        self.high = max(self.share * (1 + goal.threshold), math.ceil(whole - _ROUNDING) * grain)

    def is_over(self, broker: int) -> bool:
        """Whether the broker has more than its limit."""
        return self.loads[broker] > self.high + self.slack

    def is_under(self, broker: int) -> bool:
        """Whether the broker has less than its limit."""
        return self.loads[broker] < self.low - self.slack

    def admits(self, weight: float, source: int, target: int) -> bool:
        """Whether a move leaves the source above its lower limit and the target below its upper limit."""
        if not weight:
            return True
        loads, slack = self.loads, self.slack
        return loads[source] - weight >= self.low - slack and loads[target] + weight <= self.high + slack

    def shift(self, weight: float, source: int, target: int) -> None:
        """Move a load from one broker to another."""
        self.loads[source] -= weight
        self.loads[target] += weight

    def balance(self) -> Balance:
        """Return how well the goal is met."""
        outside = sum(self.is_over(broker) or self.is_under(broker) for broker in self.loads)
        outside += sum(load > self.slack for load in self.elsewhere.values())
        if not self.share:
            return Balance(self.goal.name, 1.0, 1.0, outside)
        loads = self.loads.values()
        return Balance(self.goal.name, min(loads) / self.share, max(loads) / self.share, outside)
