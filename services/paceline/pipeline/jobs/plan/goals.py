"""The loads that a plan balances, in order of priority, and the allowed deviation of each broker from its share."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from paceline.pipeline.jobs.plan.model import ClusterModel, Floats

DEFAULT_THRESHOLD: Final = 0.10
"""The load of a broker within 10 % of its share counts as balanced, as in Cruise Control."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A load to balance."""

    name: str
    weights: Floats
    """Load per partition, for each replica or for its leader."""
    of_leaders: bool
    """Whether only the leader carries the load, so that moving leadership is enough and no bytes are copied."""
    threshold: float = DEFAULT_THRESHOLD


def make_goals(model: ClusterModel, threshold: float = DEFAULT_THRESHOLD) -> list[Goal]:
    """Return the goals: replicas, disk and bytes in of every replica; bytes out, bytes in and number of leaders."""
    ones = np.ones(model.partitions)
    sent = model.bytes_out + model.bytes_in * np.maximum(model.replication_factor - 1, 0)
    return [
        Goal("replicas", ones, False, threshold),
        Goal("disk", model.size_bytes, False, threshold),
        Goal("bytes-in", model.bytes_in, False, threshold),
        Goal("bytes-out", sent, True, threshold),
        Goal("leader-bytes-in", model.bytes_in, True, threshold),
        Goal("leaders", ones, True, threshold),
    ]


def loads_of(model: ClusterModel, goal: Goal) -> Floats:
    """Return the load of each broker."""
    if goal.of_leaders:
        leaders = model.assignment[:, 0]
        held = leaders >= 0
        return np.asarray(np.bincount(leaders[held], goal.weights[held], model.brokers), dtype=np.float64)
    loads = np.zeros(model.brokers)
    for column in range(model.assignment.shape[1]):
        replicas = model.assignment[:, column]
        held = replicas >= 0
        loads += np.bincount(replicas[held], weights=goal.weights[held], minlength=model.brokers)
    return loads


def shares_of(model: ClusterModel, total: float) -> Floats:
    """Return the target load of each broker, in proportion to its usable capacity."""
    capacity = np.where(model.usable, model.capacity, 0.0)
    return np.asarray(total * capacity / capacity.sum())


@dataclass(frozen=True, slots=True)
class Limits:
    """Least and most load per broker under a goal."""

    low: Floats
    share: Floats
    high: Floats


def limits_of(model: ClusterModel, goal: Goal, total: float) -> Limits:
    """Return the limits; a share of few items is rounded to whole items, and unusable brokers must end empty."""
    share = shares_of(model, total)
    # No placement splits a partition, so a limit is never tighter than the share rounded to whole replicas.
    grain = _grain(goal)
    fewest, most = np.floor(share / grain + 1e-9) * grain, np.ceil(share / grain - 1e-9) * grain
    return Limits(
        np.where(model.usable, np.minimum(share * (1 - goal.threshold), fewest), 0.0),
        share,
        np.where(model.usable, np.maximum(share * (1 + goal.threshold), most), 0.0),
    )


def _grain(goal: Goal) -> float:
    positive = goal.weights[goal.weights > 0]
    return float(np.median(positive)) if len(positive) else 1.0


@dataclass(frozen=True, slots=True)
class Balance:
    """How well a goal is met on the least and the most loaded broker."""

    goal: str
    lowest: float
    """Load of the least loaded usable broker, relative to its share."""
    highest: float
    outside: int
    """Number of usable brokers outside the limits, and of unusable brokers that still hold replicas."""


def balance_of(model: ClusterModel, goal: Goal) -> Balance:
    """Measure how well the model meets a goal."""
    loads = loads_of(model, goal)
    limits = limits_of(model, goal, float(loads.sum()))
    usable = model.usable & (limits.share > 0)
    relative = loads[usable] / limits.share[usable]
    slack = 1e-9 * max(float(loads.sum()), 1.0)
    outside = int(((loads < limits.low - slack) | (loads > limits.high + slack)).sum())
    if not len(relative):
        return Balance(goal.name, 1.0, 1.0, outside)
    return Balance(goal.name, float(relative.min()), float(relative.max()), outside)
