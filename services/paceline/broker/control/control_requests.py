"""Apply LeaderAndIsr, StopReplica and UpdateMetadata after the epoch checks.

Source: docs/protocol/replication.md#leaderandisr-answers and the rules after it.
"""

from collections.abc import Callable, Sequence

from paceline.broker.control.deleted_replicas import DeletedReplicas
from paceline.broker.partition.partition import Partition
from paceline.broker.partition.replica_manager import ReplicaManager
from paceline.broker.storage.stray_logs import set_namesake_aside, set_strays_aside
from paceline.log.partition_log import PartitionLog
from paceline.model.control import (
    ControlResponse,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LiveBroker,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from paceline.model.errors import ErrorCode, InconsistentTopicIdError, KafkaStorageError
from paceline.model.identifiers import EPOCH_DURING_DELETE, NO_EPOCH, TopicPartition
from paceline.model.state_change import StateChangeKind
from paceline.replication.fetch_session import News

Errors = dict[TopicPartition, ErrorCode]
Accepted = list[tuple[Partition, LeaderAndIsrPartition]]


def _ignore_leadership(_leaders: Sequence[Partition], _others: Sequence[TopicPartition]) -> None:
    """Do nothing: no part of this broker depends on leadership."""


def _ignore_deletion(_partitions: Sequence[TopicPartition]) -> None:
    """Do nothing: no part of this broker depends on deletions."""


class ControlRequests:
    """Applies a controller's decisions to the hosted partitions."""

    def __init__(
        self,
        manager: ReplicaManager,
        on_leadership_change: Callable[[Sequence[Partition], Sequence[TopicPartition]], None] = _ignore_leadership,
        on_partitions_deleted: Callable[[Sequence[TopicPartition]], None] = _ignore_deletion,
    ) -> None:
        """Make it.

        Args:
            manager: the hosted partitions.
            on_leadership_change: gets the partitions that this broker leads in a new leader epoch, and those that it
                leads no longer, at the end of each LeaderAndIsr and StopReplica.
            on_partitions_deleted: gets the partitions that an UpdateMetadata says are deleted.
        """
        self._manager = manager
        self._on_leadership_change = on_leadership_change
        self._on_partitions_deleted = on_partitions_deleted
        self._deleted: dict[TopicPartition, PartitionLog] = {}
        """Logs the running request has deleted."""
        self._gone = DeletedReplicas()

    # LeaderAndIsr

    def leader_and_isr(self, request: LeaderAndIsrRequest) -> ControlResponse:
        """Become leader or follower of each partition that is named in a newer leader epoch."""
        manager = self._manager
        errors: Errors = {}
        set_namesake_aside(manager, request)
        accepted = self._accept(self._without_deleted(request, errors), errors, request.stamp.controller_epoch)
        leaders = [(partition, state) for partition, state in accepted if state.leader == manager.broker_id]
        followers = [(partition, state) for partition, state in accepted if state.leader != manager.broker_id]
        self._make_leaders(leaders, errors)
        self._make_followers(followers, request.live_leaders, errors)
        self._mark_those_without_log_offline(accepted)
        manager.end_topic_roles(dict.fromkeys(partition.topic_partition.topic for partition, _ in accepted))
        manager.start_checkpoints()
        manager.fetchers.close_idle()
        manager.deliver_news()
        self._on_leadership_change(
            [partition for partition, _ in accepted if partition.is_leader],
            [partition.topic_partition for partition, _ in accepted if not partition.is_leader],
        )
        return ControlResponse(partition_errors=errors, topic_ids=self._ids_not_named(request))

    def _ids_not_named(self, request: LeaderAndIsrRequest) -> dict[TopicPartition, str]:
        """Return the ids of the logs whose topic id the controller does not know: it restores them in ZooKeeper."""
        found = {}
        for state in request.partitions:
            log = self._manager.logs.get(state.topic_partition) if state.topic_id is None else None
            if log is not None and log.topic_id is not None:
                found[state.topic_partition] = log.topic_id
        return found

    def _without_deleted(self, request: LeaderAndIsrRequest, errors: Errors) -> tuple[LeaderAndIsrPartition, ...]:
        """Leave out what was deleted since a request that comes late was sent.

        A replica that could not be deleted yet is still there: the controller asks how it is.
        """
        manager = self._manager
        kept = []
        for state in request.partitions:
            log = manager.logs.get(state.topic_partition)
            is_here = state.topic_partition in manager.offline or (log is not None and log.topic_id == state.topic_id)
            error = self._gone.refusal(state, request.stamp.controller_epoch)
            if is_here or error is ErrorCode.NONE:
                kept.append(state)
            else:
                errors[state.topic_partition] = error
        return tuple(kept)

    def _accept(self, states: tuple[LeaderAndIsrPartition, ...], errors: Errors, controller_epoch: int) -> Accepted:
        manager = self._manager
        accepted: dict[TopicPartition, tuple[Partition, LeaderAndIsrPartition]] = {}
        for state in states:
            topic_partition = state.topic_partition
            if topic_partition in manager.offline:
                errors[topic_partition] = ErrorCode.KAFKA_STORAGE_ERROR
                continue
            partition = manager.partitions.get(topic_partition)
            if partition is None:
                # Kept only if the request is accepted, so that a refused one leaves nothing behind.
                partition = Partition(topic_partition, manager)
            errors[topic_partition] = error = self._check(partition, state)
            if error is ErrorCode.NONE and topic_partition not in accepted:
                if manager.damaged_logs.refuses(state):
                    errors[topic_partition] = ErrorCode.KAFKA_STORAGE_ERROR
                else:
                    accepted[topic_partition] = (partition, state)
        for partition, state in accepted.values():
            manager.host(partition, controller_epoch, state.topic_id)
        return list(accepted.values())

    def _check(self, partition: Partition, state: LeaderAndIsrPartition) -> ErrorCode:
        manager = self._manager
        log = partition.log or manager.logs.get(partition.topic_partition)
        known_id = partition.topic_id or (None if log is None else log.topic_id)
        if known_id is not None and state.topic_id is not None and known_id != state.topic_id:
            # One that cannot be set aside, for its directory has failed, bars the name here: others have to lead.
            stuck = log is not None and log.directory.is_offline
            return ErrorCode.KAFKA_STORAGE_ERROR if stuck else ErrorCode.INCONSISTENT_TOPIC_ID
        if state.leader_epoch <= partition.leader_epoch:
            if partition.is_leader and (state.leader, state.leader_epoch) == (
                manager.broker_id,
                partition.leader_epoch,
            ):
                partition.confirm_leadership()
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if manager.broker_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def _make_leaders(self, leaders: Accepted, errors: Errors) -> None:
        manager = self._manager
        manager.fetchers.stop(partition.topic_partition for partition, _ in leaders)
        for partition, state in leaders:
            try:
                partition.make_leader(state, self._log(partition, state))
            except (KafkaStorageError, InconsistentTopicIdError) as error:
                errors[partition.topic_partition] = error.code
            else:
                manager.emit(StateChangeKind.BECAME_LEADER, partition)
        manager.fetches.expect(dict.fromkeys(one for partition, _ in leaders for one in partition.followers))

    def _make_followers(self, followers: Accepted, live_leaders: tuple[LiveBroker, ...], errors: Errors) -> None:
        """Follow, in this order: stop fetchers, change roles, fail waiting operations, start fetchers.

        A partition whose leader has no known address keeps its role and its old epoch, so that the same request
        applies when it is repeated; only its log is created, for the checkpoint.

        Source: docs/protocol/replication.md#becoming-a-follower and #unknown-leader.
        """
        manager = self._manager
        known = {broker.broker_id: broker for broker in live_leaders} | dict(manager.metadata.snapshot.brokers)
        manager.fetchers.stop(partition.topic_partition for partition, state in followers if state.leader in known)
        following: list[tuple[Partition, LiveBroker]] = []
        for partition, state in followers:
            try:
                leader = known.get(state.leader)
                rebuilt = leader is not None and manager.damaged_logs.rebuilds(state)
                log = self._log(partition, state, rebuilt)
                if leader is None:
                    partition.hold_log(state.topic_id, log)
                    partition.end_leadership()
                    continue
                if partition.make_follower(state, log):
                    following.append((partition, leader))
                    manager.emit(StateChangeKind.BECAME_FOLLOWER, partition)
            except (KafkaStorageError, InconsistentTopicIdError) as error:
                errors[partition.topic_partition] = error.code
        manager.deliver_news()
        if not manager.shutting_down:
            manager.fetchers.start(following)

    def _log(self, partition: Partition, state: LeaderAndIsrPartition, nowhere_else: bool = False) -> PartitionLog:
        """Return the log; ``nowhere_else`` says that it cannot lie in a directory that is offline."""
        manager = self._manager
        config = manager.topic_configs.get(state.topic_partition.topic)
        is_new = state.is_new or nowhere_else
        log = manager.logs.get_or_create(partition.topic_partition, state.topic_id, is_new, config)
        if config is not None:
            # One that was there already missed the reading of settings if it was not hosted then.
            log.config = config
        return log

    def _mark_those_without_log_offline(self, accepted: Accepted) -> None:
        for partition, _ in accepted:
            if partition.log is None:
                self._manager.set_offline(partition)

    # StopReplica

    def stop_replica(self, request: StopReplicaRequest) -> ControlResponse:
        """Stop fetching partitions, and delete those marked for deletion; an equal leader epoch is accepted.

        Source: docs/protocol/replication.md#stopreplica.
        """
        manager = self._manager
        errors: Errors = {}
        accepted: list[StopReplicaPartition] = []
        for state in request.partitions:
            if self._is_namesake(state):
                # What is to be stopped is gone already; the log here belongs to another topic of that name.
                errors[state.topic_partition] = ErrorCode.NONE
                continue
            errors[state.topic_partition] = error = self._may_stop(state)
            if error is ErrorCode.NONE:
                accepted.append(state)
        manager.fetchers.stop(state.topic_partition for state in accepted)
        for state in accepted:
            partition = manager.partitions.get(state.topic_partition)
            if state.delete_partition:
                self._gone.add(state, request.stamp.controller_epoch)
                errors[state.topic_partition] = self._delete(state)
            elif partition is not None:
                manager.emit(StateChangeKind.REPLICA_STOPPED, partition)
                manager.news(partition, News.ROLE)
        self._make_deletions_durable(errors)
        manager.end_topic_roles(dict.fromkeys(state.topic_partition.topic for state in accepted))
        manager.fetchers.close_idle()
        manager.deliver_news()
        self._on_leadership_change([], [state.topic_partition for state in accepted])
        return ControlResponse(partition_errors=errors)

    def _is_namesake(self, state: StopReplicaPartition) -> bool:
        log = self._manager.logs.get(state.topic_partition)
        return log is not None and log.topic_id is not None and state.topic_id not in (None, log.topic_id)

    def _may_stop(self, state: StopReplicaPartition) -> ErrorCode:
        manager = self._manager
        gone_with_log = state.delete_partition and manager.damaged_logs.is_offline(state.topic_partition)
        if state.topic_partition in manager.offline and not gone_with_log:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if state.leader_epoch in (EPOCH_DURING_DELETE, NO_EPOCH):
            return ErrorCode.NONE
        partition = manager.partitions.get(state.topic_partition)
        known = (
            manager.damaged_logs.left_in_epoch(state.topic_partition) if partition is None else partition.leader_epoch
        )
        return ErrorCode.FENCED_LEADER_EPOCH if state.leader_epoch < known else ErrorCode.NONE

    def _delete(self, state: StopReplicaPartition) -> ErrorCode:
        manager = self._manager
        log = manager.logs.get(state.topic_partition)
        manager.delete(state.topic_partition)
        manager.damaged_logs.forget(state.topic_partition)
        if log is None:
            some_offline = len(manager.logs.live_log_dirs) < len(manager.logs.log_dirs)
            return ErrorCode.KAFKA_STORAGE_ERROR if some_offline else ErrorCode.NONE
        try:
            manager.logs.delete(state.topic_partition)
        except KafkaStorageError as error:
            manager.storage_failed(state.topic_partition)
            return error.code
        manager.purge_later(log)
        self._deleted[state.topic_partition] = log
        return ErrorCode.NONE

    def _make_deletions_durable(self, errors: Errors) -> None:
        """One fsync for all: once the controller has heard of a deletion it is never asked for again."""
        deleted, self._deleted = self._deleted, {}
        if not deleted:
            return
        self._manager.logs.sync_deletions()
        for topic_partition, log in deleted.items():
            if log.directory.is_offline:
                errors[topic_partition] = ErrorCode.KAFKA_STORAGE_ERROR
                self._manager.storage_failed(topic_partition)

    # UpdateMetadata

    def update_metadata(self, request: UpdateMetadataRequest) -> ControlResponse:
        """Replace what this broker knows of the cluster, unless it knows better from this controller already."""
        if self._manager.metadata.is_overtaken(request):
            return ControlResponse()
        self._on_partitions_deleted(self._manager.metadata.update(request))
        set_strays_aside(self._manager, request)
        self._manager.damaged_logs.metadata_changed()
        return ControlResponse()
