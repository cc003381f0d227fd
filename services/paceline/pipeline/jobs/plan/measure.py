"""Measure a cluster for a plan: present or target replicas, their sizes, and rates from two readings."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.model.errors import BrokerNotAvailableError, UnknownTopicOrPartitionError
from paceline.planning.goals import Partition, PartitionLoad

if TYPE_CHECKING:
    from paceline_client import Admin


@dataclass(frozen=True, slots=True)
class Reading:
    """The byte counters of a partition, read from its leader at one time."""

    leader: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements from which a plan is computed."""

    placement: Mapping[Partition, tuple[int, ...]]
    loads: Mapping[Partition, PartitionLoad]
    racks: Mapping[int, str]
    """Live brokers with their rack, empty for a broker without a rack."""
    without_rate: int
    """Partitions whose leader did not answer twice; their rate counts as 0."""


def measure(admin: "Admin", topics: Collection[str], seconds: float) -> Measured:
    """Read the cluster twice, ``seconds`` apart.

    Args:
        admin: a client.
        topics: names; empty means all.
        seconds: time between the readings; 0 omits the rates.

    Raises:
        UnknownTopicOrPartitionError: a named topic does not exist.
        BrokerNotAvailableError: a broker did not report the sizes of its logs.
    """
    names = sorted(topics) if topics else admin.list_topics()
    described = admin.describe_topics(names)
    missing = set(names) - {topic.name for topic in described if topic.partitions}
    if missing:
        raise UnknownTopicOrPartitionError(f"topic {', '.join(sorted(missing))} does not exist")
    placement = {
        (topic.name, partition.partition): tuple(partition.replicas)
        for topic in described
        for partition in topic.partitions
    }
    for move in admin.list_partition_reassignments():
        moving = (move.topic_partition.topic, move.topic_partition.partition)
        if moving in placement:
            placement[moving] = tuple(move.target)
    started = time.monotonic()
    first = _readings(admin, described) if seconds > 0 else {}
    if seconds > 0:
        time.sleep(seconds)
    second = _readings(admin, described) if seconds > 0 else {}
    elapsed_s = time.monotonic() - started
    sizes = _sizes(admin)
    loads = {}
    for partition in placement:
        rate_in, rate_out = rates(first.get(partition), second.get(partition), elapsed_s)
        loads[partition] = PartitionLoad(sizes.get(partition, 0), rate_in, rate_out)
    racks = {broker.broker_id: broker.rack or "" for broker in admin.describe_cluster().brokers}
    without = sum(partition not in first or partition not in second for partition in placement) if seconds > 0 else 0
    return Measured(placement, loads, racks, without)


def rates(first: Reading | None, second: Reading | None, elapsed_s: float) -> tuple[float, float]:
    """Return bytes in and out per second between two readings.

    A counter that decreased was reset in between, so the rate counts from 0. Readings of different leaders yield 0.
    """
    if first is None or second is None or elapsed_s <= 0:
        return 0.0, 0.0
    if first.leader != second.leader:
        return 0.0, 0.0
    if second.bytes_in < first.bytes_in or second.bytes_out < first.bytes_out:
        first = Reading(second.leader, 0, 0)
    return (second.bytes_in - first.bytes_in) / elapsed_s, (second.bytes_out - first.bytes_out) / elapsed_s


def _readings(admin: "Admin", described: Sequence[object]) -> dict[Partition, Reading]:
    found = admin.describe_leaders(described)  # type: ignore[arg-type]
    return {(tp.topic, tp.partition): Reading(each.leader, each.bytes_in, each.bytes_out) for tp, each in found.items()}


def _sizes(admin: "Admin") -> dict[Partition, int]:
    """Return the size of each partition's largest replica, which is the size of a new copy."""
    sizes: dict[Partition, int] = {}
    for broker in admin.describe_log_dirs():
        if broker.error is not None:
            raise BrokerNotAvailableError(
                f"broker {broker.broker_id} did not report the sizes of its logs: {broker.error}"
            )
        for log_dir in broker.log_dirs:
            for replica in log_dir.replicas:
                partition = (replica.topic_partition.topic, replica.topic_partition.partition)
                sizes[partition] = max(sizes.get(partition, 0), replica.size_bytes)
    return sizes
