"""Plan which partitions change leader when a broker is drained or undrained. Pure.

A drained broker becomes the last replica in every list it heads, so that it is no longer the preferred leader and the
periodic rebalance does not move leaders back; no record is copied. The in-sync replica that is preferred leader least
often replaces it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from paceline.cli.connection import partitions_of
from paceline.model.errors import ElectionNotNeededError

if TYPE_CHECKING:
    from paceline_client import ElectionResult, TopicDescription

Partition = tuple[str, int]


@dataclass(slots=True)
class Drain:
    """Changes that drain a broker, the state before, and the partitions that cannot change."""

    order: dict[Partition, tuple[int, ...]] = field(default_factory=dict)
    """New replica order."""
    before: dict[Partition, tuple[int, ...]] = field(default_factory=dict)
    """Old replica order of the same partitions."""
    elect: list[Partition] = field(default_factory=list)
    """Partitions whose leadership can move to another replica."""
    stuck: dict[Partition, str] = field(default_factory=dict)
    """Partitions that the broker leads and no other replica can lead now, with the reason."""
    single: list[Partition] = field(default_factory=list)
    """Partitions that have only this replica; only a reassignment can move them."""


def refuse_unknown_broker(broker_id: int, live: Collection[int], topics: Sequence["TopicDescription"]) -> None:
    """Check that a broker is live or has replicas.

    Raises:
        ValueError: the broker is unknown; its id is probably mistyped.
    """
    assigned = (broker_id in partition.replicas for topic in topics for partition in topic.partitions)
    if broker_id not in live and not any(assigned):
        raise ValueError(f"there is no broker {broker_id}; live brokers: {', '.join(map(str, sorted(live))) or 'none'}")


def plan_drain(topics: Sequence["TopicDescription"], broker_id: int, moving: Collection[tuple[str, int]]) -> Drain:
    """Return the changes that move leadership off ``broker_id``; partitions of ``moving`` are skipped."""
    partitions = partitions_of(topics)
    preferred = Counter(partition.replicas[0] for partition in partitions.values() if partition.replicas)
    drain = Drain()
    for where, partition in partitions.items():
        leads = partition.leader == broker_id
        heads = partition.replicas[:1] == (broker_id,)
        if not leads and not heads:
            continue
        if partition.replicas == (broker_id,):
            drain.single.append(where)
            continue
        able = [
            replica
            for replica in partition.replicas
            if replica != broker_id and replica in partition.isr and replica not in partition.offline_replicas
        ]
        if where in moving or not able:
            if leads:
                drain.stuck[where] = "it is being reassigned" if where in moving else "no other replica is in sync"
            continue
        if heads or partition.replicas[0] not in able:
            first = min(able, key=lambda replica: (preferred[replica], partition.replicas.index(replica)))
            others = [replica for replica in partition.replicas if replica not in (first, broker_id)]
            drain.order[where] = (first, *others, broker_id)
            drain.before[where] = partition.replicas
            preferred[first] += 1
            preferred[partition.replicas[0]] -= 1
        if leads:
            drain.elect.append(where)
    return drain


@dataclass(slots=True)
class Undrain:
    """Changes that move leadership back to a broker."""

    order: dict[Partition, tuple[int, ...]] = field(default_factory=dict)
    """New replica order, with the broker first."""
    elect: list[Partition] = field(default_factory=list)
    """Partitions that the broker should lead and does not lead yet."""
    stuck: dict[Partition, str] = field(default_factory=dict)
    """Partitions that it should lead and cannot lead now, with the reason."""


def failed_elections(results: Iterable["ElectionResult"]) -> dict[Partition, str]:
    """Return the partitions whose preferred leader was not elected, with the reason."""
    return {
        result.topic_partition: str(result.error)
        for result in results
        if result.error is not None and result.leader is None and not isinstance(result.error, ElectionNotNeededError)
    }


def plan_undrain(
    topics: Sequence["TopicDescription"],
    broker_id: int,
    moving: Collection[tuple[str, int]],
    before: Mapping[Partition, tuple[int, ...]] | None = None,
) -> Undrain:
    """Return the changes that move leadership back to ``broker_id``; partitions of ``moving`` are skipped.

    With ``before``, the replica order saved by a drain, exactly that order is restored. Without it, the broker gets its
    share: a partition with n replicas counts as 1/n of a leadership. Partitions are taken first from the brokers that
    are preferred leader most often.
    """
    held = {where: one for where, one in partitions_of(topics).items() if broker_id in one.replicas}
    undrain = Undrain()
    wanted = (
        _fair_share(topics, broker_id, moving)
        if before is None
        else {where: order for where, order in before.items() if order[:1] == (broker_id,)}
    )
    for where, order in wanted.items():
        known = held.get(where)
        if known is None or set(known.replicas) != set(order):
            undrain.stuck[where] = "its replicas have changed"
        elif where in moving:
            undrain.stuck[where] = "it is being reassigned"
        elif known.replicas != order:
            undrain.order[where] = order
    for where, partition in held.items():
        first = undrain.order.get(where, partition.replicas)[0]
        if first != broker_id or partition.leader == broker_id or where in undrain.stuck or where in moving:
            continue
        if broker_id in partition.isr and broker_id not in partition.offline_replicas:
            undrain.elect.append(where)
        else:
            undrain.stuck[where] = f"broker {broker_id} is not in sync yet"
    return undrain


def _fair_share(
    topics: Sequence["TopicDescription"], broker_id: int, moving: Collection[tuple[str, int]]
) -> dict[Partition, tuple[int, ...]]:
    partitions = {where: one.replicas for where, one in partitions_of(topics).items() if one.replicas}
    preferred = Counter(replicas[0] for replicas in partitions.values())
    # Use exact fractions: a floating-point sum of thirds may be slightly below the whole number.
    held = Counter(len(replicas) for replicas in partitions.values() if broker_id in replicas)
    share = int(sum(Fraction(count, replicas) for replicas, count in held.items()))
    free = {
        where: replicas for where, replicas in partitions.items() if broker_id in replicas[1:] and where not in moving
    }
    order: dict[Partition, tuple[int, ...]] = {}
    while preferred[broker_id] < share and free:
        where = max(sorted(free), key=lambda one: preferred[free[one][0]])
        replicas = free.pop(where)
        order[where] = (broker_id, *(replica for replica in replicas if replica != broker_id))
        preferred[broker_id] += 1
        preferred[replicas[0]] -= 1
    return order
