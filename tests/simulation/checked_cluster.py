"""A cluster with all checks, and small histories of states and logs that the checks read."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import WatchType
from paceline.model.assignment import ReplicaAssignment
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.observed_log import Mirror, ObservedLog
from tests.simulation.partition_record import PartitionRecord
from tests.simulation.profile import draw_profile
from tests.simulation.world import World
from tests.support.zookeeper.client import AppliedWrite
from tests.support.zookeeper.data_tree import Change

TP = TopicPartition("t", 0)


TOPIC_ID = "id-of-t-22-characters-"
STATE = znodes.partition_state_path(TP)


@pytest.fixture
def cluster() -> SimulatedCluster:
    world = World(1)
    return SimulatedCluster(world, draw_profile(world))


def violated(cluster: SimulatedCluster) -> tuple[str, ...]:
    return cluster.checks.verdicts.violated


# ZooKeeper


def write(
    cluster: SimulatedCluster,
    path: str,
    data: bytes | None,
    version: int | None,
    zxid: int,
    session: int = 1,
    kind: WatchType | None = None,
) -> None:
    old = None if version in (0, None) else version - 1
    type_ = kind or (WatchType.CREATED if version == 0 else WatchType.DATA_CHANGED)
    cluster.checks.zookeeper_written(AppliedWrite(zxid, session, Change(type_, path, old, version, None, data)))


def elect(cluster: SimulatedCluster, epoch: int, zxid: int, session: int = 1) -> None:
    write(cluster, znodes.CONTROLLER, b"{}", 0, zxid, session)
    write(cluster, znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch), epoch, zxid, session)


def state(cluster: SimulatedCluster, leader: int, epoch: int, isr: tuple[int, ...], version: int, **more: int) -> None:
    new = LeaderAndIsr(leader, epoch, isr, version, more.get("controller_epoch", 1))
    write(cluster, STATE, znodes.encode_partition_state(new), version, 100 + version, more.get("session", 1))


def prepared(cluster: SimulatedCluster) -> PartitionRecord:
    write(cluster, znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(0), 0, 1)
    elect(cluster, 1, 2)
    assignment = znodes.TopicAssignment({0: ReplicaAssignment((1, 2, 3))}, TOPIC_ID)
    write(cluster, znodes.topic_path("t"), znodes.encode_topic_assignment(assignment), 0, 3)
    state(cluster, 1, 0, (1, 2, 3), 0)
    record = cluster.checks.records.current(TP)
    assert record is not None
    assert violated(cluster) == ()
    return record


# Replicas


def broker(broker_id: int, hosted: Any = None, broker_epoch: int = 0) -> Any:
    """A broker process, with the attributes that the checks of replicas read."""
    partitions = SimpleNamespace(online={} if hosted is None else {TP: hosted}, in_contact=lambda: True)
    manager = SimpleNamespace(hosted=partitions)
    contact = SimpleNamespace(proof=f"proof of {broker_id}")
    node = SimpleNamespace(replica_manager=manager, broker_epoch=broker_epoch, _contact=contact)
    scheduler = SimpleNamespace(resumed_us=0)
    name = f"broker-{broker_id}"
    return SimpleNamespace(broker_id=broker_id, name=name, node=node, logs={}, session_us=0, scheduler=scheduler)


def log(*batches: tuple[int, int, int, int], high_watermark: int = 0) -> ObservedLog:
    """A log with the attributes that the checks read: batches of (base, end, epoch, checksum)."""
    mirror = Mirror()
    for one in batches:
        mirror.add(*one)
    entries: dict[int, int] = {}
    for base, _, epoch, _ in batches:
        entries.setdefault(epoch, base)
    return cast(
        ObservedLog,
        SimpleNamespace(
            mirror=mirror,
            topic_id=TOPIC_ID,
            topic_partition=TP,
            log_start_offset=0,
            log_end_offset=mirror.end,
            high_watermark=high_watermark,
            path="/data/t-0",
            directory=SimpleNamespace(is_offline=False),
            config=SimpleNamespace(min_insync_replicas=1),
            epochs=SimpleNamespace(entries=[SimpleNamespace(epoch=e, start_offset=s) for e, s in entries.items()]),
        ),
    )
