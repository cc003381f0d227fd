"""Set aside logs of replicas that were removed while their broker could not be notified.

At the end of a reassignment, the controller writes the new assignment and then sends StopReplica to the broker that
loses its replica. If the controller dies in between, no later StopReplica names that replica, and its log stays. The
broker finds such a stray log with the first full UpdateMetadata of a new controller, or after its own registration: the
request assigns the partition, with the topic id of the log, to other brokers. The same holds for a log in a directory
that was offline and is taken back.

If the topic was deleted in the meantime, the broker finds the log only when it must host a new topic with that name.

A log whose topic is not in the metadata stays: the topic's node may be unreadable, or ZooKeeper may have lost its data.
Stray logs are renamed, reported and kept; this module deletes no log.

Source: docs/protocol/log-format.md#stray-logs; docs/decisions/0011-damaged-and-stray-logs.md.
"""

import logging
from collections.abc import Iterable
from typing import Final

from paceline.broker.replica_manager import ReplicaManager
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

LOG: Final = logging.getLogger(__name__)


def set_strays_aside(manager: ReplicaManager, request: UpdateMetadataRequest) -> None:
    """Set aside the logs that ``request`` shows to be strays.

    A controller's first full metadata after the registration shows partitions that are assigned to other brokers. Any
    metadata of a later controller shows that a topic was re-created with another topic id.
    """
    _set_replaced_aside(manager, request)
    if not request.is_initial or request.stamp.broker_epoch != manager.hosted.contact.broker_epoch:
        return
    _set_unassigned_aside(manager, request.partitions)


def set_returned_strays_aside(manager: ReplicaManager, log_dir: str) -> None:
    """Set aside the logs of a directory that was taken back, if their replicas have moved away meanwhile.

    A later request with a higher leader epoch may assign such a replica again; it then begins with an empty log, as it
    is in no ISR.
    """
    logs = [log for log in manager.logs.all_logs() if log.directory.path == log_dir]
    states = (manager.hosted.metadata.snapshot.partition(log.topic_partition) for log in logs)
    _set_unassigned_aside(manager, [state for state in states if state is not None])


def _set_unassigned_aside(manager: ReplicaManager, states: Iterable[UpdateMetadataPartition]) -> None:
    for state in states:
        if _is_stray(manager, state):
            _set_aside(manager, state.topic_partition, f"it is assigned to {list(state.replicas)}")
    manager.fetchers.close_idle()
    manager.hosted.deliver_changes()


def _set_replaced_aside(manager: ReplicaManager, request: UpdateMetadataRequest) -> None:
    """Set aside hosted partitions of a re-created topic: a leader would write its ISR into the new topic's state."""
    hosted = manager.hosted.online
    for state in request.partitions:
        partition = hosted.get(state.topic_partition)
        if partition is None or partition.assigned_controller_epoch >= request.stamp.controller_epoch:
            continue
        if None not in (partition.topic_id, state.topic_id) and partition.topic_id != state.topic_id:
            _set_aside(manager, state.topic_partition, f"the topic was re-created with id {state.topic_id}")
    manager.hosted.deliver_changes()


def set_aside_log_of_deleted_topic(
    manager: ReplicaManager, state: LeaderAndIsrPartition, stamp: ControllerStamp
) -> None:
    """Set aside the log of a deleted topic with the same name as the topic in ``state``.

    While this broker was unreachable, the replica was moved to another broker and the topic was then deleted, so no
    request will delete the log.

    The log stays if this controller, or a later controller, has assigned the replica to this broker since its
    registration: then ``state`` may be from a delayed request for an earlier topic. An assignment before the
    registration proves nothing, because the process may have been suspended. An assignment by an earlier controller
    proves nothing either: this controller has read the topic id in ``state`` from ZooKeeper later.
    """
    if stamp.broker_epoch != manager.hosted.contact.broker_epoch:
        return
    topic_partition = state.topic_partition
    log = manager.logs.get(topic_partition)
    hosted = manager.hosted.online.get(topic_partition)
    if log is None or log.directory.is_offline or manager.hosted.broker_id not in state.replicas:
        return
    if (
        hosted is not None
        and hosted.assigned_broker_epoch >= manager.hosted.contact.broker_epoch
        and hosted.assigned_controller_epoch >= stamp.controller_epoch
    ):
        return
    if None not in (log.topic_id, state.topic_id) and log.topic_id != state.topic_id:
        _set_aside(manager, topic_partition, f"the topic has id {state.topic_id}, the log {log.topic_id}")
    elif state.is_new and topic_partition in manager.logs.without_topic_id and log.topic_id is None:
        _set_aside(manager, topic_partition, "the replica is new, and the log's topic id was lost")


def _is_stray(manager: ReplicaManager, state: UpdateMetadataPartition) -> bool:
    me = manager.hosted.broker_id
    if state.leader in (me, LEADER_DURING_DELETE) or me in state.replicas or me in state.isr:
        return False
    log = manager.logs.get(state.topic_partition)
    if log is None or log.directory.is_offline:
        return False
    if log.topic_id != state.topic_id and (log.topic_id is not None or log.log_end_offset > 0):
        # The log belongs to another or an unknown topic. An empty log without a topic id fits every topic.
        return False
    hosted = manager.hosted.online.get(state.topic_partition)
    if hosted is not None:
        # A request from before the replica returned to this broker may arrive late; its leader epoch is older.
        return state.leader_epoch > hosted.leader_epoch
    return log.latest_epoch is None or log.latest_epoch <= state.leader_epoch


def _set_aside(manager: ReplicaManager, topic_partition: TopicPartition, reason: str) -> None:
    partition = manager.hosted.drop(topic_partition)
    try:
        path = _rename_log(manager, topic_partition, reason)
    finally:
        manager.storage.damaged_logs.forget(topic_partition)
        if partition is not None:
            partition.retire()
    if path is not None and partition is not None:
        manager.hosted.emit(StateChangeKind.LOG_SET_ASIDE, partition, cause=f"stray, kept in {path}")


def _rename_log(manager: ReplicaManager, topic_partition: TopicPartition, reason: str) -> str | None:
    """Rename the log and return its new path; None when storage failed."""
    try:
        path = manager.logs.set_log_aside(topic_partition, STRAY)
    except KafkaStorageError:
        manager.storage.storage_failed()
        return None
    manager.storage.purge_after(manager.logs.default_config.file_delete_delay_ms)  # of a copy for a move
    LOG.warning("stray log set aside: partition=%s path=%s reason=%s", topic_partition, path, reason)
    return path
