"""`LeaderAndIsrAdmission`: accept the role of each partition in a LeaderAndIsr request, or refuse it with an error.

Source: docs/protocol/replication.md#leaderandisr-answers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from paceline.broker.control.deleted_replicas import DeletedReplicas
from paceline.broker.control.leader_epoch_fence import LeaderEpochFence
from paceline.broker.control.stray_logs import set_aside_log_of_deleted_topic
from paceline.broker.partition.partition import Partition
from paceline.broker.replica_manager import ReplicaManager
from paceline.model.control import LeaderAndIsrPartition, LeaderAndIsrRequest
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import NO_EPOCH, TopicPartition

Errors = dict[TopicPartition, ErrorCode]


class Admitted(NamedTuple):
    """A partition that gets the role of ``state``."""

    partition: Partition
    state: LeaderAndIsrPartition


@dataclass(slots=True, eq=False)
class LeaderAndIsrAdmission:
    """Admits partitions and hosts them; `admit` lists the reasons for a refusal.

    Args:
        manager: the hosted partitions.
        leader_epochs: confirms improbable leader epochs in ZooKeeper.
        deleted: replicas that this process deleted.
        on_refuted: receives a message about each leader epoch that is not in ZooKeeper.
    """

    _manager: ReplicaManager
    _leader_epochs: LeaderEpochFence
    _deleted: DeletedReplicas
    _on_refuted: Callable[[str], None]

    def admit(self, request: LeaderAndIsrRequest) -> tuple[list[Admitted], Errors]:
        """Host and return the admitted partitions, each once, with the error code of every partition in the request.

        Steps for each partition; the first refusal decides:

        1. UNKNOWN_LEADER_EPOCH: an improbably high leader epoch is not in ZooKeeper.
        2. A log of a deleted topic with the same name is set aside, unless a controller has assigned that replica to
           this broker since its registration (`set_aside_log_of_deleted_topic`).
        3. INCONSISTENT_TOPIC_ID or STALE_CONTROLLER_EPOCH: the replica was deleted after the request was sent.
        4. KAFKA_STORAGE_ERROR: the replica is Offline.
        5. INCONSISTENT_TOPIC_ID, STALE_CONTROLLER_EPOCH or UNKNOWN_TOPIC_OR_PARTITION: see `_check`.
        6. KAFKA_STORAGE_ERROR: the log is too damaged for the role; the replica becomes Offline.

        Raises:
            ControlRequestDeferredError: a leader epoch is being looked up in ZooKeeper; nothing has changed.
        """
        manager = self._manager
        controller_epoch = request.stamp.controller_epoch
        refuted = self._refuted(request)
        errors: Errors = {}
        admitted: dict[TopicPartition, Admitted] = {}
        for state in request.partitions:
            topic_partition = state.topic_partition
            if topic_partition in refuted:
                errors[topic_partition] = ErrorCode.UNKNOWN_LEADER_EPOCH
                continue
            set_aside_log_of_deleted_topic(manager, state, request.stamp)
            partition = manager.hosted.online.get(topic_partition) or Partition(topic_partition, manager.hosted)
            errors[topic_partition] = reason = self._decide(partition, state, controller_epoch)
            if reason is ErrorCode.NONE:
                admitted.setdefault(topic_partition, Admitted(partition, state))
        for partition, state in admitted.values():
            manager.hosted.add(partition, controller_epoch, state.topic_id)
        return list(admitted.values()), errors

    def _refuted(self, request: LeaderAndIsrRequest) -> dict[TopicPartition, int]:
        """Return the partitions whose claimed leader epoch is not in ZooKeeper, with ZooKeeper's epoch."""
        hosted = self._manager.hosted.online
        rises = {}
        for state in request.partitions:
            partition = hosted.get(state.topic_partition)
            known = NO_EPOCH if partition is None else partition.leader_epoch
            rises[state.topic_partition] = (state.leader_epoch, known)
        refuted = self._leader_epochs.refuted(rises)
        for topic_partition, epoch in refuted.items():
            claimed, _ = rises[topic_partition]
            self._on_refuted(f"leader epoch {claimed} of {topic_partition} is not in ZooKeeper, which has {epoch}")
        return refuted

    def _decide(self, partition: Partition, state: LeaderAndIsrPartition, controller_epoch: int) -> ErrorCode:
        manager = self._manager
        topic_partition = state.topic_partition
        is_offline = topic_partition in manager.hosted.offline
        log = manager.logs.get(topic_partition)
        deleted = self._deleted.refusal(state, controller_epoch)
        # A log with the requested topic id shows that the deletion failed: the replica still exists, so its role is
        # checked like that of any other replica.
        if deleted is not ErrorCode.NONE and not is_offline and (log is None or log.topic_id != state.topic_id):
            return deleted
        if is_offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        reason = self._check(partition, state)
        if reason is ErrorCode.NONE and manager.storage.damaged_logs.maybe_take_offline(state):
            return ErrorCode.KAFKA_STORAGE_ERROR
        return reason

    def _check(self, partition: Partition, state: LeaderAndIsrPartition) -> ErrorCode:
        """Compare the decision with the hosted partition: topic id, then leader epoch, then assignment."""
        manager = self._manager
        log = partition.log or manager.logs.get(partition.topic_partition)
        known_id = partition.topic_id or (None if log is None else log.topic_id)
        if known_id is not None and state.topic_id is not None and known_id != state.topic_id:
            # A log in a failed directory cannot be set aside, so this broker cannot host the new topic's partition.
            stuck = log is not None and log.directory.is_offline
            return ErrorCode.KAFKA_STORAGE_ERROR if stuck else ErrorCode.INCONSISTENT_TOPIC_ID
        if state.leader_epoch <= partition.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if manager.hosted.broker_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE
