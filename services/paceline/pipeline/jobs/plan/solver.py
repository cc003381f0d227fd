"""Find a better placement: hard rules first, then the goals in order; a later goal must not undo an earlier goal.

Every step works in rounds over arrays: choose many replicas on overloaded brokers, draw a destination for each in
proportion to the free capacity, keep the moves that fit (running sums per source and destination), and apply them
together. Replicas that relieve much load for few copied bytes are chosen first. The same seed gives the same plan.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from paceline.pipeline.jobs.plan.goals import (
    DEFAULT_THRESHOLD,
    Balance,
    Goal,
    Limits,
    balance_of,
    limits_of,
    loads_of,
    make_goals,
)
from paceline.pipeline.jobs.plan.model import Bools, ClusterModel, Floats, Ints, changed_rows, copied_replicas
from paceline.pipeline.jobs.plan.racks import broken_rules, may_move, most_per_rack, on_unusable, surplus_in_racks

ROUNDS: Final = 60
HARD_ROUNDS: Final = 200
SAMPLE: Final = 400_000
"""Maximum number of replicas considered in a round."""
STALE_ROUNDS: Final = 4
"""Rounds without a move after which work on a goal ends."""

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Plan:
    """A better placement and its cost."""

    model: ClusterModel
    before: list[Balance]
    after: list[Balance]
    moved_replicas: int
    moved_bytes: float
    changed_partitions: int
    seconds: dict[str, float]
    """Time per step."""
    broken_rules: list[str]
    """Hard rules that could not be met; empty for a valid plan."""
    seed: int = 0


@dataclass(slots=True)
class _State:
    model: ClusterModel
    most_per_rack: Ints
    rng: np.random.Generator
    loads: dict[str, Floats] = field(default_factory=dict)
    limits: dict[str, Limits] = field(default_factory=dict)
    done: list[Goal] = field(default_factory=list)
    """Goals that later goals must not make worse."""


def solve(model: ClusterModel, seed: int = 0, threshold: float = DEFAULT_THRESHOLD) -> Plan:
    """Return a plan for the cluster; changes nothing when all loads are within their limits."""
    start = model
    model = model.with_assignment(model.assignment.copy())
    goals = make_goals(model, threshold)
    before = [balance_of(start, goal) for goal in goals]
    state = _State(model, most_per_rack(model), np.random.default_rng(seed))
    for goal in goals:
        loads = loads_of(model, goal)
        state.loads[goal.name] = loads
        state.limits[goal.name] = limits_of(model, goal, float(loads.sum()))
    seconds: dict[str, float] = {}

    def timed(name: str, step: Callable[[], None]) -> None:
        started = time.perf_counter()
        step()
        seconds[name] = round(time.perf_counter() - started, 3)

    timed("empty-brokers", lambda: _repair(state, goals, on_unusable))
    timed("racks", lambda: _repair(state, goals, surplus_in_racks))
    for goal in goals:
        improve = _balance_leaders if goal.of_leaders else _balance_replicas
        timed(goal.name, lambda improve=improve, goal=goal: improve(state, goals, goal))  # type: ignore[misc]
        state.done.append(goal)
    copied = copied_replicas(start, model)
    return Plan(
        model=model,
        before=before,
        after=[balance_of(model, goal) for goal in goals],
        moved_replicas=int(copied.sum()),
        moved_bytes=float((copied * model.size_bytes).sum()),
        changed_partitions=len(changed_rows(start, model)),
        seconds=seconds,
        broken_rules=broken_rules(model),
        seed=seed,
    )


# --- rounds


def _repair(state: _State, goals: Sequence[Goal], find: Callable[[ClusterModel], Bools]) -> None:
    """Move the replicas that break a hard rule to the brokers with the most free capacity for replicas and disk."""
    model = state.model
    for number in range(HARD_ROUNDS):
        rows, columns = np.nonzero(find(model))
        if not len(rows):
            return
        rows, columns = _one_per_partition(state, rows, columns)
        room = np.zeros(model.brokers)
        for name in ("replicas", "disk"):
            limits, loads = state.limits[name], state.loads[name]
            total = max(float(limits.share.sum()), 1e-9)
            room += np.maximum(limits.share - loads, 0) / total
        # Without free capacity a replica must still move: every usable broker keeps a small chance, which grows with
        # each round.
        room = np.where(model.usable, room + 1e-3 * (1 + number) ** 2 / model.brokers, 0.0)
        destinations = _draw(state.rng, room, len(rows))
        fine = may_move(model, rows, columns, destinations, state.most_per_rack)
        _apply_moves(state, goals, rows[fine], columns[fine], destinations[fine])


def _balance_replicas(state: _State, goals: Sequence[Goal], goal: Goal) -> None:
    model, limits, loads = state.model, state.limits[goal.name], state.loads[goal.name]
    stale = 0
    for _ in range(ROUNDS):
        surplus, deficit = _surplus_and_deficit(loads, limits)
        if surplus is None or stale >= STALE_ROUNDS:
            return
        rows, columns = _candidates(state, goal, surplus)
        if not len(rows):
            return
        sources = model.assignment[rows, columns]
        destinations = _draw(state.rng, deficit, len(rows))
        weights = goal.weights[rows]
        fine = may_move(model, rows, columns, destinations, state.most_per_rack)
        fine &= _within(sources, np.where(fine, weights, 0.0), surplus)
        fine &= _within(destinations, np.where(fine, weights, 0.0), deficit)
        for earlier in state.done:
            fine &= _keeps(state, earlier, rows, sources, destinations, fine, columns == 0)
        rows, columns, destinations = rows[fine], columns[fine], destinations[fine]
        stale = 0 if len(rows) else stale + 1
        _apply_moves(state, goals, rows, columns, destinations)


def _balance_leaders(state: _State, goals: Sequence[Goal], goal: Goal) -> None:
    """Move leadership to another replica of the same partition; no byte is copied."""
    model, limits, loads = state.model, state.limits[goal.name], state.loads[goal.name]
    if model.assignment.shape[1] < 2:
        return
    stale = 0
    for _ in range(ROUNDS):
        surplus, deficit = _surplus_and_deficit(loads, limits)
        if surplus is None or stale >= STALE_ROUNDS:
            return
        leaders = model.assignment[:, 0]
        rows = np.flatnonzero((leaders >= 0) & (surplus[leaders] > 0) & (goal.weights > 0))
        rows = state.rng.permutation(rows)[:SAMPLE]
        if not len(rows):
            return
        followers = model.assignment[rows, 1:]
        # A random component prevents all partitions of a broker from choosing the same follower.
        wanted = np.where(followers >= 0, deficit[followers], -1.0) * state.rng.random(followers.shape)
        columns = wanted.argmax(axis=1) + 1
        best = wanted[np.arange(len(rows)), columns - 1] > 0
        rows, columns = rows[best], columns[best]
        sources, destinations = model.assignment[rows, 0], model.assignment[rows, columns]
        weights = goal.weights[rows]
        fine = _within(sources, weights, surplus)
        fine &= _within(destinations, np.where(fine, weights, 0.0), deficit)
        for earlier in state.done:
            if earlier.of_leaders:
                fine &= _keeps(state, earlier, rows, sources, destinations, fine, np.ones(len(rows), dtype=np.bool_))
        stale = 0 if fine.any() else stale + 1
        _apply_leaders(state, goals, rows[fine], columns[fine])


def _surplus_and_deficit(loads: Floats, limits: Limits) -> tuple[Floats | None, Floats]:
    """Return how much each broker should give and may take; no surplus when every broker is within its limits."""
    slack = 1e-9 * max(float(loads.sum()), 1.0)
    over, under = loads > limits.high + slack, loads < limits.low - slack
    if not over.any() and not under.any():
        return None, loads
    # A broker within its limits gives only if another broker is below its limit, and takes only if another is above.
    surplus = np.where(over | under.any(), np.maximum(loads - limits.share, 0), 0.0)
    deficit = np.where(under | over.any(), np.maximum(limits.share - loads, 0), 0.0)
    if not surplus.any() or not deficit.any():
        return None, loads
    return surplus, deficit


def _candidates(state: _State, goal: Goal, surplus: Floats) -> tuple[Rows, Rows]:
    """Return replicas on overloaded brokers, most relief per copied byte first, one per partition."""
    model = state.model
    held = (model.assignment >= 0) & (goal.weights > 0)[:, None]
    rows, columns = np.nonzero(held & (surplus > 0)[model.assignment])
    if len(rows) > SAMPLE:
        chosen = state.rng.choice(len(rows), SAMPLE, replace=False)
        rows, columns = rows[chosen], columns[chosen]
    rows, columns = _one_per_partition(state, rows, columns)
    # Skip a replica that is larger than the broker's surplus: its move would only swap the two brokers' roles.
    fits = goal.weights[rows] <= surplus[model.assignment[rows, columns]] + 1e-9
    rows, columns = rows[fits], columns[fits]
    mean = float(model.size_bytes.mean()) + 1.0
    # A broker with a full disk must also give large replicas: there every byte of relief costs one copied byte.
    disk_over = (state.loads["disk"] > state.limits["disk"].high)[model.assignment[rows, columns]]
    relief = goal.weights[rows] / np.where(disk_over, mean, model.size_bytes[rows] + 0.01 * mean)
    # The random factor lets other replicas be tried after rounds in which the best replicas found no room.
    order = np.argsort(-relief * state.rng.uniform(0.5, 1.5, len(rows)), kind="stable")
    return rows[order], columns[order]


def _one_per_partition(state: _State, rows: Rows, columns: Rows) -> tuple[Rows, Rows]:
    """Return one replica of each partition, chosen at random, in the order of the partitions."""
    order = state.rng.permutation(len(rows))
    _, first = np.unique(rows[order], return_index=True)
    chosen = order[first]
    return rows[chosen], columns[chosen]


def _draw(rng: np.random.Generator, room: Floats, count: int) -> Ints:
    """Draw brokers in proportion to their free capacity."""
    bounds = np.cumsum(room)
    drawn = np.searchsorted(bounds, rng.random(count) * bounds[-1], side="right")
    return np.asarray(np.minimum(drawn, len(room) - 1), dtype=np.int32)


def _within(brokers: Ints, weights: Floats, room: Floats) -> Bools:
    """Return the moves, in order, that still fit the free capacity of their broker."""
    order = np.argsort(brokers, kind="stable")
    sums = np.cumsum(weights[order])
    numbers = brokers[order]
    first = np.searchsorted(numbers, numbers, side="left")
    before = np.where(first > 0, sums[first - 1], 0.0)
    fine = np.empty(len(brokers), dtype=np.bool_)
    fine[order] = sums - before <= room[numbers] * (1 + 1e-12) + 1e-9
    return np.asarray(fine & (weights > 0))


def _keeps(
    state: _State, goal: Goal, rows: Rows, sources: Ints, destinations: Ints, chosen: Bools, moves_leader: Bools
) -> Bools:
    """Return the moves that leave an earlier goal within its limits, or no worse than before."""
    weights = np.where(chosen & (moves_leader | (not goal.of_leaders)), goal.weights[rows], 0.0)
    loads, limits = state.loads[goal.name], state.limits[goal.name]
    may_give = np.maximum(loads - limits.low, 0.0)
    may_take = np.maximum(limits.high - loads, 0.0)
    free = weights == 0
    fits = (_within(sources, weights, may_give) | free) & (_within(destinations, weights, may_take) | free)
    return np.asarray(fits)


def _apply_moves(state: _State, goals: Sequence[Goal], rows: Rows, columns: Rows, destinations: Ints) -> None:
    model = state.model
    sources = model.assignment[rows, columns]
    model.assignment[rows, columns] = destinations
    for goal in goals:
        weights = goal.weights[rows] if not goal.of_leaders else np.where(columns == 0, goal.weights[rows], 0.0)
        _shift(state.loads[goal.name], sources, destinations, weights)


def _apply_leaders(state: _State, goals: Sequence[Goal], rows: Rows, columns: Rows) -> None:
    assignment = state.model.assignment
    sources, destinations = assignment[rows, 0], assignment[rows, columns]
    assignment[rows, 0], assignment[rows, columns] = destinations, sources
    for goal in goals:
        if goal.of_leaders:
            _shift(state.loads[goal.name], sources, destinations, goal.weights[rows])


def _shift(loads: Floats, sources: Ints, destinations: Ints, weights: Floats) -> None:
    loads -= np.bincount(sources, weights=weights, minlength=len(loads))
    loads += np.bincount(destinations, weights=weights, minlength=len(loads))
