"""Leadership off a broker that stays up: which partitions change, and to whom. Pure.

The broker becomes the last replica in every list it heads, so that it is no longer preferred and the periodic rebalance
does not bring leaders back; no record is copied. Whoever is in sync and is preferred least often takes its place.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline_client import TopicDescription

Partition = tuple[str, int]


@dataclass(slots=True)
class Drain:
    """What to change, what it was, and what has to stay."""

    order: dict[Partition, tuple[int, ...]] = field(default_factory=dict)
    """New order of replicas."""
    before: dict[Partition, tuple[int, ...]] = field(default_factory=dict)
    """Old order of the same partitions."""
    elect: list[Partition] = field(default_factory=list)
    """Partitions that the broker leads and need not lead."""
    stuck: dict[Partition, str] = field(default_factory=dict)
    """Partitions it leads that nobody else can lead now, with the reason."""
    single: list[Partition] = field(default_factory=list)
    """Partitions it leads that have no other replica: only a move can help them."""


def plan_drain(topics: Sequence["TopicDescription"], broker_id: int, moving: Collection[tuple[str, int]]) -> Drain:
    """Return how to take leadership off ``broker_id``; partitions of ``moving`` are left alone."""
    preferred = Counter(
        partition.replicas[0] for topic in topics for partition in topic.partitions if partition.replicas
    )
    drain = Drain()
    for topic in topics:
        for partition in topic.partitions:
            where = (topic.name, partition.partition)
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
                    drain.stuck[where] = "it is being moved" if where in moving else "no other replica is in sync"
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
