"""A cluster as arrays: replicas, the load of each partition, and the brokers that may hold replicas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from paceline.model.errors import InvalidConfigError

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NO_REPLICA: Final = -1
"""Fills the rows of partitions that have fewer replicas than others."""

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """Measured load of one partition."""

    size_bytes: float = 0.0
    bytes_in_per_s: float = 0.0
    """Bytes per second written by producers."""
    bytes_out_per_s: float = 0.0
    """Bytes per second read by consumers."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker that may hold replicas."""

    broker_id: int
    rack: str = ""
    """Empty: the broker counts as a rack of its own."""
    capacity: float = 1.0
    """Weight of the broker's share of the load, relative to other brokers."""
    usable: bool = True
    """False: the plan moves all replicas off the broker."""


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """Arrays over P partitions and B brokers; brokers are numbered by their position."""

    broker_ids: Ints
    racks: Ints
    """Rack number per broker."""
    capacity: Floats
    usable: Bools
    assignment: Ints
    """P rows of broker numbers, the preferred leader first, `NO_REPLICA` at the end of shorter rows."""
    size_bytes: Floats
    bytes_in: Floats
    bytes_out: Floats

    @property
    def partitions(self) -> int:
        return len(self.assignment)

    @property
    def brokers(self) -> int:
        return len(self.broker_ids)

    @property
    def replication_factor(self) -> Ints:
        """Replicas per partition."""
        return np.asarray((self.assignment >= 0).sum(axis=1), dtype=np.int32)

    def with_assignment(self, assignment: Ints) -> "ClusterModel":
        """Return the same cluster with other replicas."""
        return replace(self, assignment=assignment)


def build_model(
    placement: Mapping[Partition, Sequence[int]],
    loads: Mapping[Partition, PartitionLoad],
    brokers: Sequence[BrokerInfo],
) -> tuple[ClusterModel, list[Partition]]:
    """Return the arrays, and the partition of each row.

    A broker that holds replicas but is not in ``brokers``, such as a dead broker, is added as a broker to empty.

    Raises:
        InvalidConfigError: there is no partition, or a partition has more replicas than there are usable brokers.
    """
    names = sorted(placement)
    if not names:
        raise InvalidConfigError("there are no partitions to plan for")
    known = {broker.broker_id: broker for broker in brokers}
    held = {broker_id for replicas in placement.values() for broker_id in replicas}
    everyone = sorted([*known.values(), *(BrokerInfo(b, usable=False) for b in held - set(known))], key=_id_of)
    number_of = {broker.broker_id: number for number, broker in enumerate(everyone)}
    width = max(len(placement[name]) for name in names)
    usable = sum(broker.usable for broker in everyone)
    if usable < width:
        raise InvalidConfigError(f"{width} replicas do not fit on {usable} usable brokers")
    assignment = np.full((len(names), width), NO_REPLICA, dtype=np.int32)
    for row, name in enumerate(names):
        replicas = placement[name]
        assignment[row, : len(replicas)] = [number_of[broker_id] for broker_id in replicas]
    rack_names = [broker.rack or f"\0{broker.broker_id}" for broker in everyone]
    rack_number = {rack: number for number, rack in enumerate(sorted(set(rack_names)))}
    none = PartitionLoad()
    load = [loads.get(name, none) for name in names]
    model = ClusterModel(
        broker_ids=np.array([broker.broker_id for broker in everyone], dtype=np.int32),
        racks=np.array([rack_number[rack] for rack in rack_names], dtype=np.int32),
        capacity=np.array([broker.capacity for broker in everyone]),
        usable=np.array([broker.usable for broker in everyone]),
        assignment=assignment,
        size_bytes=np.array([each.size_bytes for each in load]),
        bytes_in=np.array([each.bytes_in_per_s for each in load]),
        bytes_out=np.array([each.bytes_out_per_s for each in load]),
    )
    return model, names


def _id_of(broker: BrokerInfo) -> int:
    return broker.broker_id


def changed_rows(before: ClusterModel, after: ClusterModel) -> NDArray[np.int64]:
    """Return the rows whose replicas or replica order differ."""
    return np.flatnonzero((before.assignment != after.assignment).any(axis=1))


def copied_replicas(before: ClusterModel, after: ClusterModel) -> NDArray[np.int64]:
    """Return, for each partition, the number of brokers that gain a replica."""
    new = after.assignment[:, :, None] != before.assignment[:, None, :]
    return np.asarray((new.all(axis=2) & (after.assignment >= 0)).sum(axis=1))
