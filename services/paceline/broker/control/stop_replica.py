"""`StopReplicaHandler`: stop replicas, and delete the replicas that the request marks for deletion.

Source: docs/protocol/replication.md#stopreplica.
"""

from paceline.broker.control.admission import Errors
from paceline.broker.control.deleted_replicas import DeletedReplicas
from paceline.broker.control.leader_and_isr import LeadershipListener
from paceline.broker.replica_manager import ReplicaManager
from paceline.log.partition_log import PartitionLog
from paceline.model.control import ControlResponse, StopReplicaPartition, StopReplicaRequest
from paceline.model.errors import ErrorCode, KafkaStorageError
from paceline.model.identifiers import EPOCH_DURING_DELETE, NO_EPOCH, TopicPartition
from paceline.model.state_change import StateChangeKind
from paceline.replication.fetch_session import PartitionChange


class StopReplicaHandler:
    """Applies StopReplica requests to the hosted replicas."""

    def __init__(
        self, manager: ReplicaManager, deleted: DeletedReplicas, on_leadership_change: LeadershipListener
    ) -> None:
        self._manager = manager
        self._deleted = deleted
        self._on_leadership_change = on_leadership_change

    def apply(self, request: StopReplicaRequest) -> ControlResponse:
        """Stop fetching partitions, and delete the replicas marked for deletion; an equal leader epoch is accepted."""
        manager = self._manager
        errors: Errors = {}
        accepted: list[StopReplicaPartition] = []
        for state in request.partitions:
            if self._is_namesake(state):
                # The replica to stop was already deleted; the present log belongs to a topic with another id.
                errors[state.topic_partition] = ErrorCode.NONE
                continue
            errors[state.topic_partition] = error = self._check(state)
            if error is ErrorCode.NONE:
                accepted.append(state)
        manager.fetchers.stop(state.topic_partition for state in accepted)
        manager.moves.stop(state.topic_partition for state in accepted)
        logs: dict[TopicPartition, PartitionLog] = {}
        for state in accepted:
            partition = manager.hosted.online.get(state.topic_partition)
            if state.delete_partition:
                self._deleted.add(state, request.stamp.controller_epoch)
                errors[state.topic_partition] = self._delete(state.topic_partition, logs)
            elif partition is not None:
                manager.hosted.emit(StateChangeKind.REPLICA_STOPPED, partition)
                manager.hosted.record_change(partition, PartitionChange.ROLE)
        self._make_deletions_durable(logs, errors)
        manager.hosted.end_topic_roles(state.topic_partition.topic for state in accepted)
        manager.fetchers.close_idle()
        manager.hosted.deliver_changes()
        self._on_leadership_change([], [state.topic_partition for state in accepted])
        return ControlResponse(partition_errors=errors)

    def _is_namesake(self, state: StopReplicaPartition) -> bool:
        log = self._manager.logs.get(state.topic_partition)
        return log is not None and log.topic_id is not None and state.topic_id not in (None, log.topic_id)

    def _check(self, state: StopReplicaPartition) -> ErrorCode:
        """Return an error if the replica may not be stopped: it is Offline, or it has a later leader epoch."""
        manager = self._manager
        damaged_logs = manager.storage.damaged_logs
        # A damaged log is deleted, and a log that could not be created on a full disk does not exist.
        gone_with_log = state.delete_partition and manager.storage.is_reachable(state.topic_partition)
        if state.topic_partition in manager.hosted.offline and not gone_with_log:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if state.leader_epoch in (EPOCH_DURING_DELETE, NO_EPOCH):
            return ErrorCode.NONE
        partition = manager.hosted.online.get(state.topic_partition)
        known = damaged_logs.left_in_epoch(state.topic_partition) if partition is None else partition.leader_epoch
        return ErrorCode.FENCED_LEADER_EPOCH if state.leader_epoch < known else ErrorCode.NONE

    def _delete(self, topic_partition: TopicPartition, logs: dict[TopicPartition, PartitionLog]) -> ErrorCode:
        """Delete a replica and add its log, if any, to ``logs``; return the error on failure."""
        manager = self._manager
        log = manager.logs.get(topic_partition)
        partition = manager.hosted.drop(topic_partition)
        if partition is not None:
            manager.hosted.emit(StateChangeKind.REPLICA_DELETED, partition)
            partition.retire()
        manager.storage.damaged_logs.forget(topic_partition)
        manager.hosted.end_offline(topic_partition)
        if log is None:
            # The log may be in an offline directory, from which it cannot be deleted now.
            some_offline = len(manager.logs.live_log_dirs) < len(manager.logs.log_dirs)
            return ErrorCode.KAFKA_STORAGE_ERROR if some_offline else ErrorCode.NONE
        try:
            manager.logs.delete(topic_partition)
        except KafkaStorageError as error:
            manager.storage.storage_failed()
            return error.code
        manager.storage.purge_later(log)
        logs[topic_partition] = log
        return ErrorCode.NONE

    def _make_deletions_durable(self, logs: dict[TopicPartition, PartitionLog], errors: Errors) -> None:
        """Sync all deletions together before the answer: a controller does not repeat an acknowledged deletion."""
        if not logs:
            return
        self._manager.logs.sync_deletions()
        for topic_partition, log in logs.items():
            if log.directory.is_offline:
                errors[topic_partition] = ErrorCode.KAFKA_STORAGE_ERROR
                self._manager.storage.storage_failed()
