"""Measure the load, solve, and describe the plan. One solve needs no Spark; several seeds run in parallel in Spark."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from paceline.model.errors import InvalidConfigError
from paceline.model.tls import TlsFiles
from paceline.pipeline.jobs.plan.goals import DEFAULT_THRESHOLD
from paceline.pipeline.jobs.plan.measure import measure
from paceline.pipeline.jobs.plan.model import NO_REPLICA, ClusterModel, Partition, build_model, changed_rows
from paceline.pipeline.jobs.plan.solver import Plan, solve
from paceline.pipeline.jobs.run import ExitCode, JobListener, JobResult, SilentListener


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """Settings of a plan."""

    bootstrap_servers: tuple[str, ...]
    topics: tuple[str, ...] = ()
    """Topic names; empty means all topics."""
    empty_brokers: tuple[int, ...] = ()
    """Brokers to move all replicas off."""
    sample_seconds: float = 10.0
    """Duration of the measurement of bytes in and out; 0 omits both."""
    threshold: float = DEFAULT_THRESHOLD
    """Allowed deviation of a broker from its share."""
    seed: int = 0
    seeds: int = 1
    """Number of seeds to try, from ``seed`` upwards; `best_plan` selects the plan. More than 1 needs Spark."""
    tls: TlsFiles | None = None
    """Certificate files; None means the files that the driver's environment names."""


@dataclass(frozen=True, slots=True)
class PlanResult(JobResult):
    """A plan with the moves to make."""

    moves: Mapping[Partition, tuple[int, ...]] = field(default_factory=dict)


def run(spark: Any, config: PlanConfig, listener: JobListener | None = None) -> PlanResult:
    """Plan from the cluster's present load; ``spark`` may be None for one seed.

    A plan that breaks a hard rule is a negative result: it has no moves and names the rule.

    Raises:
        InvalidConfigError: the settings are invalid, or there are not enough brokers.
        PacelineError: the cluster could not be measured.
    """
    from paceline_client import Admin

    listener = listener or SilentListener()
    if not 0 < config.threshold < 1 or config.seeds < 1 or config.sample_seconds < 0:
        raise InvalidConfigError("threshold must be between 0 and 1, seeds at least 1, seconds not negative")
    with Admin(",".join(config.bootstrap_servers), tls=config.tls) as admin:
        listener.step("measuring", {"seconds": config.sample_seconds})
        measured = measure(admin, config.topics, config.empty_brokers, config.sample_seconds)
    known = {broker.broker_id for broker in measured.brokers}
    held = {broker_id for replicas in measured.placement.values() for broker_id in replicas}
    strangers = set(config.empty_brokers) - known - held
    if strangers:
        raise InvalidConfigError(f"broker {', '.join(map(str, sorted(strangers)))} in --empty does not exist")
    model, names = build_model(measured.placement, measured.loads, measured.brokers)
    listener.step("measured", {"partitions": model.partitions, "brokers": model.brokers})
    plan = best_plan(spark, model, config)
    return _result(model, names, plan, measured.without_rate)


def best_plan(spark: Any, model: ClusterModel, config: PlanConfig) -> Plan:
    """Solve with every seed and return the best plan.

    Plans are compared by the number of broken rules, then of brokers outside their limits, then of copied bytes.
    """
    if config.seeds == 1:
        return solve(model, config.seed, config.threshold)
    task = _Solve(model, config.seed, config.threshold)
    rows = spark.range(0, config.seeds, 1, config.seeds).mapInArrow(task.__call__, "found string").collect()
    # Workers return only figures; solving again with the best seed gives the same plan.
    best = min(tuple(json.loads(row.found)) for row in rows)
    return solve(model, best[-1], config.threshold)


@dataclass(frozen=True, slots=True)
class _Solve:
    model: ClusterModel
    seed: int
    threshold: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                plan = solve(self.model, self.seed + number, self.threshold)
                outside = sum(each.outside for each in plan.after)
                found = [len(plan.broken_rules), outside, plan.moved_bytes, plan.seed]
                yield pa.RecordBatch.from_pydict({"found": [json.dumps(found)]})


def _result(before: ClusterModel, names: list[Partition], plan: Plan, without_rate: int) -> PlanResult:
    summary: dict[str, Any] = {
        "partitions": before.partitions,
        "changed_partitions": plan.changed_partitions,
        "copied_replicas": plan.moved_replicas,
        "copied_bytes": int(plan.moved_bytes),
        "seed": plan.seed,
        "seconds": plan.seconds,
    }
    for was, now in zip(plan.before, plan.after, strict=True):
        summary[was.goal] = (
            f"{was.lowest:.2f} to {was.highest:.2f} of the share, {was.outside} brokers outside; "
            f"then {now.lowest:.2f} to {now.highest:.2f}, {now.outside} outside"
        )
    if without_rate:
        summary["without_rate"] = f"{without_rate} partitions have no measured rate and count as idle"
    if plan.broken_rules:
        summary["broken_rules"] = plan.broken_rules
        return PlanResult(ExitCode.NEGATIVE_VERDICT, summary)
    ids = [*plan.model.broker_ids.tolist(), NO_REPLICA]
    moves = {
        names[row]: tuple(ids[number] for number in plan.model.assignment[row].tolist() if number != NO_REPLICA)
        for row in changed_rows(before, plan.model).tolist()
    }
    return PlanResult(ExitCode.OK, summary, moves)
