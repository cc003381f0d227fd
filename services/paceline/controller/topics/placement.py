"""Place the replicas of a new topic: round robin, or alternating over racks when every broker has a rack.

Source: docs/protocol/controller.md#replica-placement; Kafka 2.8 AdminUtils.assignReplicasToBrokers; KIP-36.
"""

import random
from collections.abc import Mapping, Sequence

from paceline.model.errors import InvalidPartitionsError, InvalidReplicationFactorError

Placement = dict[int, tuple[int, ...]]
"""Assigned replicas by partition index; the first is the preferred leader."""


def place_replicas(
    racks: Mapping[int, str | None],
    partition_count: int,
    replication_factor: int,
    rng: random.Random,
    fixed_start: int | None = None,
    first_partition: int = 0,
) -> Placement:
    """Place ``partition_count`` partitions on the brokers of ``racks`` (broker id to rack).

    Racks count only when every broker has a rack. ``fixed_start`` replaces the random start and the random shift;
    ``first_partition`` is the current number of partitions of the topic.

    Raises:
        InvalidPartitionsError: fewer than one partition.
        InvalidReplicationFactorError: fewer than one replica, or more than brokers.
    """
    if partition_count <= 0:
        raise InvalidPartitionsError(f"the number of partitions must be positive, not {partition_count}")
    if replication_factor <= 0:
        raise InvalidReplicationFactorError(f"the replication factor must be positive, not {replication_factor}")
    if replication_factor > len(racks):
        raise InvalidReplicationFactorError(
            f"replication factor {replication_factor} is larger than the number of available brokers, {len(racks)}"
        )
    known_racks = {broker: rack for broker, rack in racks.items() if rack is not None}
    rack_aware = len(known_racks) == len(racks)
    brokers = rack_alternated_brokers(known_racks) if rack_aware else sorted(racks)
    start = rng.randrange(len(brokers)) if fixed_start is None else fixed_start
    shift = rng.randrange(len(brokers)) if fixed_start is None else fixed_start
    placement: Placement = {}
    for partition in range(first_partition, first_partition + partition_count):
        if partition > 0 and partition % len(brokers) == 0:
            shift += 1
        first = (partition + start) % len(brokers)
        if rack_aware:
            placement[partition] = _spread_over_racks(brokers, known_racks, first, shift, replication_factor)
        else:
            followers = (_follower_index(first, shift, j, len(brokers)) for j in range(replication_factor - 1))
            placement[partition] = (brokers[first], *(brokers[index] for index in followers))
    return placement


def start_index_for_added_partitions(brokers: Sequence[int], leader_of_partition_0: int) -> int:
    """Return the fixed start for added partitions: the index of the first broker id not below partition 0's leader."""
    ordered = sorted(brokers)
    return next((index for index, broker in enumerate(ordered) if broker >= leader_of_partition_0), 0)


def rack_alternated_brokers(racks: Mapping[int, str]) -> list[int]:
    """Return the brokers in an order in which neighbours are in different racks as far as possible."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    queues = [by_rack[rack] for rack in sorted(by_rack)]
    depth = max((len(queue) for queue in queues), default=0)
    return [queue[level] for level in range(depth) for queue in queues if level < len(queue)]


def _follower_index(first: int, shift: int, follower: int, broker_count: int) -> int:
    return (first + 1 + (shift + follower) % (broker_count - 1)) % broker_count


def _spread_over_racks(
    brokers: Sequence[int], racks: Mapping[int, str], first: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    rack_count = len(set(racks.values()))
    replicas = [brokers[first]]
    used_racks = {racks[brokers[first]]}
    probe = 0
    while len(replicas) < replication_factor:
        broker = brokers[_follower_index(first, shift * rack_count, probe, len(brokers))]
        probe += 1
        rack_is_free = racks[broker] not in used_racks or len(used_racks) == rack_count
        if rack_is_free and broker not in replicas:
            replicas.append(broker)
            used_racks.add(racks[broker])
    return tuple(replicas)
