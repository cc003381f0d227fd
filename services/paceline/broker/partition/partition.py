"""A replica hosted by this broker: its role, and as leader its followers, ISR and high watermark.

Invariants (docs/protocol/replication.md):

* `leader_epoch` starts at -1 and only rises; it is stored after everything in a role change that can fail.
* While leading, the *maximal* ISR is the committed ISR plus the pending proposal, and the high watermark waits for all
  of it. At most one proposal is pending; a result counts only for the pending proposal.
* All methods run on the node's scheduler. They do not answer requests: changes are reported to the host, which
  completes waiting operations after the whole request was handled.
"""

import sys
from dataclasses import dataclass, field

from paceline.broker.partition.host import PartitionHost
from paceline.broker.partition.isr_proposal import IsrProposal
from paceline.log.append_info import AppendInfo
from paceline.log.partition_log import PartitionLog
from paceline.model.control import LeaderAndIsrPartition
from paceline.model.errors import (
    BrokerNotAvailableError,
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    StaleBrokerEpochError,
    UnknownLeaderEpochError,
)
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import NO_EPOCH, NO_LEADER, TopicPartition
from paceline.model.state_change import ReplicaOffsets, StateChangeKind
from paceline.replication.fetch_session import FetchSession, PartitionChange
from paceline.replication.follower_progress import FetchClock, FollowerProgress
from paceline.replication.high_watermark import leader_high_watermark
from paceline.replication.isr import why_not_eligible
from paceline.replication.leadership_proof import NEVER, proved_ms


@dataclass(slots=True, eq=False, repr=False)
class Partition:
    """A hosted partition. Created without a role: leader none, epoch -1."""

    topic_partition: TopicPartition
    _host: "PartitionHost[Partition]"
    topic_id: str | None = None
    log: PartitionLog | None = None
    leader_id: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    zk_version: int = -1
    controller_epoch: int = -1
    """Epoch of the controller that decided the leadership; ISR writes keep it."""
    replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    """Committed in-sync replicas while leading, empty while following."""
    in_sync_at_epoch: bool = False
    """Whether this follower was in the ISR at the start of its leader epoch."""
    leader_epoch_start_offset: int | None = None
    followers: dict[int, FollowerProgress] = field(default_factory=dict)
    proposal: IsrProposal | None = None
    read_by_clients: bool = False
    """Whether clients have read from this follower in its present role, and may wait for more."""
    sessions: dict[FetchSession, None] = field(default_factory=dict)
    """Fetch sessions that include this partition."""
    assigned_broker_epoch: int = -1
    """Broker epoch of this broker in the last LeaderAndIsr that made it host the partition."""
    assigned_controller_epoch: int = -1
    """Controller epoch of that LeaderAndIsr."""
    settings_are_read: bool = False
    """Whether a read of the topic's settings has completed, also if they cannot be parsed."""
    is_deposed: bool = False
    """Whether this broker knows that it has lost the leadership: an ISR write found another leader or no state node, or
    a LeaderAndIsr named a leader without a known address."""
    confirmed_ms: int = NEVER
    """Time at which this leader epoch began, or an ISR write last confirmed it."""
    bytes_in: int = 0
    """Bytes that producers have appended to this replica, in all leader epochs."""
    bytes_out: int = 0
    """Bytes that consumers have read from this replica."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.leader_id == self._host.broker_id

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """All replicas that may be in the ISR: committed, or proposed with unknown result."""
        if self.proposal is None:
            return self.isr
        return tuple(dict.fromkeys((*self.isr, *self.proposal.isr)))

    @property
    def is_under_replicated(self) -> bool:
        """Whether this leader's ISR has fewer members than the replicas without ``adding_replicas``."""
        return self.is_leader and len(self.isr) < len(self.replicas) - len(self.adding_replicas)

    # Role changes

    def make_leader(self, state: LeaderAndIsrPartition, log: PartitionLog) -> bool:
        """Become leader; return whether this broker did not lead before.

        The new epoch is added to the epoch cache at the log's end, before any record (KAFKA-7415).

        Raises:
            KafkaStorageError: the log failed; the role has not changed.
        """
        was_leader = self.is_leader
        start_offset = log.log_end_offset
        log.assign_leader_epoch(state.leader_epoch, start_offset)
        self._adopt(state, log)
        self.isr = state.isr
        self.leader_epoch_start_offset = start_offset
        self._set_followers(state, start_offset, was_leader)
        self.leader_id = self._host.broker_id
        self.leader_epoch = state.leader_epoch
        # Without contact the request may have waited in a buffer while a successor was elected. For the same reason a
        # repetition of the request confirms nothing.
        self.confirmed_ms = self._host.now_ms() if self._host.in_contact() else NEVER
        self.is_deposed = False
        self.advance_high_watermark()
        self._host.record_change(self, PartitionChange.ROLE)
        return not was_leader

    def make_follower(self, state: LeaderAndIsrPartition, log: PartitionLog) -> bool:
        """Follow ``state.leader``; return False when leader and epoch are unchanged.

        Nothing is truncated and the high watermark stays: the fetcher handles both.
        """
        changed = self.leader_id != state.leader or self.leader_epoch != state.leader_epoch
        self._adopt(state, log)
        self.isr = ()
        self.in_sync_at_epoch = self._host.broker_id in state.isr
        self.leader_epoch_start_offset = None
        self.followers = {}
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        if changed:
            self._host.record_change(self, PartitionChange.ROLE)
        return changed

    def hold_log(self, topic_id: str | None, log: PartitionLog) -> None:
        """Attach the log without changing the role, so that the checkpoint includes its high watermark."""
        self.topic_id = log.topic_id or topic_id
        self.log = log

    def replace_log(self, log: PartitionLog) -> None:
        """Use the moved log with the same records, epochs and high watermark; role and followers stay."""
        self.log = log

    def end_leadership(self) -> None:
        """Stop answering as leader: the controller has another leader, or none, in a newer leader epoch."""
        self.is_deposed = self.is_leader

    def retire(self) -> None:
        """Release role and log, because the replica is deleted or its directory has failed."""
        self.leader_id = NO_LEADER
        self.isr = ()
        self.proposal = None
        self.followers = {}
        self.log = None
        self._host.record_change(self, PartitionChange.ROLE)

    def _adopt(self, state: LeaderAndIsrPartition, log: PartitionLog) -> None:
        self.hold_log(state.topic_id, log)
        self.controller_epoch = state.controller_epoch
        self.replicas = state.replicas
        self.adding_replicas = state.adding_replicas
        self.removing_replicas = state.removing_replicas
        self.zk_version = state.zk_version
        self.proposal = None
        self.read_by_clients = False

    def _set_followers(self, state: LeaderAndIsrPartition, leader_end_offset: int, was_leader: bool) -> None:
        now_ms = self._host.now_ms()
        followers = {}
        # At the end of a reassignment an ISR member may already be unassigned. It can still be elected, so the high
        # watermark must wait for it.
        for broker_id in dict.fromkeys((*state.replicas, *state.isr)):
            if broker_id == self._host.broker_id:
                continue
            known = self.followers.get(broker_id)
            follower = FollowerProgress(broker_id) if known is None else known
            in_isr = broker_id in state.isr
            follower.start_epoch(leader_end_offset, now_ms, in_isr, was_leader and known is not None)
            followers[broker_id] = follower
        self.followers = followers

    # Checks before every request of a client or follower

    def check_topic_id(self, topic_id: str | None) -> None:
        """Refuse a request for another topic with the same name; a missing id is not checked.

        Raises:
            InconsistentTopicIdError: the ids differ.
        """
        if topic_id is not None and self.topic_id is not None and topic_id != self.topic_id:
            raise InconsistentTopicIdError(f"{self.topic_partition} has topic id {self.topic_id}, not {topic_id}")

    def leader_log(self, current_leader_epoch: int | None = None) -> PartitionLog:
        """Return the log, if this broker leads and the caller's leader epoch, if given, is the present epoch.

        Raises:
            FencedLeaderEpochError: the caller's epoch is older.
            UnknownLeaderEpochError: the caller's epoch is newer.
            NotLeaderOrFollowerError: this broker does not lead, or has no log.

        Source: docs/protocol/replication.md#leader-epoch-check.
        """
        self._check_leader_epoch(current_leader_epoch)
        if not self.is_leader or self.log is None:
            raise NotLeaderOrFollowerError(f"broker {self._host.broker_id} does not lead {self.topic_partition}")
        return self.log

    def serving_log(self, current_leader_epoch: int | None = None) -> PartitionLog:
        """Return the log for an answer that a client trusts: as `leader_log`, if the leadership can be proved.

        Raises:
            FencedLeaderEpochError: the caller's epoch is older.
            UnknownLeaderEpochError: the caller's epoch is newer.
            NotLeaderOrFollowerError: this broker does not lead, has no log, or cannot prove that it still leads.
        """
        log = self.leader_log(current_leader_epoch)
        if self.is_deposed:
            raise NotLeaderOrFollowerError(
                f"broker {self._host.broker_id} no longer leads {self.topic_partition}: its epoch {self.leader_epoch} "
                "is over"
            )
        if not self.is_leadership_proved:
            raise NotLeaderOrFollowerError(
                f"broker {self._host.broker_id} cannot prove that it still leads {self.topic_partition} in epoch "
                f"{self.leader_epoch}: it has no contact, or only a recent one, with ZooKeeper or the controller, and "
                f"not all of ISR {list(self.maximal_isr)} fetch"
            )
        return log

    @property
    def is_leadership_proved(self) -> bool:
        """Whether no other broker can have been elected without this leader's knowledge."""
        if self.is_deposed:
            return False
        since_ms = self._host.proof_since_ms()
        if self.confirmed_ms >= since_ms:
            return True
        others = (self.followers.get(one) for one in self.maximal_isr if one != self._host.broker_id)
        proved = proved_ms(self.confirmed_ms, (NEVER if one is None else one.followed_ms() for one in others))
        return proved is None or proved >= since_ms

    def _check_leader_epoch(self, current_leader_epoch: int | None) -> None:
        if current_leader_epoch is not None and current_leader_epoch != self.leader_epoch:
            text = f"leader epoch of {self.topic_partition} is {self.leader_epoch}, not {current_leader_epoch}"
            if current_leader_epoch < self.leader_epoch:
                raise FencedLeaderEpochError(text)
            raise UnknownLeaderEpochError(text)

    def begin_client_read(self, current_leader_epoch: int | None = None) -> PartitionLog:
        """Return the log for a client that may read from a follower, which records that clients read from it.

        A leader is checked as by `leader_log`, without a proof of its leadership, a follower by its leader epoch.

        Raises:
            FencedLeaderEpochError: the caller's epoch is older.
            UnknownLeaderEpochError: the caller's epoch is newer.
            NotLeaderOrFollowerError: this broker neither leads nor follows the partition.
        """
        if self.is_leader or self.leader_id == NO_LEADER or self.log is None:
            return self.leader_log(current_leader_epoch)
        self._check_leader_epoch(current_leader_epoch)
        self.read_by_clients = True
        return self.log

    def check_high_watermark_is_current(self) -> None:
        """Refuse an offset lookup (KIP-207) while this leader's high watermark may be below an earlier leader's.

        Paceline also refuses fetches of clients. The high watermark is current once it has reached the start of the
        leader epoch.

        Raises:
            OffsetNotAvailableError: it is below the start of the leader epoch.
        """
        log, epoch_start = self.log, self.leader_epoch_start_offset
        if log is None or epoch_start is None or log.high_watermark >= epoch_start:
            return
        raise OffsetNotAvailableError(
            f"{self.topic_partition}: high watermark {log.high_watermark} is below epoch start {epoch_start}"
        )

    @property
    def has_enough_replicas(self) -> bool:
        """Whether the committed ISR, including this leader, has ``min.insync.replicas`` members."""
        return len(self.isr) >= self.min_insync_replicas

    @property
    def min_insync_replicas(self) -> int:
        """Minimum ISR size for commits; impossibly large while the setting is unknown."""
        if self.log is None or not self.settings_are_read:
            return sys.maxsize
        return self.log.config.min_insync_replicas

    # Leading

    def append_as_leader(
        self,
        batch: bytes,
        wait_for_all: bool,
        wall_ms: int,
        current_leader_epoch: int | None = None,
        uses_reserve: bool = False,
    ) -> AppendInfo:
        """Append a producer's batch, or with ``uses_reserve`` the broker's own, also when the disk is short of room.

        Raises:
            FencedLeaderEpochError: the producer's leader epoch, if given, is older; the batch was not appended.
            UnknownLeaderEpochError: the producer's leader epoch is newer; the batch was not appended.
            NotLeaderOrFollowerError: another broker leads, or this broker cannot prove its leadership.
            NotEnoughReplicasError: ``wait_for_all`` and the ISR is too small; the batch was not appended.
            LogDirFullError: the disk has too little free space; the batch was not appended.
            PacelineError: the log refused the batch.
        """
        log = self.serving_log(current_leader_epoch)
        if wait_for_all and not self.has_enough_replicas:
            if not self.settings_are_read:
                raise NotEnoughReplicasError(
                    f"the settings of topic {self.topic_partition.topic}, and so its min.insync.replicas, are not known"
                )
            raise NotEnoughReplicasError(
                f"{self.topic_partition} has {len(self.isr)} in-sync replicas, {self.min_insync_replicas} needed"
            )
        log.directory.space.check(uses_reserve=uses_reserve)
        end_offset = log.log_end_offset
        for follower in self.followers.values():
            if follower.clock is not None:
                follower.settle(end_offset)
        result = log.append_as_leader(batch, self.leader_epoch, wall_ms)
        if not result.duplicate:
            self._host.record_change(self, PartitionChange.APPENDED)
            self.advance_high_watermark()
        return result

    def delete_records(self, offset: int) -> None:
        """Set the log start to ``offset``, which is committed; the followers adopt it.

        Raises:
            NotLeaderOrFollowerError: another broker leads.
            KafkaStorageError: the log failed.
        """
        log = self.leader_log()
        if log.increment_log_start_offset(offset):
            self._host.record_change(self, PartitionChange.LOG_START)
            self._host.log_start_moved(log)

    def apply_retention(self, wall_ms: int) -> None:
        """Delete the segments that are too old or exceed the size; each replica does so independently.

        No segment is deleted while the topic's settings are unknown: the broker's defaults may retain less.

        Raises:
            PacelineError: an error of the log.
        """
        log = self.log
        if log is None or log.directory.is_offline or not log.config.deletes:
            return
        if not self._host.topic_configs.deletion_is_known(self.topic_partition.topic):
            return
        offset = log.retained_from(wall_ms)
        if offset is not None:
            log.increment_log_start_offset(offset)
            if self.is_leader:
                self._host.record_change(self, PartitionChange.LOG_START)
            self._host.log_start_moved(log)

    def low_watermark(self) -> int | None:
        """Return the smallest log start offset of leader and live replicas, None while an offset is unknown."""
        assert self.log is not None
        lowest, snapshot = self.log.log_start_offset, self._host.metadata.snapshot
        if self.log.future is not None:
            lowest = min(lowest, self.log.future.log_start_offset)
        for follower in self.followers.values():
            if snapshot.registered_broker_epoch(follower.broker_id) is None or snapshot.is_offline_replica(
                self.topic_partition, follower.broker_id
            ):
                continue
            if follower.log_start_offset is None:
                return None
            lowest = min(lowest, follower.log_start_offset)
        return lowest

    def record_follower_fetch(
        self, replica_id: int, broker_epoch: int, position: FetchPosition, now_ms: int, clock: FetchClock | None
    ) -> bool:
        """Record a follower's valid fetch; return False when the follower is not assigned.

        Raises:
            StaleBrokerEpochError: a later process of this follower has already fetched.
            BrokerNotAvailableError: the broker epoch is above the follower's epoch in the metadata cache; not checked
                while the cache has no epoch for it. Usually metadata with the epoch arrives soon; if the epoch were
                recorded now, a forged epoch would block the real follower.
        """
        follower = self.followers.get(replica_id)
        if follower is None or self.log is None:
            return False
        registered = self._host.metadata.snapshot.registered_broker_epoch(replica_id)
        if registered is not None and 0 <= registered < broker_epoch:
            raise BrokerNotAvailableError(
                f"replica {replica_id} fetches with broker epoch {broker_epoch}, registered is {registered}"
            )
        if follower.broker_epoch is not None and broker_epoch < follower.broker_epoch:
            raise StaleBrokerEpochError(
                f"replica {replica_id} fetches with broker epoch {broker_epoch} after a fetch with "
                f"{follower.broker_epoch}"
            )
        log_start_before = follower.log_start_offset
        changed = follower.record_fetch(
            position.fetch_offset, position.log_start_offset, self.log.log_end_offset, now_ms, broker_epoch
        )
        follower.clock = clock
        if follower.log_start_offset != log_start_before:
            self._host.record_change(self, PartitionChange.LOW_WATERMARK)
        if not self.is_settled(replica_id):
            self._host.maybe_expand_isr(self, follower)
        if changed:
            self.advance_high_watermark()
        return True

    def fetch_answered(self, replica_id: int, now_ms: int) -> None:
        """Record the response to a fetch without session; the follower sends its next fetch after it."""
        follower = self.followers.get(replica_id)
        if follower is not None:
            follower.answered_ms = now_ms

    def leave_session(self, session: FetchSession, forgotten: bool) -> None:
        """Remove the partition from a session; ``forgotten`` means that the session's owner removed it."""
        self.sessions.pop(session, None)
        follower = None if session.owner is None else self.followers.get(session.owner)
        if follower is not None and follower.clock is session.clock and self.log is not None:
            follower.leave_session(self.log.log_end_offset, forgotten)

    def advance_high_watermark(self) -> bool:
        """Advance the high watermark by the leader's rule; return whether it advanced.

        It does not advance while storage fails: the last append may be in the log although its producer got an error.
        """
        log = self.log
        if log is None or log.directory.is_offline:
            return False
        current = log.high_watermark
        moved = leader_high_watermark(
            current,
            log.log_end_offset,
            self.followers.values(),
            self.isr,
            self.isr if self.proposal is None else self.maximal_isr,
            self.min_insync_replicas,
            self._host.now_ms(),
            self._host.config.replica_lag_time_max_ms,
            self.may_join,
        )
        if moved <= current:
            return False
        log.update_high_watermark(moved)
        self._host.record_change(self, PartitionChange.HIGH_WATERMARK)
        start = self.leader_epoch_start_offset
        if start is not None and current <= start < moved:
            self._host.emit(StateChangeKind.FIRST_COMMIT, self)
        return True

    # In-sync replicas

    def may_join(self, follower: FollowerProgress) -> bool:
        """Return whether a follower may join the ISR as soon as it has caught up."""
        snapshot, broker_id = self._host.metadata.snapshot, follower.broker_id
        refusal = why_not_eligible(
            follower,
            snapshot.registered_broker_epoch(broker_id),
            snapshot.is_offline_replica(self.topic_partition, broker_id),
        )
        return refusal is None and broker_id in self.replicas

    def is_settled(self, replica_id: int) -> bool:
        """Whether the follower's idle fetches need no check: it is in the committed ISR and no proposal is pending."""
        return self.proposal is None and replica_id in self.isr

    # Views

    def offsets(self) -> tuple[ReplicaOffsets, ...]:
        """Return this replica's offsets, and as leader those of the followers."""
        log = self.log
        own = ReplicaOffsets(
            self._host.broker_id,
            None if log is None else log.log_end_offset,
            None if log is None else log.high_watermark,
        )
        others = (ReplicaOffsets(broker_id, f.log_end_offset) for broker_id, f in self.followers.items())
        return (own, *others)
