"""Logs of replicas that were removed while nobody could tell their broker.

A controller that dies after it has written the end of a reassignment, and before StopReplica has reached the broker
that loses its replica, leaves a log that no later request names. The first picture of the cluster that a new controller
gives, or that a broker gets after it has registered, shows it: a partition of this very topic id, assigned to others.

Where the topic has been deleted since, nothing shows its log, until a new topic of that name is to be hosted here.

A log that the picture does not name stays where it is: a topic whose node cannot be read, or a ZooKeeper that has lost
everything, is no proof. What is found is renamed, reported and kept; nothing here deletes.
Source: docs/decisions/0011-damaged-and-stray-logs.md.
"""

import logging
from typing import TYPE_CHECKING, Final

from paceline.log.directory_names import STRAY
from paceline.model.control import (
    ControllerStamp,
    LeaderAndIsrPartition,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from paceline.model.errors import KafkaStorageError
from paceline.model.identifiers import LEADER_DURING_DELETE, TopicPartition
from paceline.model.state_change import StateChangeKind

if TYPE_CHECKING:
    from paceline.broker.partition.replica_manager import ReplicaManager

LOG: Final = logging.getLogger(__name__)


def set_strays_aside(manager: "ReplicaManager", request: UpdateMetadataRequest) -> None:
    """Set the logs aside that ``request`` shows to be strays.

    A first picture for this very registration shows whom partitions are assigned to; any picture shows that an earlier
    controller's topic is not the one that has its name now.
    """
    _set_replaced_aside(manager, request)
    if not request.is_initial or request.stamp.broker_epoch != manager.broker_epoch:
        return
    for state in request.partitions:
        if _is_stray(manager, state):
            _set_aside(manager, state.topic_partition, f"it is assigned to {list(state.replicas)}")
    manager.fetchers.close_idle()
    manager.deliver_news()


def _set_replaced_aside(manager: "ReplicaManager", request: UpdateMetadataRequest) -> None:
    """Stop what is hosted of a topic that is gone: its leader would write its ISR into the present topic's state."""
    hosted = manager.partitions
    for state in request.partitions:
        partition = hosted.get(state.topic_partition)
        if partition is None or partition.told_by >= request.stamp.controller_epoch:
            continue
        if None not in (partition.topic_id, state.topic_id) and partition.topic_id != state.topic_id:
            _set_aside(manager, state.topic_partition, f"topic id {state.topic_id} is its name's now")
    manager.deliver_news()


def set_namesake_aside(manager: "ReplicaManager", state: LeaderAndIsrPartition, stamp: ControllerStamp) -> None:
    """Set the log of an earlier topic aside that has the name of the topic in ``state``.

    The earlier replica moved away and its topic was deleted while this broker was out of reach; no request will delete
    it. A log stays if this registration was told to host it: the request may be late. It does not stay if it was hosted
    in an earlier registration, of a process that was suspended and has registered again, or if only an earlier
    controller told of it: a later controller that names another topic has found that topic in its place.
    """
    if stamp.broker_epoch != manager.broker_epoch:
        return
    topic_partition = state.topic_partition
    log = manager.logs.get(topic_partition)
    hosted = manager.partitions.get(topic_partition)
    if log is None or log.directory.is_offline or manager.broker_id not in state.replicas:
        return
    told = (-1, -1) if hosted is None else (hosted.registration, hosted.told_by)
    if told[0] >= manager.broker_epoch and told[1] >= stamp.controller_epoch:
        return
    if None not in (log.topic_id, state.topic_id) and log.topic_id != state.topic_id:
        _set_aside(manager, topic_partition, f"topic id {state.topic_id} is its name's now, not {log.topic_id}")
    elif state.is_new and topic_partition in manager.logs.without_owner and log.topic_id is None:
        _set_aside(manager, topic_partition, "the replica is new, and its topic id was lost")


def _is_stray(manager: "ReplicaManager", state: UpdateMetadataPartition) -> bool:
    me = manager.broker_id
    if state.leader in (me, LEADER_DURING_DELETE) or me in state.replicas or me in state.isr:
        return False
    log = manager.logs.get(state.topic_partition)
    if log is None or log.directory.is_offline:
        return False
    if log.topic_id != state.topic_id and (log.topic_id is not None or log.log_end_offset > 0):
        # Another topic of that name, or nobody knows; an empty log without an id belongs to anybody.
        return False
    hosted = manager.partitions.get(state.topic_partition)
    if hosted is not None:
        # A request that was overtaken by the replica's return speaks of an earlier epoch.
        return state.leader_epoch > hosted.leader_epoch
    return log.latest_epoch is None or log.latest_epoch <= state.leader_epoch


def _set_aside(manager: "ReplicaManager", topic_partition: TopicPartition, reason: str) -> None:
    manager.fetchers.stop((topic_partition,))
    partition = manager.drop(topic_partition)
    try:
        path = _take_aside(manager, topic_partition, reason)
    finally:
        manager.damaged_logs.forget(topic_partition)
        if partition is not None:
            partition.retire()
    if path is not None and partition is not None:
        manager.emit(StateChangeKind.LOG_SET_ASIDE, partition, cause=f"stray, kept in {path}")


def _take_aside(manager: "ReplicaManager", topic_partition: TopicPartition, reason: str) -> str | None:
    """Rename the log and return where it is now; None when storage failed."""
    try:
        path = manager.logs.set_log_aside(topic_partition, STRAY)
    except KafkaStorageError:
        manager.storage_failed(topic_partition)
        return None
    LOG.warning("the stray log of %s is kept in %s: %s", topic_partition, path, reason)
    return path
