"""`paceline broker evacuate` and `broker remove`: move every replica off a broker, then mark it removed.

Repeating the command continues: it looks only at what is left. Which moves are started is decided by pure functions.
"""

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import click

from paceline.cli.connection import partitions_of
from paceline.cli.reassign_plan import Partition, differences, plan_moves
from paceline.cli.reassign_requests import alter_moves, list_moves
from paceline.cli.reassign_throttle import lift_throttle, plan_throttle, set_throttle
from paceline.model.broker_dynamic_config import REMOVAL, REMOVED, REMOVING
from paceline.operations.reassign_progress import Progress, measure
from paceline.planning.goals import Placement

if TYPE_CHECKING:
    from paceline_client import Admin, Reassignment, TopicDescription

STUCK_S: Final = 20.0
"""Time without any progress, while moves are stuck, after which the command gives up."""
_AGAIN_S: Final = 1.0


class StuckEvacuationError(Exception):
    """Some partitions cannot be moved; the message has one line for each reason."""


def place_elsewhere(
    topics: "Iterable[TopicDescription]",
    broker_id: int,
    racks: Mapping[int, str],
    plan: Placement | None = None,
) -> dict[Partition, tuple[int, ...]]:
    """Return new replicas for the partitions of a broker that do not leave it yet; no other moves.

    A partition goes where ``plan`` puts it, if those brokers are alive, as many as before, and others than this one.
    The rest is placed evenly by count. A running move to a broker that has died gets another target.

    Args:
        topics: all topics, described by the controller, since the replicas of the others count, too.
        broker_id: the broker to empty.
        racks: live brokers with their rack.
        plan: replicas by partition, for example by measured load.

    Raises:
        ValueError: too few brokers are left for the replicas of a partition.
    """
    current: dict[Partition, tuple[int, ...]] = {}
    for where, one in partitions_of(topics).items():
        target = one.assignment.target
        current[where] = target if set(target) <= racks.keys() else one.assignment.origin
    others = {broker: rack for broker, rack in racks.items() if broker != broker_id}
    held = {where for where, replicas in current.items() if broker_id in replicas}
    most, where = max(((len(current[one]), one) for one in held), default=(0, ("", 0)))
    if most > len(others):
        raise ValueError(
            f"{where[0]}/{where[1]} has {most} replicas, but only {len(others)} live brokers are left without broker "
            f"{broker_id}: start another broker, or lower the number of replicas with `paceline reassign plan --topic "
            f"{where[0]} --replication-factor {max(len(others), 1)}`"
        )
    # A partition with more replicas than brokers, elsewhere, must not stop this plan.
    fitting = {where: replicas for where, replicas in current.items() if len(replicas) <= len(others)}
    planned = differences(fitting, plan_moves(fitting, others)) if others else {}
    chosen = {
        where: tuple(target)
        for where, target in (plan or {}).items()
        if where in held and set(target) <= others.keys() and len(target) == len(current[where])
    }
    return {where: target for where, target in planned.items() if where in held} | chosen


def mark(admin: "Admin", broker_id: int, state: str | None) -> None:
    """Set or delete the mark of a removal; the controller refuses the last broker, and two removals at once."""
    admin.alter_broker_configs({broker_id: {REMOVAL: state}})


def cancel(admin: "Admin", broker_id: int) -> int:
    """Delete the mark and cancel the moves off the broker; return the number of cancelled moves."""
    mark(admin, broker_id, None)
    leaving = [move.topic_partition for move in list_moves(admin) if broker_id in move.removing]
    results = alter_moves(admin, dict.fromkeys(leaving)) if leaving else []
    return sum(result.error is None for result in results)


def remove(
    admin: "Admin", broker_id: int, bytes_per_second: int | None, timeout_s: float | None, plan: Placement | None = None
) -> None:
    """Mark a broker as being removed, empty it, and mark it as removed; the broker then unregisters.

    Raises:
        StuckEvacuationError, InvalidConfigError, ValueError: see `evacuate` and `mark`; the mark `removing` stays.
    """
    place_elsewhere(admin.describe_topics(from_controller=True), broker_id, racks_of(admin), plan)
    mark(admin, broker_id, REMOVING)
    evacuate(admin, broker_id, bytes_per_second, timeout_s, plan)
    mark(admin, broker_id, REMOVED)


def evacuate(
    admin: "Admin", broker_id: int, bytes_per_second: int | None, timeout_s: float | None, plan: Placement | None = None
) -> None:
    """Move every replica off a broker and wait until none is left.

    Args:
        admin: a client.
        broker_id: the broker; it may be dead if all its partitions have other replicas in sync.
        bytes_per_second: limit of the copies per broker and direction; None sets no limit.
        timeout_s: longest wait; None waits as long as there is progress.
        plan: see `place_elsewhere`.

    Raises:
        StuckEvacuationError: the wait is over, or nothing has moved for `STUCK_S` and the moves are stuck.
        ValueError: too few brokers are left.
    """
    began = moved_s = time.monotonic()
    progress, shown = Progress(), ""
    before: tuple[int, int | None] | None = None
    moved_topics: set[str] = set()
    while True:
        topics = admin.describe_topics(from_controller=True)
        held = {where: one.replicas for where, one in partitions_of(topics).items() if broker_id in one.replicas}
        if not held:
            break
        running = [move for move in list_moves(admin) if tuple(move.topic_partition) in held]
        started = place_elsewhere(topics, broker_id, racks_of(admin), plan)
        moved_topics.update(topic for topic, _ in started)
        if started and bytes_per_second is not None:
            set_throttle(admin, plan_throttle(held, started), bytes_per_second)
        refused = {
            (result.topic_partition[0], result.topic_partition[1]): str(result.error)
            for result in (alter_moves(admin, started) if started else [])
            if result.error is not None
        }
        speeds = measure(admin, running, progress, time.monotonic())
        left = [speed.bytes_left for speed in speeds.values()]
        size = None if None in left else sum(one or 0 for one in left)
        now = time.monotonic()
        if (len(held), size) != before:
            before, moved_s = (len(held), size), now
        text = f"{len(held)} partitions are left on broker {broker_id}"
        text += "" if not size else f", {size:,} bytes to copy"
        if text != shown:
            click.echo(text, err=True)
            shown = text
        reasons = _reasons(running, refused)
        is_over = timeout_s is not None and now - began > timeout_s
        if is_over or (reasons and now - moved_s > STUCK_S):
            raise StuckEvacuationError("\n".join(reasons or [text]))
        time.sleep(_AGAIN_S)
    if bytes_per_second is not None and not list_moves(admin):
        lift_throttle(admin, sorted(moved_topics), [broker_id, *racks_of(admin)])


def racks_of(admin: "Admin") -> dict[int, str]:
    """Return the live brokers with their racks."""
    return {broker.broker_id: broker.rack for broker in admin.describe_cluster().brokers}


def _reasons(running: "Iterable[Reassignment]", refused: Mapping[Partition, str]) -> list[str]:
    found = [f"{topic}/{index}: {reason}" for (topic, index), reason in sorted(refused.items())]
    for move in running:
        if move.is_stuck:
            topic, index = move.topic_partition
            found.append(f"{topic}/{index}: {'; '.join(each.message for each in move.waiting_for)}")
    return found
