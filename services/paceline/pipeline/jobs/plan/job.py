"""Measure the load, plan, and describe the plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.model.errors import InvalidConfigError
from paceline.model.tls import TlsFiles
from paceline.pipeline.jobs.plan.measure import Measured, measure
from paceline.pipeline.jobs.run import ExitCode, JobListener, JobResult, SilentListener
from paceline.planning.goals import DEFAULT_THRESHOLD, Partition, load_goals
from paceline.planning.planner import Plan, copies, differences, make_plan


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
    tls: TlsFiles | None = None
    """Certificate files; None means the files that the environment names."""


@dataclass(frozen=True, slots=True)
class PlanResult(JobResult):
    """A plan with the moves to make."""

    moves: Mapping[Partition, tuple[int, ...]] = field(default_factory=dict)


def run(config: PlanConfig, listener: JobListener | None = None) -> PlanResult:
    """Plan from the cluster's present load.

    A plan that cannot keep racks apart is a negative result: it has no moves and names the rule.

    Raises:
        InvalidConfigError: the settings are invalid, there is no partition, or there are not enough brokers.
        PacelineError: the cluster could not be measured.
    """
    from paceline_client import Admin

    listener = listener or SilentListener()
    if not 0 < config.threshold < 1 or config.sample_seconds < 0:
        raise InvalidConfigError("threshold must be between 0 and 1, seconds not negative")
    with Admin(",".join(config.bootstrap_servers), tls=config.tls) as admin:
        listener.step("measuring", {"seconds": config.sample_seconds})
        measured = measure(admin, config.topics, config.sample_seconds)
    held = {broker_id for replicas in measured.placement.values() for broker_id in replicas}
    strangers = set(config.empty_brokers) - set(measured.racks) - held
    if strangers:
        raise InvalidConfigError(f"broker {', '.join(map(str, sorted(strangers)))} in --empty does not exist")
    if not measured.placement:
        raise InvalidConfigError("there are no partitions to plan for")
    listener.step("measured", {"partitions": len(measured.placement), "brokers": len(measured.racks)})
    usable = {broker: rack for broker, rack in measured.racks.items() if broker not in config.empty_brokers}
    try:
        plan = make_plan(measured.placement, usable, load_goals(measured.placement, measured.loads, config.threshold))
    except ValueError as error:
        raise InvalidConfigError(str(error)) from None
    return _result(measured, plan)


def _result(measured: Measured, plan: Plan) -> PlanResult:
    moves = differences(measured.placement, plan.placement)
    summary: dict[str, Any] = {
        "partitions": len(measured.placement),
        "changed_partitions": len(moves),
        "copied_replicas": copies(measured.placement, moves),
        "copied_bytes": int(
            sum(
                measured.loads[partition].size_bytes * copies(measured.placement, {partition: replicas})
                for partition, replicas in moves.items()
            )
        ),
    }
    for was, now in zip(plan.before, plan.after, strict=True):
        summary[was.goal] = (
            f"{was.lowest:.2f} to {was.highest:.2f} of the share, {was.outside} brokers outside; "
            f"then {now.lowest:.2f} to {now.highest:.2f}, {now.outside} outside"
        )
    if measured.without_rate:
        summary["without_rate"] = f"{measured.without_rate} partitions have no measured rate and count as idle"
    if plan.crowded:
        summary["broken_rules"] = [f"{plan.crowded} partitions have more replicas in a rack than necessary"]
        return PlanResult(ExitCode.NEGATIVE_VERDICT, summary)
    return PlanResult(ExitCode.OK, summary, moves)
