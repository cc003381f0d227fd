"""Handle replicas with damaged logs: take them offline, set the log aside, rebuild it from the new leader.

A log is damaged when a batch differs from the batch that was written, when batches are missing after a clean stop, when
it has a leader epoch that never existed, when its topic id was lost, so that its records may belong to another topic,
when it lacks a segment, or when it has a gap after a loss of power: compaction leaves gaps too, so this gap may or may
not hide lost records.

1. If another in-sync replica is live, the replica goes Offline and the controller is notified as for a failed log
   directory. The broker answers the controller's LeaderAndIsr with KAFKA_STORAGE_ERROR, so that leadership moves and
   the replica leaves the ISR; the state node gets a new leader epoch in any case, which fences pending ISR writes.
2. When the metadata shows a later epoch without this replica in the ISR, or without a leader, the replica returns, and
   the controller is notified again.
3. A LeaderAndIsr then makes it a follower outside the ISR: only now the log is set aside (renamed and kept), and a new
   log is filled from the leader. The replica joins the ISR when it has caught up, like every follower.

If no other in-sync replica is live, the log stays in use: reads of intact records succeed, and reads of the damaged
range fail with CORRUPT_MESSAGE.
Source: docs/protocol/log-format.md#damaged-logs, docs/decisions/0011-damaged-and-stray-logs.md.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.partition.partition import Partition
from paceline.log.damage import DamagedLogError
from paceline.log.directory_names import DAMAGED
from paceline.log.log_manager import LogManager
from paceline.model.control import LeaderAndIsrPartition
from paceline.model.errors import KafkaStorageError, PacelineError
from paceline.model.identifiers import NO_EPOCH, NO_LEADER, TopicPartition
from paceline.model.state_change import StateChangeKind

LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Damage:
    """State of a damaged log."""

    reason: str
    leader_epoch: int
    """Leader epoch in which the damage was found; only a decision of a later epoch proves that no ISR relies on the
    log."""
    is_truncation: bool = False
    """Whether the log only ends too early and its records are intact."""
    is_offline: bool = False
    """Whether the replica is Offline because of the damage."""


class DamagedLogs:
    """The damaged logs of one broker."""

    def __init__(self, logs: LogManager, hosted: HostedPartitions, tell_controller: Callable[[], None]) -> None:
        """``tell_controller`` makes the controller request the state of this broker's replicas."""
        self._logs = logs
        self._hosted = hosted
        self._tell_controller = tell_controller
        self.damaged: dict[TopicPartition, Damage] = {}
        self.damaged_reads = 0
        """Number of reads that found damage."""
        self.found_by_load()

    def found_by_load(self) -> None:
        """Take over the damage that a load of the logs has found."""
        logs = self._logs
        for message, found in (
            ("log is damaged", logs.truncated_after_clean_stop),
            ("log may lack records", logs.unexplained_gaps),
            ("log has no topic id, not loading it", logs.without_topic_id),
        ):
            for topic_partition, reason in found.items():
                if topic_partition not in self.damaged:
                    LOG.error("%s: partition=%s reason=%s", message, topic_partition, reason)
                    is_truncation = found is logs.truncated_after_clean_stop
                    self.damaged[topic_partition] = Damage(reason, NO_EPOCH, is_truncation=is_truncation)

    def found(self, topic_partition: TopicPartition, error: DamagedLogError) -> PacelineError:
        """Handle damage found by a read.

        Return the error for the request; it is retriable if the replica is being replaced.
        """
        hosted = self._hosted
        self.damaged_reads += 1
        partition = hosted.online.get(topic_partition)
        damage = self.damaged.get(topic_partition)
        if damage is None or damage.is_truncation:
            epoch = NO_EPOCH if partition is None else partition.leader_epoch
            damage = self.damaged[topic_partition] = Damage(str(error), epoch)
            LOG.error("read found a damaged log: partition=%s error=%s", topic_partition, error)
            if partition is not None:
                hosted.emit(StateChangeKind.LOG_DAMAGED, partition, cause=str(error))
        if partition is None or not self._has_good_peer(partition):
            return error
        # Not immediately, because the caller is handling a request.
        hosted.scheduler.call_soon(lambda: self._give_up(topic_partition))
        return KafkaStorageError(f"the replica of {topic_partition} on broker {hosted.broker_id} is being replaced")

    def _has_good_peer(self, partition: Partition) -> bool:
        if not partition.is_leader:
            return self._is_alive(partition.leader_id)
        members = partition.isr if partition.proposal is None else partition.proposal.isr
        return self._has_live_peer(partition.topic_partition, [one for one in partition.isr if one in members])

    def _has_live_peer(self, topic_partition: TopicPartition, isr: list[int]) -> bool:
        hosted = self._hosted
        return any(
            member != hosted.broker_id
            and self._is_alive(member)
            and not hosted.metadata.snapshot.is_offline_replica(topic_partition, member)
            for member in isr
        )

    def _is_alive(self, broker_id: int) -> bool:
        return broker_id >= 0 and self._hosted.metadata.snapshot.registered_broker_epoch(broker_id) is not None

    def _give_up(self, topic_partition: TopicPartition) -> None:
        """Take the replica offline, if another replica can still take over."""
        hosted = self._hosted
        damage = self.damaged.get(topic_partition)
        partition = hosted.online.get(topic_partition)
        if damage is None or damage.is_offline or partition is None or not self._has_good_peer(partition):
            return
        LOG.warning("taking the replica offline to rebuild it: partition=%s reason=%s", topic_partition, damage.reason)
        damage.is_offline = True
        damage.leader_epoch = partition.leader_epoch
        hosted.set_offline(topic_partition)
        hosted.deliver_changes()
        self._tell_controller()

    def maybe_take_offline(self, state: LeaderAndIsrPartition) -> bool:
        """Take a damaged replica Offline if this decision's ISR relies on it; return whether it is Offline.

        The caller then refuses the role with KAFKA_STORAGE_ERROR, which makes the controller remove the replica from
        the ISR; therefore this happens only if another in-sync replica is alive.
        """
        hosted = self._hosted
        self._compare_epochs(state)
        damage = self.damaged.get(state.topic_partition)
        if damage is None or state.leader == NO_LEADER or hosted.broker_id not in state.isr:
            return False
        if not self._has_live_peer(state.topic_partition, list(state.isr)):
            return False
        damage.is_offline = True
        damage.leader_epoch = state.leader_epoch
        hosted.set_offline(state.topic_partition)
        return True

    def _compare_epochs(self, state: LeaderAndIsrPartition) -> None:
        """Mark a log as damaged if it has records of a later leader epoch than this decision: no such leader existed.

        No checksum covers a batch's leader epoch, and recovery trusts the batches' epochs. The leader does not know
        such an epoch, so its responses would never contain a truncation offset.
        """
        topic_partition = state.topic_partition
        log = self._logs.get(topic_partition)
        if topic_partition in self.damaged or log is None or log.latest_epoch is None:
            return
        if log.latest_epoch > state.leader_epoch:
            reason = f"it has records of leader epoch {log.latest_epoch}, above the latest, {state.leader_epoch}"
            LOG.error("log is damaged: partition=%s reason=%s", topic_partition, reason)
            self.damaged[topic_partition] = Damage(reason, NO_EPOCH)

    def start_rebuild(self, state: LeaderAndIsrPartition) -> bool:
        """Set a damaged log aside if this decision allows it; return whether a new log must be created.

        The caller follows a live leader.

        Raises:
            KafkaStorageError: the log's directory failed.
        """
        hosted = self._hosted
        topic_partition = state.topic_partition
        damage = self.damaged.get(topic_partition)
        if damage is None or hosted.broker_id in state.isr or state.leader_epoch <= damage.leader_epoch:
            return False
        del self.damaged[topic_partition]
        if damage.is_truncation:
            self._logs.forget_truncation(topic_partition)
            return False
        log = self._logs.get(topic_partition)
        if log is None:
            return False
        path = self._logs.set_log_aside(topic_partition, DAMAGED)
        # A copy of the log for a move was deleted with it.
        hosted.scheduler.call_later(log.config.file_delete_delay_ms, self._purge)
        LOG.warning("damaged log set aside: partition=%s path=%s leader=%d", topic_partition, path, state.leader)
        partition = hosted.online.get(topic_partition)
        if partition is not None:
            hosted.emit(StateChangeKind.LOG_SET_ASIDE, partition, cause=f"damaged, kept in {path}")
        return True

    def _purge(self) -> None:
        if not self._hosted.stopped:
            self._logs.purge_deleted()

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether a replica is Offline because of its damaged log, not its directory."""
        damage = self.damaged.get(topic_partition)
        return damage is not None and damage.is_offline

    def left_in_epoch(self, topic_partition: TopicPartition) -> int:
        """Return the leader epoch in which a replica went offline for its damaged log, NO_EPOCH for other replicas."""
        damage = self.damaged.get(topic_partition)
        return NO_EPOCH if damage is None else damage.leader_epoch

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget the damage of a log that was deleted."""
        damage = self.damaged.pop(topic_partition, None)
        if damage is not None and damage.is_offline:
            self._hosted.end_offline(topic_partition)

    def metadata_changed(self) -> None:
        """Return replicas to service when the metadata shows that no ISR relies on them, or that no leader is left."""
        hosted = self._hosted
        came_back = False
        for topic_partition, damage in tuple(self.damaged.items()):
            if not damage.is_offline or not self._may_come_back(topic_partition, damage):
                continue
            log = self._logs.get(topic_partition)
            if log is not None and log.directory.is_offline:
                continue
            damage.is_offline = False
            hosted.end_offline(topic_partition)
            came_back = True
        if came_back:
            self._tell_controller()

    def _may_come_back(self, topic_partition: TopicPartition, damage: Damage) -> bool:
        state = self._hosted.metadata.snapshot.partition(topic_partition)
        if state is None:
            return True
        me = self._hosted.broker_id
        is_later = state.leader_epoch > damage.leader_epoch
        return is_later and state.leader != me and (state.leader == NO_LEADER or me not in state.isr)

    def _waits_for_a_role(self, topic_partition: TopicPartition) -> bool:
        """Whether an assigned replica has no role on this broker, so that the controller should request its state."""
        if topic_partition in self._hosted.online:
            return False
        state = self._hosted.metadata.snapshot.partition(topic_partition)
        return state is not None and self._hosted.broker_id in state.replicas

    def retry_pending(self) -> None:
        """Retry the steps that had to wait: take replicas offline, and request a role for replicas without one."""
        waits = False
        for topic_partition in tuple(self.damaged):
            self._give_up(topic_partition)
            waits = waits or self._waits_for_a_role(topic_partition)
        self.metadata_changed()
        if waits:
            self._tell_controller()
