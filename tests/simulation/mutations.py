"""The mutations behind `mutants`: each removes or breaks one guard in the services' code."""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.broker import metadata_cache
from paceline.broker.control.admission import LeaderAndIsrAdmission
from paceline.broker.control.request_fence import RequestFence
from paceline.broker.control.stop_replica import StopReplicaHandler
from paceline.broker.fetcher.follower_log import FollowerLog
from paceline.broker.fetcher.replica_fetcher import Activity, ReplicaFetcher
from paceline.broker.partition import isr_updates
from paceline.broker.partition import partition as hosted_partition
from paceline.broker.partition.partition import Partition
from paceline.broker.requests.fetch import FetchHandler
from paceline.broker.requests.produce import DelayedProduce
from paceline.controller import event_handler
from paceline.controller.channel.channel_manager import ChannelManager
from paceline.controller.context import ControllerContext
from paceline.controller.election.controller_election import ControllerElection, Owner
from paceline.controller.reassignment.reassignment_steps import ReassignmentSteps
from paceline.controller.standby import takeover
from paceline.controller.standby.takeover import TakeoverKind
from paceline.controller.state import partition_state_machine, replica_state_machine
from paceline.controller.state.leader_election import Election
from paceline.controller.state.state_writer import CommitOutcome, StateWriter
from paceline.controller.topics.topic_deletion import TopicDeletionManager
from paceline.controller.zk_store import ZkStore, send
from paceline.coordination import isr_write, znodes
from paceline.coordination.interface import ANY_VERSION, Check, Delete, Multi, Response, SetData, ZkCode
from paceline.log.leader_epoch_cache import LeaderEpochCache
from paceline.log.load_report import LoadReport
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.log.producer_state import ProducerStateManager
from paceline.model.errors import ErrorCode
from paceline.replication.high_watermark import leader_high_watermark
from paceline.replication.isr import JoinRefusal, why_not_join

if TYPE_CHECKING:
    from tests.simulation.mutants import Patches

# Controller


def no_fence_in_multi(patches: "Patches") -> None:
    """The check of /controller_epoch matches every version."""

    def fenced(_self: ZkStore, *operations: Any) -> Multi:
        return Multi((Check(znodes.CONTROLLER_EPOCH, ANY_VERSION), *operations))

    patches.set(ZkStore, "fenced", fenced)


def state_write_without_version(patches: "Patches") -> None:
    """The controller overwrites states without a version condition."""
    real = StateWriter._set

    def unconditional(self: StateWriter, *args: Any) -> SetData:
        return replace(real(self, *args), version=ANY_VERSION)

    patches.set(StateWriter, "_set", unconditional)


def no_fence_no_version(patches: "Patches") -> None:
    """Both mutations at once: each guard alone still prevents harm."""
    no_fence_in_multi(patches)
    state_write_without_version(patches)


def announce_before_write(patches: "Patches") -> None:
    """States are sent to brokers before they are written."""

    def commit(self: StateWriter, writes: Sequence[Any], limit: int) -> Generator[Any, Any, CommitOutcome]:
        outcome = CommitOutcome()
        for write in writes:
            outcome.written[write.topic_partition] = replace(write.state, zk_version=write.state.zk_version + 1)
        return outcome
        yield

    patches.set(StateWriter, "commit", commit)


def multi_result_ignored(patches: "Patches") -> None:
    """A failed multi counts as applied, as with kazoo's ``with`` form (Z2)."""
    real = ZkStore.send_fenced

    def send_fenced(self: ZkStore, multis: Sequence[Multi]) -> Generator[Any, Any, list[Response]]:
        responses = yield from real(self, multis)
        return [
            response
            if response.ok
            else Response(ZkCode.OK, results=tuple(Response(ZkCode.OK) for _ in multi.operations))
            for multi, response in zip(multis, responses, strict=True)
        ]

    patches.set(ZkStore, "send_fenced", send_fenced)


def elect_outside_isr(patches: "Patches") -> None:
    """The first online replica is elected, even outside the ISR."""

    def elect(
        current: Any, assigned: Sequence[int], online: Any, _unclean: bool, controller_epoch: int, *_: Any
    ) -> Election:
        recipients = tuple(replica for replica in assigned if replica in online)
        if not recipients:
            return Election(None)
        return Election(current.with_leader(recipients[0], recipients, controller_epoch), recipients)

    patches.set(partition_state_machine, "elect_offline", elect)


def keep_context(patches: "Patches") -> None:
    """A controller that resigned keeps the cluster state."""
    patches.set(ControllerContext, "clear", lambda _self: None)


def keep_sending(patches: "Patches") -> None:
    """A controller that resigned still sends queued requests."""
    patches.set(ChannelManager, "close", lambda _self: None)


def delete_foreign_controller(patches: "Patches") -> None:
    """Resigning deletes ``/controller`` without a check of its owner."""

    def withdraw(_self: ControllerElection) -> Generator[Any, Any, None]:
        yield from send([Delete(znodes.CONTROLLER)])

    patches.set(ControllerElection, "withdraw", withdraw)
    real = event_handler.ControllerEventHandler._elect

    def elect(self: Any) -> Generator[Any, Any, None]:
        # As after a failed failover: resign, and delete ``/controller``.
        if not self.is_active and self.active_controller is not None:
            yield from self._election.withdraw()
        yield from real(self)

    patches.set(event_handler.ControllerEventHandler, "_elect", elect)


def no_rewatch(patches: "Patches") -> None:
    """After a reconnect within the session, lost watches are not set again (Z1)."""

    def rewatch(_self: Any) -> Generator[Any, Any, None]:
        return
        yield

    patches.set(event_handler.ControllerEventHandler, "_rewatch", rewatch)


def never_mine(patches: "Patches") -> None:
    """Never recognize ``/controller`` as created by the own ZooKeeper session, after an election with a lost reply."""
    real = ControllerElection._owner

    def owner(self: ControllerElection, response: Response) -> Owner:
        return replace(real(self, response), is_this_session=False)

    patches.set(ControllerElection, "_owner", owner)


def reassign_at_once(patches: "Patches") -> None:
    """A reassignment counts as complete when it starts."""

    def complete(*_: Any) -> Generator[Any, Any, bool]:
        return True
        yield

    patches.set(ReassignmentSteps, "check_complete", complete)


def empty_isr(patches: "Patches") -> None:
    """The last member is removed from the ISR, too."""

    def without(state: Any, broker_id: int, controller_epoch: int) -> Any:
        leader = -1 if state.leader == broker_id else state.leader
        isr = tuple(member for member in state.isr if member != broker_id)
        return state.with_leader(leader, isr, controller_epoch)

    patches.set(replica_state_machine, "without_member", without)


def captured_data(patches: "Patches") -> None:
    """The controller uses registrations from an earlier read (KAFKA-5879)."""
    real = ZkStore.brokers
    seen: dict[ZkStore, dict[int, Any]] = {}

    def brokers(self: ZkStore) -> Generator[Any, Any, dict[int, Any]]:
        now = yield from real(self)
        before, seen[self] = seen.get(self, now), now
        return before

    patches.set(ZkStore, "brokers", brokers)


def elect_a_dead_member(patches: "Patches") -> None:
    """Elections choose ISR members that are not online."""

    def elect(current: Any, assigned: Sequence[int], _online: Any, *rest: Any, **_: Any) -> Election:
        recipients = tuple(replica for replica in assigned if replica in current.isr)
        if not recipients:
            return Election(None)
        return Election(current.with_leader(recipients[0], current.isr, rest[1]), recipients)

    patches.set(partition_state_machine, "elect_offline", elect)


def no_fence_before_a_move_is_taken_back(patches: "Patches") -> None:
    """A cancelled reassignment does not fence an ISR write of the leader that is in flight."""

    def update(self: ReassignmentSteps, topic_partition: Any, assignment: Any) -> Generator[Any, Any, None]:
        current = self.context.assignment(topic_partition)
        if current != assignment:
            yield from self.store.write_assignment(topic_partition, assignment)
            self.context.set_assignment(topic_partition, assignment)
            gone = [broker_id for broker_id in current.replicas if broker_id not in assignment.replicas]
            yield from self._stop_replicas(topic_partition, gone)
        self.context.being_reassigned.add(topic_partition)

    patches.set(ReassignmentSteps, "_update_assignment", update)


def nothing_without_lease(patches: "Patches") -> None:
    """A broker whose lease has expired receives no new partitions and leaders."""
    patches.set(partition_state_machine.PartitionStateMachine, "_without_lease", lambda _self, _topic_partition: ())


def no_deletion_resume(patches: "Patches") -> None:
    """A deletion found at failover, or halted by a dead broker, is not resumed."""

    def nothing(_self: TopicDeletionManager, *_: Any) -> Generator[Any, Any, None]:
        return
        yield

    patches.set(TopicDeletionManager, "resume", nothing)


def journal_not_asked(patches: "Patches") -> None:
    """A standby treats its copy as complete, although the journal has newer sequences."""

    def judge(mirror: Any, _journal: Any) -> tuple[TakeoverKind, str]:
        known = mirror is not None and mirror.sequence is not None
        return (TakeoverKind.WARM if known else TakeoverKind.COLD), ""

    patches.set(takeover, "_judge", judge)


def reborn_leaders_trusted(patches: "Patches") -> None:
    """A standby does not check whether a leader's process has restarted."""
    real = takeover.take_from_mirror

    def take(context: Any, mirror: Any, *rest: Any) -> list[Any]:
        mirror.broker_epochs = {broker_id: broker.broker_epoch for broker_id, broker in context.brokers.items()}
        return real(context, mirror, *rest)

    patches.set(takeover, "take_from_mirror", take)


# Broker: control requests


def any_controller_epoch(patches: "Patches") -> None:
    """Requests of earlier controller epochs are accepted."""
    real = RequestFence.check

    def check(self: RequestFence, stamp: Any, own_broker_epoch: int) -> ErrorCode:
        error = real(self, stamp, own_broker_epoch)
        return ErrorCode.NONE if error is ErrorCode.STALE_CONTROLLER_EPOCH else error

    patches.set(RequestFence, "check", check)


def any_broker_epoch(patches: "Patches") -> None:
    """Requests for an earlier registration are accepted."""
    real = RequestFence.check

    def check(self: RequestFence, stamp: Any, own_broker_epoch: int) -> ErrorCode:
        return real(self, replace(stamp, broker_epoch=None), own_broker_epoch)

    patches.set(RequestFence, "check", check)


def no_newer_broker_epoch(patches: "Patches") -> None:
    """Requests with a newer broker epoch are refused permanently, even while the registration's reply is in flight."""
    real = RequestFence.check

    def check(self: RequestFence, stamp: Any, own_broker_epoch: int) -> ErrorCode:
        if stamp.broker_epoch is not None and stamp.broker_epoch > own_broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        return real(self, stamp, own_broker_epoch)

    patches.set(RequestFence, "check", check)


def unregistered_takes_requests(patches: "Patches") -> None:
    """A process accepts requests for its predecessor until it has registered."""
    real = RequestFence.check

    def check(self: RequestFence, stamp: Any, own_broker_epoch: int) -> ErrorCode:
        return real(self, stamp, max(own_broker_epoch, 0))

    patches.set(RequestFence, "check", check)


def any_leader_epoch(patches: "Patches") -> None:
    """A LeaderAndIsr of an older leader epoch is applied."""
    real = LeaderAndIsrAdmission._check

    def check(self: LeaderAndIsrAdmission, partition: Any, state: Any) -> ErrorCode:
        error = real(self, partition, state)
        return ErrorCode.NONE if error is ErrorCode.STALE_CONTROLLER_EPOCH else error

    patches.set(LeaderAndIsrAdmission, "_check", check)


def topic_id_ignored(patches: "Patches") -> None:
    """A log is used for every topic with its name."""
    real = LeaderAndIsrAdmission._check

    def check(self: LeaderAndIsrAdmission, partition: Any, state: Any) -> ErrorCode:
        return real(self, partition, replace(state, topic_id=None))

    def assign(self: PartitionLog, topic_id: str) -> None:
        self.topic_id = topic_id

    patches.set(LeaderAndIsrAdmission, "_check", check)
    patches.set(PartitionLog, "assign_topic_id", assign)
    # StopReplica has no id either, so the old log cannot be distinguished from the new log.
    patches.set(StopReplicaHandler, "_is_namesake", lambda _self, _state: True)


def overtaken_pictures(patches: "Patches") -> None:
    """A delayed UpdateMetadata restores its brokers and offline replicas."""
    patches.set(metadata_cache.MetadataCache, "is_overtaken", lambda _self, _request: False)


def metadata_goes_back(patches: "Patches") -> None:
    """The latest UpdateMetadata is applied, even with older state."""
    patches.set(metadata_cache, "_is_older", lambda _state, _known: False)
    patches.set(metadata_cache.MetadataCache, "is_overtaken", lambda _self, _request: False)
    any_controller_epoch(patches)


# Broker: high watermark and ISR


def high_watermark_alone(patches: "Patches") -> None:
    """The high watermark is the leader's log end."""

    def alone(current: int, leader_end_offset: int, *_: Any) -> int:
        return max(current, leader_end_offset)

    patches.set(hosted_partition, "leader_high_watermark", alone)


def high_watermark_by_majority(patches: "Patches") -> None:
    """A record is committed when most replicas have it."""

    def majority(current: int, leader_end_offset: int, followers: Iterable[Any], *_: Any) -> int:
        ends = sorted([leader_end_offset, *(follower.log_end_offset or 0 for follower in followers)], reverse=True)
        return max(current, ends[len(ends) // 2])

    patches.set(hosted_partition, "leader_high_watermark", majority)


def committed_isr_only(patches: "Patches") -> None:
    """A proposed ISR member does not count yet, although the ISR write may have been applied."""
    patches.set(Partition, "maximal_isr", property(lambda self: self.isr))
    patches.set(Partition, "may_join", lambda _self, _follower: False)


def high_watermark_below_min_isr(patches: "Patches") -> None:
    """The high watermark advances with the remaining ISR members (KAFKA-15583)."""

    def unfrozen(current: int, end: int, followers: Any, isr: Any, maximal: Any, _minimum: int, *rest: Any) -> int:
        return leader_high_watermark(current, end, followers, isr, maximal, 1, *rest)

    patches.set(hosted_partition, "leader_high_watermark", unfrozen)


def forgive_joining(patches: "Patches", *forgiven: JoinRefusal) -> None:
    """Let followers join in spite of these refusals."""

    def why_not(follower: Any, high_watermark: int, epoch_start: int, *rest: Any) -> JoinRefusal | None:
        if JoinRefusal.BELOW_EPOCH_START in forgiven:
            epoch_start = 0
        refusal = why_not_join(follower, high_watermark, epoch_start, *rest)
        return None if refusal in forgiven else refusal

    patches.set(isr_updates, "why_not_join", why_not)


def join_below_epoch_start(patches: "Patches") -> None:
    """A follower joins at the stale high watermark of a new leader (KAFKA-7128)."""
    forgive_joining(patches, JoinRefusal.BELOW_EPOCH_START)


def join_without_fetch(patches: "Patches") -> None:
    """A follower joins by its end offset of the previous epoch, and its registration is not checked.

    Both guards at once: a replica that is outside the ISR of a new epoch has usually registered again, which the other
    guard detects.
    """
    join_with_old_broker_epoch(patches)
    forgive_joining(patches, *JoinRefusal)
    real = Partition.make_leader

    def make_leader(self: Partition, *args: Any) -> bool:
        is_new = real(self, *args)
        for follower in self.followers.values():
            if follower.broker_epoch is not None and follower.log_end_offset is not None:
                self._host.maybe_expand_isr(self, follower)
        return is_new

    patches.set(Partition, "make_leader", make_leader)


def join_with_old_broker_epoch(patches: "Patches") -> None:
    """The broker epoch of a joining replica is not checked (KIP-903)."""
    forgive_joining(patches, JoinRefusal.OLD_BROKER_EPOCH, JoinRefusal.NOT_REGISTERED, JoinRefusal.SHUTTING_DOWN)
    patches.set(isr_write, "_checks", lambda _expected, _responses: ([], ()))


def isr_write_without_version(patches: "Patches") -> None:
    """The leader's ISR write has no version condition (the reverse of KAFKA-2729)."""

    def unconditional(path: str, data: bytes, _version: int) -> SetData:
        return SetData(path, data, ANY_VERSION)

    patches.set(isr_write, "SetData", unconditional)


def unassigned_not_counted(patches: "Patches") -> None:
    """At the end of a reassignment the leader counts only assigned replicas."""
    real = Partition._set_followers

    def set_followers(self: Partition, state: Any, *rest: Any) -> None:
        isr = tuple(member for member in state.isr if member in state.replicas)
        real(self, replace(state, isr=isr), *rest)

    patches.set(Partition, "_set_followers", set_followers)


# Broker: logs and fetching


def no_truncation(patches: "Patches") -> None:
    """A follower keeps records that its leader lacks, and appends after them."""

    def diverged(self: ReplicaFetcher, state: Any, log: Any, leader_end: Any) -> bool:
        state.last_fetched_epoch = None
        return True

    patches.set(ReplicaFetcher, "_diverged", diverged)


def truncate_to_high_watermark(patches: "Patches") -> None:
    """A new follower truncates to its own high watermark (KAFKA-1211)."""
    real = ReplicaFetcher.add

    def add(self: ReplicaFetcher, partition: Partition) -> None:
        if partition.log is not None and partition.topic_partition not in self.states:
            FollowerLog(partition, self._hosted).truncate_to(partition.log.high_watermark, "its high watermark")
        real(self, partition)

    patches.set(ReplicaFetcher, "add", add)


def any_fetch_answer(patches: "Patches") -> None:
    """A response is applied although the fetcher has sent a later request."""

    def enter(self: ReplicaFetcher, activity: Activity) -> None:
        self._activity = activity if self._activity is not Activity.CLOSED else Activity.CLOSED

    def answered(self: ReplicaFetcher, request: Any, answer: Any) -> None:
        self._enter(Activity.IDLE)
        if isinstance(answer, Exception) or answer.error is not ErrorCode.NONE:
            self._request_failed(request, None if isinstance(answer, Exception) else answer.error)
        else:
            self._advance_session(request, answer)
            self._apply(answer.results)
        self.run()

    patches.set(ReplicaFetcher, "_enter", enter)
    patches.set(ReplicaFetcher, "_answered", answered)
    patches.set(ReplicaFetcher, "_is_current", lambda _self, state, _result: state.partition.log is not None)
    real_close, real_apply = ReplicaFetcher.close, ReplicaFetcher._apply_to

    def close(self: ReplicaFetcher) -> None:
        # A closed connection still delivers messages in flight.
        kept = self._states
        real_close(self)
        self._states = kept

    def apply_to(self: ReplicaFetcher, state: Any, result: Any) -> bool:
        return real_apply(self, state, result) if not state.partition.is_leader else True

    patches.set(ReplicaFetcher, "close", close)
    patches.set(ReplicaFetcher, "_apply_to", apply_to)


def fetch_without_epoch(patches: "Patches") -> None:
    """A leader serves and counts followers of every epoch."""
    real = FetchHandler._validate

    def validate(self: FetchHandler, reader: Any, position: Any, read: Any) -> Any:
        kept, position.current_leader_epoch = position.current_leader_epoch, None
        try:
            return real(self, reader, position, read)
        finally:
            position.current_leader_epoch = kept

    patches.set(FetchHandler, "_validate", validate)


def any_fetch_and_answer(patches: "Patches") -> None:
    """Leader and follower check no epochs."""
    fetch_without_epoch(patches)
    any_fetch_answer(patches)


def epochs_not_trimmed(patches: "Patches") -> None:
    """A truncation leaves the removed epochs in the cache (KAFKA-10706)."""
    patches.set(LeaderEpochCache, "truncate_from_end", lambda _self, _offset: None)


def epochs_not_assigned(patches: "Patches") -> None:
    """Appends do not record their epochs."""
    patches.set(LeaderEpochCache, "assign", lambda _self, _epoch, _start: None)


def unclean_restart_untold(patches: "Patches") -> None:
    """A broker that lost the end of a log registers without reporting it (KIP-966)."""
    patches.set(LoadReport, "is_unclean_restart", lambda _self, _boot_id: False)


def deletion_not_synced(patches: "Patches") -> None:
    """A deletion is acknowledged before it is durable."""
    patches.set(LogManager, "sync_deletions", lambda _self: None)


# Broker: clients


def read_to_log_end(patches: "Patches") -> None:
    """Consumers receive records up to the leader's log end."""

    def readable(_self: FetchHandler, partition: Partition, _reader: Any) -> tuple[Any, int]:
        log = partition.leader_log()
        return log, log.log_end_offset

    real = FetchHandler._validate

    def validate(self: FetchHandler, reader: Any, position: Any, read: Any) -> Any:
        partition = real(self, reader, position, read)
        read.available = position.fetch_offset < read.log_end_offset
        return partition

    patches.set(FetchHandler, "_readable", readable)
    patches.set(FetchHandler, "_validate", validate)


def acknowledge_early(patches: "Patches") -> None:
    """A write with acks=all is answered when the leader has written it."""

    def advance(self: DelayedProduce) -> bool:
        self._pending = []
        return True

    patches.set(DelayedProduce, "advance", advance)


def no_duplicates_found(patches: "Patches") -> None:
    """A duplicate batch is appended again."""
    patches.set(ProducerStateManager, "find_duplicate", lambda _self, _header: None)
    patches.set(ProducerStateManager, "check", lambda _self, _header: None)


def no_sequences(patches: "Patches") -> None:
    """The state of producers is not stored."""
    patches.set(ProducerStateManager, "update", lambda _self, _header: None)


# Control


def nothing(_patches: "Patches") -> None:
    """No mutation: unmodified code must pass all checks, so this hunt must find nothing."""
