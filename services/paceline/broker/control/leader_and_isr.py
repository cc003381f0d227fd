"""`LeaderAndIsrHandler`: become leader or follower, in the order of Kafka's becomeLeaderOrFollower.

1. Admit partitions (`admission.py`); each refused partition gets an error in the response.
2. Make leaders.
3. Make followers.
4. Complete waiting operations, continue moves between log directories, and answer.

Source: docs/protocol/replication.md#leaderandisr-answers, #becoming-a-leader, #becoming-a-follower and #unknown-leader.
"""

from collections.abc import Callable, Sequence

from paceline.broker.control.admission import Admitted, Errors, LeaderAndIsrAdmission
from paceline.broker.partition.partition import Partition
from paceline.broker.replica_manager import ReplicaManager
from paceline.log.partition_log import PartitionLog
from paceline.model.control import (
    ControlResponse,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LiveBroker,
)
from paceline.model.errors import ErrorCode, InconsistentTopicIdError, KafkaStorageError
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChangeKind

LeadershipListener = Callable[[Sequence[Partition], Sequence[TopicPartition]], None]
"""Callback with the partitions that this broker leads in a new leader epoch, and those that it no longer leads."""


class LeaderAndIsrHandler:
    """Sets the roles of the hosted partitions."""

    def __init__(
        self, manager: ReplicaManager, admission: LeaderAndIsrAdmission, on_leadership_change: LeadershipListener
    ) -> None:
        self._manager = manager
        self._admission = admission
        self._on_leadership_change = on_leadership_change

    def apply(self, request: LeaderAndIsrRequest) -> ControlResponse:
        """Become leader or follower of each partition that has a newer leader epoch in the request.

        Raises:
            ControlRequestDeferredError: see `LeaderAndIsrAdmission.admit`.
        """
        manager = self._manager
        admitted, errors = self._admission.admit(request)
        self._make_leaders([one for one in admitted if one.state.leader == manager.hosted.broker_id], errors)
        followers = [one for one in admitted if one.state.leader != manager.hosted.broker_id]
        self._make_followers(followers, request.live_leaders, errors)
        for partition, _ in admitted:
            if partition.log is None:
                manager.hosted.set_offline(partition.topic_partition)
        manager.hosted.end_topic_roles(partition.topic_partition.topic for partition, _ in admitted)
        manager.checkpoint.start()
        manager.fetchers.close_idle()
        manager.hosted.deliver_changes()
        manager.moves.start(partition for partition, _ in admitted)
        self._on_leadership_change(
            [partition for partition, _ in admitted if partition.is_leader],
            [partition.topic_partition for partition, _ in admitted if not partition.is_leader],
        )
        # Skip refused topics: nothing would remove their settings before a new topic gets the name.
        manager.hosted.topic_configs.want(
            manager.hosted.among(state.topic_partition.topic for state in request.partitions)
        )
        return ControlResponse(partition_errors=errors, topic_ids=self._ids_not_named(request))

    def _make_leaders(self, leaders: list[Admitted], errors: Errors) -> None:
        manager = self._manager
        manager.fetchers.stop(partition.topic_partition for partition, _ in leaders)
        for partition, state in leaders:
            try:
                partition.make_leader(state, self._log(partition, state))
            except (KafkaStorageError, InconsistentTopicIdError) as error:
                errors[partition.topic_partition] = _code_of(error)
            else:
                manager.hosted.emit(StateChangeKind.BECAME_LEADER, partition)
        manager.fetches.expect(dict.fromkeys(one for partition, _ in leaders for one in partition.followers))

    def _make_followers(self, followers: list[Admitted], live_leaders: tuple[LiveBroker, ...], errors: Errors) -> None:
        """Follow, in this order: stop fetchers, change roles, fail waiting operations, start fetchers.

        A partition whose leader has no known address keeps its role and its old epoch, so that a retry of the request
        is applied; only its log is created, for the checkpoint.
        """
        manager = self._manager
        known = {broker.broker_id: broker for broker in live_leaders} | dict(manager.hosted.metadata.snapshot.brokers)
        manager.fetchers.stop(partition.topic_partition for partition, state in followers if state.leader in known)
        following: list[tuple[Partition, LiveBroker]] = []
        for partition, state in followers:
            try:
                leader = known.get(state.leader)
                rebuilt = leader is not None and manager.storage.damaged_logs.start_rebuild(state)
                log = self._log(partition, state, rebuilt)
                if leader is None:
                    partition.hold_log(state.topic_id, log)
                    partition.end_leadership()
                    continue
                if partition.make_follower(state, log):
                    following.append((partition, leader))
                    manager.hosted.emit(StateChangeKind.BECAME_FOLLOWER, partition)
            except (KafkaStorageError, InconsistentTopicIdError) as error:
                errors[partition.topic_partition] = _code_of(error)
        manager.hosted.deliver_changes()
        if not manager.shutting_down:
            manager.fetchers.start(following)

    def _log(self, partition: Partition, state: LeaderAndIsrPartition, nowhere_else: bool = False) -> PartitionLog:
        """Return the log; ``nowhere_else`` means that no offline log directory can have it."""
        manager = self._manager
        config = manager.hosted.topic_configs.get(state.topic_partition.topic)
        is_new = state.is_new or nowhere_else
        log = manager.logs.get_or_create(partition.topic_partition, state.topic_id, is_new, config)
        if config is not None:
            # A log that was not hosted when the settings were read has older settings.
            log.config = config
        return log

    def _ids_not_named(self, request: LeaderAndIsrRequest) -> dict[TopicPartition, str]:
        """Return the ids of logs whose topic id the controller does not know; it restores them in ZooKeeper."""
        found = {}
        for state in request.partitions:
            log = self._manager.logs.get(state.topic_partition) if state.topic_id is None else None
            if log is not None and log.topic_id is not None:
                found[state.topic_partition] = log.topic_id
        return found


def _code_of(error: KafkaStorageError | InconsistentTopicIdError) -> ErrorCode:
    """Return the code for the controller: a replica whose log cannot be created on a full disk is Offline, too."""
    return ErrorCode.KAFKA_STORAGE_ERROR if isinstance(error, KafkaStorageError) else error.code
