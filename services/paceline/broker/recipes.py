"""Small ZooKeeper flows of a broker, in addition to those in `coordination`."""

from collections.abc import Sequence
from typing import Final

from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow, Zk
from paceline.coordination.interface import Check, Create, GetData, Multi, ZkCode
from paceline.coordination.recipes import expect
from paceline.model.identifiers import NO_EPOCH, TopicPartition

READS_AT_ONCE: Final = 500
"""State nodes per round trip, so that their checks fit into a request."""


def read_controller_epoch() -> Flow[int | None]:
    """Return the current value of ``/controller_epoch``, None when it cannot be read.

    A read may reach a ZooKeeper server that lags, and an old value would let a deposed controller send requests. The
    check is a write to ZooKeeper: it fails unless the version read is the current version.
    """
    (read,) = yield Zk([GetData(znodes.CONTROLLER_EPOCH)])
    if not read.ok:
        return None
    (checked,) = yield Zk([Multi((Check(znodes.CONTROLLER_EPOCH, read.stat.version),))])
    if not checked.ok:
        return None
    return znodes.decode_controller_epoch(znodes.CONTROLLER_EPOCH, read.data)


def read_leader_epochs(topic_partitions: Sequence[TopicPartition]) -> Flow[dict[TopicPartition, int] | None]:
    """Return the current leader epoch of each state node, None when they cannot be read.

    A partition without a readable state node has `NO_EPOCH`. As in `read_controller_epoch` a check ensures that the
    server does not lag.
    """
    epochs: dict[TopicPartition, int] = {}
    for begin in range(0, len(topic_partitions), READS_AT_ONCE):
        chunk = topic_partitions[begin : begin + READS_AT_ONCE]
        paths = [znodes.partition_state_path(topic_partition) for topic_partition in chunk]
        read = yield Zk([GetData(path) for path in paths])
        if any(not node.ok and node.code is not ZkCode.NO_NODE for node in read):
            return None
        checks = tuple(Check(path, node.stat.version) for path, node in zip(paths, read, strict=True) if node.stat)
        if checks:
            (checked,) = yield Zk([Multi(checks)])
            if not checked.ok:
                return None
        for topic_partition, path, node in zip(chunk, paths, read, strict=True):
            try:
                epochs[topic_partition] = (
                    znodes.decode_partition_state(path, node.data, node.stat.version).leader_and_isr.leader_epoch
                    if node.stat
                    else NO_EPOCH
                )
            except MalformedZnodeError:
                epochs[topic_partition] = NO_EPOCH
    return epochs


def notify_log_dir_failure(broker_id: int) -> Flow[None]:
    """Notify the controller that a log directory of this broker has failed (KIP-112)."""
    path = znodes.LOG_DIR_EVENT_PREFIX
    (created,) = yield Zk([Create(path, znodes.encode_log_dir_event(broker_id), sequential=True)])
    expect(created, path)
