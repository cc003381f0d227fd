"""Measure the load of partitions, for `paceline reassign plan --by-load`: sizes, and rates from two readings."""

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from paceline.model.errors import BrokerNotAvailableError
from paceline.planning.goals import Partition, PartitionLoad

if TYPE_CHECKING:
    from paceline_client import Admin


class Reading(NamedTuple):
    """The byte counters of a partition, read from its leader at one time."""

    leader: int
    bytes_in: int
    bytes_out: int


def measure(
    admin: "Admin", partitions: Collection[Partition], seconds: float
) -> tuple[dict[Partition, PartitionLoad], int]:
    """Return the load of each partition, and the number of partitions without a rate, which count as idle.

    Args:
        admin: a client.
        partitions: the partitions.
        seconds: time between the two readings of the counters; 0 measures sizes alone.

    Raises:
        BrokerNotAvailableError: a broker did not report the sizes of its logs.
    """
    topics = sorted({topic for topic, _ in partitions})
    started = time.monotonic()
    first: dict[Partition, Reading] = {}
    second: dict[Partition, Reading] = {}
    if seconds:
        first = _readings(admin, topics)
        time.sleep(seconds)
        second = _readings(admin, topics)
    elapsed_s = time.monotonic() - started
    sizes = _sizes(admin)
    loads = {
        one: PartitionLoad(sizes.get(one, 0), *rates(first.get(one), second.get(one), elapsed_s)) for one in partitions
    }
    return loads, sum(one not in first or one not in second for one in partitions) if seconds else 0


def rates(first: Reading | None, second: Reading | None, elapsed_s: float) -> tuple[float, float]:
    """Return bytes in and out per second between two readings.

    A counter that decreased was reset in between, so the rate counts from 0. Readings of different leaders yield 0.
    """
    if first is None or second is None or elapsed_s <= 0 or first.leader != second.leader:
        return 0.0, 0.0
    if second.bytes_in < first.bytes_in or second.bytes_out < first.bytes_out:
        first = Reading(second.leader, 0, 0)
    return (second.bytes_in - first.bytes_in) / elapsed_s, (second.bytes_out - first.bytes_out) / elapsed_s


def _readings(admin: "Admin", topics: list[str]) -> dict[Partition, Reading]:
    found = admin.describe_leaders(admin.describe_topics(topics))
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
