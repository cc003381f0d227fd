"""Mutations of replication, sequences and storage, for `mutants` (docs/protocol/simulator.md#mutants)."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from paceline.broker.control import admission
from paceline.broker.control.stop_replica import StopReplicaHandler
from paceline.broker.fetcher import replica_fetcher
from paceline.broker.fetcher.follower_log import FollowerLog
from paceline.broker.fetcher.replica_fetcher import ReplicaFetcher
from paceline.broker.partition import partition as hosted_partition
from paceline.broker.partition.isr_updates import IsrUpdates
from paceline.broker.partition.partition import Partition
from paceline.broker.requests import delete_records
from paceline.broker.requests.delete_records import DeleteRecordsHandler
from paceline.broker.requests.errors import failure_of
from paceline.broker.requests.fetch import FetchHandler
from paceline.broker.requests.leader_hints import hint
from paceline.broker.requests.produce import DelayedProduce
from paceline.broker.requests.proof_waits import ProofWaits
from paceline.log import log_loader, partition_log, retention
from paceline.log.checkpoint import CLEAN_SHUTDOWN_MARKER
from paceline.log.directory_space import DirectorySpace
from paceline.log.files import DiskSpace
from paceline.log.local_log import LocalLog
from paceline.log.log_directory import LogDirectory
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.log.producer_state import ProducerStateManager
from paceline.log.segment_list import SegmentList
from paceline.log.time_index import TimeIndex, TimestampOffset
from paceline.model.errors import ErrorCode, KafkaStorageError, PacelineError
from paceline.replication import leadership_proof
from paceline.replication.high_watermark import leader_high_watermark
from paceline.replication.isr import JoinRefusal
from paceline.replication.purgatory import Cancel
from tests.simulation.disk import SimulatedDisk
from tests.simulation.mutations import any_broker_epoch, any_controller_epoch, forgive_joining

if TYPE_CHECKING:
    from tests.simulation.mutants import Patches

# Truncation and epochs


def one_round_lookup(patches: "Patches") -> None:
    """A follower accepts the end of an epoch that it does not have, without a second request (KAFKA-6361)."""
    real = ReplicaFetcher._diverged

    def point(leader_end: Any, log_end_offset: int, _lookup: Any) -> int:
        return min(leader_end.end_offset, log_end_offset)

    def diverged(self: ReplicaFetcher, state: Any, log: Any, leader_end: Any) -> bool:
        result = real(self, state, log, leader_end)
        state.last_fetched_epoch = None
        return result

    patches.set(replica_fetcher, "truncation_point", point)
    patches.set(ReplicaFetcher, "_diverged", diverged)


def same_leader_no_truncation(patches: "Patches") -> None:
    """A follower of an unchanged leader does not truncate in the new epoch (KAFKA-7164)."""
    same: dict[Partition, bool] = {}
    real_follow, real_add = Partition.make_follower, ReplicaFetcher.add

    def make_follower(self: Partition, state: Any, log: Any) -> bool:
        same[self] = self.leader_id == state.leader
        return real_follow(self, state, log)

    def add(self: ReplicaFetcher, partition: Partition) -> None:
        real_add(self, partition)
        if same.get(partition):
            self._states[partition.topic_partition].last_fetched_epoch = None

    patches.set(Partition, "make_follower", make_follower)
    patches.set(ReplicaFetcher, "add", add)


def answers_of_other_epochs(patches: "Patches") -> None:
    """A leader's response from another epoch is applied."""
    patches.set(ReplicaFetcher, "_is_current", lambda _self, state, _result: state.partition.log is not None)


def diverging_fetch_counts(patches: "Patches") -> None:
    """A fetch above the point of divergence counts as progress (KAFKA-13141)."""
    real = FetchHandler._read

    def read(self: FetchHandler, run: Any, position: Any, *rest: Any) -> Any:
        result = real(self, run, position, *rest)
        record, now_ms = rest[-2], rest[-1]
        if result.diverging_epoch is not None and record and run.reader.replica_id is not None:
            partition = self._hosted.lookup(position.topic_partition)
            kept, position.last_fetched_epoch = position.last_fetched_epoch, None
            partition.record_follower_fetch(run.reader.replica_id, run.reader.broker_epoch, position, now_ms, None)
            position.last_fetched_epoch = kept
        return result

    patches.set(FetchHandler, "_read", read)


def high_watermark_before_truncation(patches: "Patches") -> None:
    """A follower adopts its leader's high watermark above records that it is about to truncate."""
    real = ReplicaFetcher._apply_to

    def apply_to(self: ReplicaFetcher, state: Any, result: Any) -> bool:
        if result.diverging_epoch is not None and state.partition.log is not None:
            state.partition.log.update_high_watermark(state.partition.log.log_end_offset)
        return real(self, state, result)

    patches.set(ReplicaFetcher, "_apply_to", apply_to)


def epoch_start_forgotten(patches: "Patches") -> None:
    """A new leader records its epoch only with its first record (KAFKA-7415)."""
    patches.set(PartitionLog, "assign_leader_epoch", lambda _self, _epoch, _start: None)


def producers_kept_after_a_cut(patches: "Patches") -> None:
    """A truncation keeps the producer state of the removed batches."""
    real = LocalLog.truncate_at

    def truncate_at(self: LocalLog, offset: int) -> None:
        reload_producers = LocalLog.reload_producers
        LocalLog.reload_producers = lambda _self, _limit, _offsets=None: None  # type: ignore[method-assign]
        try:
            real(self, offset)
        finally:
            LocalLog.reload_producers = reload_producers  # type: ignore[method-assign]

    patches.set(LocalLog, "truncate_at", truncate_at)


def snapshots_kept_above_a_cut(patches: "Patches") -> None:
    """A truncation keeps snapshots above the new log end, which the next load uses."""
    real = LocalLog.truncate_at

    def truncate_at(self: LocalLog, offset: int) -> None:
        self.snapshots.remove_above = lambda _limit: []  # type: ignore[method-assign]
        try:
            real(self, offset)
        finally:
            del self.snapshots.remove_above

    patches.set(LocalLog, "truncate_at", truncate_at)


def time_index_one_entry_late(patches: "Patches") -> None:
    """A lookup by time starts one index entry too late."""

    def lookup(self: TimeIndex, timestamp: int) -> TimestampOffset:
        count = min(self._position_after(0, timestamp) + 1, self._count)
        return self.entry(count - 1) if count else TimestampOffset(-1, self._base_offset)

    patches.set(TimeIndex, "lookup", lookup)


def segment_of_equal_time_skipped(patches: "Patches") -> None:
    """A lookup skips a segment whose largest timestamp equals the requested time."""

    def find(self: SegmentList, timestamp_ms: int, from_offset: int, limit_offset: int) -> TimestampOffset | None:
        for segment in list(self._segments):
            if segment.base_offset >= limit_offset:
                break
            if segment.largest.timestamp > timestamp_ms:
                found = segment.find_timestamp(timestamp_ms, from_offset)
                if found is not None:
                    return found if found.offset < limit_offset else None
        return None

    patches.set(SegmentList, "find_timestamp", find)


# High watermark and ISR


def join_while_leaving(patches: "Patches") -> None:
    """A broker that is shutting down may join the ISR."""
    forgive_joining(patches, JoinRefusal.SHUTTING_DOWN)


def shrink_without_another_look(patches: "Patches") -> None:
    """After an ISR shrink, the high watermark advances only at the next fetch (KAFKA-13091)."""
    patches.set(IsrUpdates, "_settled", lambda _self, _partition: None)


def min_isr_nowhere(patches: "Patches") -> None:
    """``min.insync.replicas`` is checked neither before nor after an append."""

    def unfrozen(current: int, end: int, followers: Any, isr: Any, maximal: Any, _minimum: int, *rest: Any) -> int:
        return leader_high_watermark(current, end, followers, isr, maximal, 1, *rest)

    patches.set(hosted_partition, "leader_high_watermark", unfrozen)
    patches.set(Partition, "has_enough_replicas", property(lambda _self: True))


# Control requests


def stop_without_epoch(patches: "Patches") -> None:
    """A StopReplica stops a replica of a later leader epoch (KAFKA-9539)."""
    patches.set(StopReplicaHandler, "_check", lambda _self, _state: ErrorCode.NONE)


def any_controller_and_broker_epoch(patches: "Patches") -> None:
    """Neither the controller epoch nor the broker epoch of a request is checked."""
    any_controller_epoch(patches)
    any_broker_epoch(patches)


def namesake_stays(patches: "Patches") -> None:
    """A log of a deleted topic blocks the next topic with its name."""
    patches.set(admission, "set_aside_log_of_deleted_topic", lambda _manager, _state, _stamp: None)


# Clients


def acknowledge_after_role_change(patches: "Patches") -> None:
    """A write is acknowledged by the high watermark without a check of the leadership."""

    def decided(_self: DelayedProduce, waiting: Any) -> bool:
        log = waiting.partition.log
        return log is None or log.high_watermark >= waiting.required_offset

    patches.set(DelayedProduce, "_decided", decided)


def one_batch_remembered(patches: "Patches") -> None:
    """Only the producer's last batch is recognized as a duplicate."""
    real = ProducerStateManager.find_duplicate

    def find(self: ProducerStateManager, header: Any) -> Any:
        found = real(self, header)
        return found if found is None or found is self._entries[header.producer_id].batches[-1] else None

    patches.set(ProducerStateManager, "find_duplicate", find)


def earlier_batches_not_loaded(patches: "Patches") -> None:
    """A load takes the producers from the snapshot alone, which has the last batch of each."""
    real = ProducerStateManager.load
    patches.set(ProducerStateManager, "load", lambda self, data, _earlier=None: real(self, data))


def sequences_lost_at_failover(patches: "Patches") -> None:
    """Followers do not record the producers of the batches they append."""
    patches.set(LocalLog, "take_in_producer", lambda _self, *_args, **_more: None)


# Storage


def storage_goes_on(patches: "Patches") -> None:
    """Writes to a failed log directory continue (KAFKA-10778)."""
    patches.set(LogDirectory, "fail", lambda _self, _error: None)


def stop_without_sync(patches: "Patches") -> None:
    """An orderly stop writes the clean-stop marker without syncing the logs."""
    real = SimulatedDisk.sync

    def sync(self: SimulatedDisk, path: str) -> None:
        if not path.endswith(".log"):
            real(self, path)

    patches.set(SimulatedDisk, "sync", sync)


def marker_kept(patches: "Patches") -> None:
    """The clean-stop marker stays while the broker runs."""
    real = SimulatedDisk.rename

    def rename(self: SimulatedDisk, source: str, target: str) -> None:
        if not source.endswith(CLEAN_SHUTDOWN_MARKER):
            real(self, source, target)

    patches.set(SimulatedDisk, "rename", rename)


def missing_segments_unnoticed(patches: "Patches") -> None:
    """A load does not compare the segments with those of the clean stop."""
    patches.set(log_loader, "missing_records", lambda _stopped, _found: {})


def high_watermark_beyond_the_log(patches: "Patches") -> None:
    """A high watermark from a checkpoint is used even above the log end."""

    def update(self: PartitionLog, high_watermark: int) -> int:
        self.local.high_watermark = max(self.log_start_offset, high_watermark)
        return self.high_watermark

    patches.set(PartitionLog, "update_high_watermark", update)


# Deleted records


def retain_by_log_end(patches: "Patches") -> None:
    """Retention also deletes uncommitted segments."""

    def retained_from(segments: Any, config: Any, total_bytes: int, _high_watermark: int, wall_ms: int) -> int | None:
        return retention.retained_from(segments, config, total_bytes, 2**63 - 1, wall_ms)

    patches.set(partition_log, "retained_from", retained_from)


def delete_uncommitted(patches: "Patches") -> None:
    """DeleteRecords may delete up to the log end."""

    def delete(self: DeleteRecordsHandler, query: Any, result: Any) -> Any:
        topic_partition = query.topic_partition
        try:
            partition = self._hosted.lookup(topic_partition)
            log = partition.leader_log(query.current_leader_epoch)
            offset = log.log_end_offset if query.before_offset is None else query.before_offset
            partition.delete_records(min(offset, log.log_end_offset))
        except PacelineError as error:
            result.failure = failure_of(error, hint(self._hosted, topic_partition))
            return None
        return delete_records._Pending(partition, offset, result)

    patches.set(DeleteRecordsHandler, "_delete", delete)


def log_starts_not_durable(patches: "Patches") -> None:
    """Log starts are only stored in memory."""
    patches.set(LogManager, "checkpoint_log_start_offsets", lambda _self: None)


def log_start_ignored(patches: "Patches") -> None:
    """A follower keeps records that its leader deleted."""
    real = FollowerLog.append

    def append(self: FollowerLog, batches: bytes, high_watermark: int, _log_start_offset: int) -> None:
        real(self, batches, high_watermark, 0)

    patches.set(FollowerLog, "append", append)


# Full disks


def full_disk_is_a_broken_disk(patches: "Patches") -> None:
    """A write without room takes the log directory offline."""

    def error_of(self: LogDirectory, error: OSError, subject: object) -> KafkaStorageError:
        self.fail(error)
        return KafkaStorageError(f"{subject}: {error}")

    patches.set(LogDirectory, "error_of", error_of)


def shortage_never_ends(patches: "Patches") -> None:
    """A directory that was short of room stays short."""
    real = DirectorySpace.measured

    def measured(self: DirectorySpace, disk: DiskSpace, now_ms: int | None = None) -> None:
        before = self.room
        real(self, disk, now_ms)
        self.room = max(before, self.room)

    patches.set(DirectorySpace, "measured", measured)


# Leadership


def any_member_proves_a_leadership(patches: "Patches") -> None:
    """A fetch of any other ISR member proves a leadership, even if another member has become the leader."""
    real = leadership_proof.proved_ms

    def proved_ms(confirmed_ms: int, fetched_ms: Iterable[int]) -> int | None:
        newest = max(fetched_ms, default=None)
        return real(confirmed_ms, () if newest is None else (newest,))

    patches.set(hosted_partition, "proved_ms", proved_ms)


def answers_wait_for_no_proof(patches: "Patches") -> None:
    """A leader without contact answers at once if its followers have fetched recently."""

    def when_proved(
        _self: Any, _topic_partitions: Any, _asked_ms: int, _timeout_ms: int, act: Callable[[], Cancel | None]
    ) -> Cancel | None:
        return act()

    patches.set(ProofWaits, "when_proved", when_proved)
