"""Collect the decisions of one step and send them as one LeaderAndIsr, UpdateMetadata and StopReplica per broker.

Source: docs/protocol/controller.md#request-batch; Kafka 2.8 AbstractControllerBrokerRequestBatch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from paceline.controller.channel.channel_manager import ChannelManager
from paceline.controller.context import ControllerContext
from paceline.controller.errors import IllegalStateError
from paceline.model.assignment import ReplicaAssignment
from paceline.model.control import (
    ControllerStamp,
    Endpoint,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LiveBroker,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from paceline.model.identifiers import EPOCH_DURING_DELETE, LEADER_DURING_DELETE, NO_EPOCH, TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr


@dataclass(slots=True)
class _Collected:
    leader_and_isr: dict[int, dict[TopicPartition, LeaderAndIsrPartition]] = field(default_factory=dict)
    decided: dict[TopicPartition, tuple[LeaderAndIsr, ReplicaAssignment, LeaderAndIsrPartition]] = field(
        default_factory=dict
    )
    """State of a partition, converted once: after a failover every replica gets the same value."""
    metadata_brokers: set[int] = field(default_factory=set)
    metadata_to_all: bool = False
    metadata_partitions: dict[TopicPartition, None] = field(default_factory=dict)
    stop_replica: dict[int, dict[TopicPartition, StopReplicaPartition]] = field(default_factory=dict)
    is_initial: bool = False

    def __bool__(self) -> bool:
        metadata = self.metadata_to_all or self.metadata_brokers or self.metadata_partitions
        return bool(self.leader_and_isr or metadata or self.stop_replica)


class RequestBatch:
    """A batch of requests: `new_batch`, any number of ``add_`` calls, then `send`. One batch is open at a time."""

    def __init__(
        self,
        controller_id: int,
        controller_endpoints: tuple[Endpoint, ...],
        context: ControllerContext,
        channels: ChannelManager,
    ) -> None:
        self._controller_id = controller_id
        self._controller_endpoints = controller_endpoints
        self._context = context
        self._channels = channels
        self._collected = _Collected()

    def new_batch(self) -> None:
        """Open a batch.

        Raises:
            IllegalStateError: the previous batch was not sent; its decisions would be lost, so the controller must
            resign.
        """
        if self._collected:
            raise IllegalStateError("the previous batch of control requests has not been sent")

    def clear(self) -> None:
        """Discard the open batch: the controller resigned."""
        self._collected = _Collected()

    def add_leader_and_isr(
        self,
        broker_ids: Iterable[int],
        topic_partition: TopicPartition,
        state: LeaderAndIsr,
        assignment: ReplicaAssignment,
        is_new: bool,
    ) -> None:
        """Add a decision for its replicas, and the resulting metadata for every registered broker."""
        partition = self._decision(topic_partition, state, assignment, is_new)
        for broker_id in broker_ids:
            if broker_id < 0:
                continue
            partitions = self._collected.leader_and_isr.setdefault(broker_id, {})
            before = partitions.get(topic_partition)
            stays_new = before is not None and before.is_new and not is_new
            partitions[topic_partition] = replace(partition, is_new=True) if stays_new else partition
        self._collected.metadata_to_all = True
        if topic_partition in self._context.leadership:
            self._collected.metadata_partitions[topic_partition] = None

    def _decision(
        self, topic_partition: TopicPartition, state: LeaderAndIsr, assignment: ReplicaAssignment, is_new: bool
    ) -> LeaderAndIsrPartition:
        known = self._collected.decided.get(topic_partition)
        if known is not None and known[0] is state and known[1] is assignment and known[2].is_new is is_new:
            return known[2]
        partition = LeaderAndIsrPartition(
            topic_partition=topic_partition,
            topic_id=self._context.topic_ids.get(topic_partition.topic),
            controller_epoch=state.controller_epoch,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=state.isr,
            zk_version=state.zk_version,
            replicas=assignment.replicas,
            adding_replicas=assignment.adding,
            removing_replicas=assignment.removing,
            is_new=is_new,
        )
        self._collected.decided[topic_partition] = (state, assignment, partition)
        return partition

    def add_update_metadata(self, broker_ids: Iterable[int], topic_partitions: Iterable[TopicPartition]) -> None:
        """Send metadata of partitions, together with the list of live brokers, to brokers."""
        self._collected.metadata_brokers.update(broker_id for broker_id in broker_ids if broker_id >= 0)
        for topic_partition in topic_partitions:
            # Include partitions that this controller could not read: brokers may have older metadata about them.
            if topic_partition in self._context.leadership or self._is_unreadable_and_deleted(topic_partition):
                self._collected.metadata_partitions[topic_partition] = None

    def _is_unreadable_and_deleted(self, topic_partition: TopicPartition) -> bool:
        return self._context.is_queued_for_deletion(topic_partition.topic) and self._context.knows(topic_partition)

    def mark_initial(self) -> None:
        """Mark the metadata of this batch as the first for its brokers; see `UpdateMetadataRequest`."""
        self._collected.is_initial = True

    def add_stop_replica(self, broker_ids: Iterable[int], topic_partition: TopicPartition, delete: bool) -> None:
        """Stop a replica on brokers.

        The request has the present leader epoch, which a later removal from the ISR would raise
        (docs/protocol/controller.md#epoch-of-stopreplica).
        """
        known = self._context.leadership.get(topic_partition)
        if self._context.is_queued_for_deletion(topic_partition.topic):
            leader_epoch = EPOCH_DURING_DELETE
        else:
            leader_epoch = NO_EPOCH if known is None else known.leader_epoch
        for broker_id in broker_ids:
            if broker_id not in self._context.brokers:
                continue  # The request would not be sent, and a dead broker may have thousands of replicas.
            partitions = self._collected.stop_replica.setdefault(broker_id, {})
            before = partitions.get(topic_partition)
            partitions[topic_partition] = StopReplicaPartition(
                topic_partition=topic_partition,
                topic_id=self._context.topic_ids.get(topic_partition.topic),
                leader_epoch=leader_epoch,
                delete_partition=delete or (before is not None and before.delete_partition),
            )

    def send(self) -> None:
        """Queue LeaderAndIsr, then UpdateMetadata, then StopReplica per broker.

        Skips brokers that are not registered.
        """
        collected, self._collected = self._collected, _Collected()
        self._send_leader_and_isr(collected)
        self._send_update_metadata(collected)
        self._send_stop_replica(collected)

    def send_update_metadata(
        self, broker_ids: Iterable[int], topic_partitions: Iterable[TopicPartition], initial: bool = False
    ) -> None:
        """Send metadata, at least the live brokers, to brokers; ``initial`` marks the first metadata they get."""
        self.new_batch()
        self.add_update_metadata(broker_ids, topic_partitions)
        if initial:
            self.mark_initial()
        self.send()

    def _stamp(self) -> ControllerStamp:
        return ControllerStamp(self._controller_id, self._context.epoch, None)

    def _send_leader_and_isr(self, collected: _Collected) -> None:
        brokers = self._context.brokers
        for broker_id in sorted(collected.leader_and_isr):
            if broker_id not in brokers:
                continue
            partitions = tuple(collected.leader_and_isr[broker_id].values())
            leaders = sorted({partition.leader for partition in partitions})
            live_leaders = tuple(brokers[leader] for leader in leaders if leader in brokers)
            self._channels.send(broker_id, LeaderAndIsrRequest(self._stamp(), live_leaders, partitions))

    def _send_update_metadata(self, collected: _Collected) -> None:
        if not collected.metadata_to_all and not collected.metadata_brokers:
            return
        registered = self._context.registered_broker_ids()
        live_brokers: tuple[LiveBroker, ...] = tuple(self._context.brokers[broker_id] for broker_id in registered)
        partitions = tuple(map(self._metadata_of, collected.metadata_partitions))
        self._context.metadata_sequence += 1
        request = UpdateMetadataRequest(
            self._stamp(),
            live_brokers,
            partitions,
            self._controller_endpoints,
            collected.is_initial,
            self._context.metadata_sequence,
        )
        for broker_id in registered:
            if collected.metadata_to_all or broker_id in collected.metadata_brokers:
                self._channels.send(broker_id, request)

    def _send_stop_replica(self, collected: _Collected) -> None:
        for broker_id in sorted(collected.stop_replica):
            if broker_id in self._context.brokers:
                partitions = tuple(collected.stop_replica[broker_id].values())
                self._channels.send(broker_id, StopReplicaRequest(self._stamp(), partitions))

    def _metadata_of(self, topic_partition: TopicPartition) -> UpdateMetadataPartition:
        context = self._context
        deleting = context.is_queued_for_deletion(topic_partition.topic)
        state = context.leadership.get(topic_partition)
        if state is None:
            state = LeaderAndIsr(LEADER_DURING_DELETE, 0, (), 0, context.epoch)
        return UpdateMetadataPartition(
            topic_partition=topic_partition,
            topic_id=context.topic_ids.get(topic_partition.topic),
            controller_epoch=state.controller_epoch,
            leader=LEADER_DURING_DELETE if deleting else state.leader,
            leader_epoch=0 if deleting else state.leader_epoch,
            isr=state.isr,
            zk_version=0 if deleting else state.zk_version,
            replicas=context.assignment(topic_partition).replicas,
            offline_replicas=context.offline_replicas(topic_partition),
        )
