"""The real log with a mirror: a list of its batches, by which the checks compare replicas.

The mirror costs a few numbers per batch; the log never reads it. A batch is identified by its checksum, which covers
all fields but base offset and leader epoch; the mirror keeps a compacted batch as it was appended. A prefix is
identified by a chain of hashes over (base, end, epoch, checksum), so two replicas agree up to an offset when their
chains agree there. The mirror keeps the batches below the log start for the life of the process. A mirror that begins
later, after a restart or at a leader's log start, takes the chain at its start from the checks (`Mirror.root`).
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any, Protocol

from paceline.log.append_info import AppendInfo
from paceline.log.compaction.cleaner import CleanedSegment
from paceline.log.compaction.cleaning_task import CleaningTask
from paceline.log.compaction.log_compaction import LogCompaction
from paceline.log.directory_names import parse_future_name
from paceline.log.directory_retry import DirectoryRetry
from paceline.log.future_logs import FutureLogs
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import BatchHeader, iterate_headers
from paceline.log.retention import SegmentExtent
from paceline.log.segment import Segment
from paceline.log.storage_errors import StorageErrors
from paceline.model.errors import CorruptMessageError, LogDirFullError
from paceline.model.identifiers import TopicPartition

_CRC_AT = 17
"""Position of the checksum in a batch; reading it there is faster than parsing the header again."""


class Mirror:
    """The batches of one replica; offsets ascend, ends are exclusive."""

    __slots__ = ("bases", "chains", "crcs", "ends", "epochs", "seed", "start")

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.seed: int | None = None if start else 0
        """Chain of the batches below the start, None while it is unknown."""
        self.bases: list[int] = []
        self.ends: list[int] = []
        self.epochs: list[int] = []
        self.crcs: list[int] = []
        self.chains: list[int] = []

    @property
    def end(self) -> int:
        """Exclusive end of the last batch, the start while there is none."""
        return self.ends[-1] if self.ends else self.start

    def add(self, base: int, end: int, epoch: int, crc: int) -> int:
        """Append a batch; return the chain up to its end."""
        chain = hash((self.chains[-1] if self.chains else self.seed or 0, base, end, epoch, crc))
        self.bases.append(base)
        self.ends.append(end)
        self.epochs.append(epoch)
        self.crcs.append(crc)
        self.chains.append(chain)
        return chain

    def add_compacted(self, header: BatchHeader, originals: "Mirror") -> None:
        """Append a batch of a compacted log, after the batches that compaction removed before it, as they were
        appended.

        A batch that compaction has rewritten keeps its offsets and epoch, which identify it.
        """
        for index in range(originals.first_above(self.end), len(originals.ends)):
            base, end, epoch = originals.bases[index], originals.ends[index], originals.epochs[index]
            is_same = (base, end, epoch) == (header.base_offset, header.last_offset + 1, header.leader_epoch)
            if base < self.end or (end > header.base_offset and not is_same):
                break
            self.add(base, end, epoch, originals.crcs[index])
            if is_same:
                return
        self.add(header.base_offset, header.last_offset + 1, header.leader_epoch, header.crc)

    def begin_at(self, start: int) -> None:
        """Move the start of an empty mirror; the batches below are unknown."""
        self.start, self.seed = start, None if start else 0

    def root(self, chain: int | None) -> None:
        """Set the chain of the batches below the start, if it is known."""
        if chain is None or self.seed is not None:
            return
        self.seed = chain
        batches = zip(self.bases, self.ends, self.epochs, self.crcs, strict=True)
        self.chains = []
        for batch in batches:
            chain = hash((chain, *batch))
            self.chains.append(chain)

    def forget_below(self, start: int, chain: int) -> None:
        """Move the start to the end of a batch, with another chain below it: the batches below were deleted."""
        first = self.first_above(start)
        self.start, self.seed = start, None
        self.bases, self.ends = self.bases[first:], self.ends[first:]
        self.epochs, self.crcs = self.epochs[first:], self.crcs[first:]
        self.root(chain)

    def same_history(self, other: "Mirror") -> bool:
        """Whether both have the same end and the same batches, as far down as both reach."""
        if self.end != other.end:
            return False
        if self.seed is not None and other.seed is not None:
            return self.chain_at(self.end) == other.chain_at(other.end)
        start = max(self.start, other.start)
        return self._from(start) == other._from(start)

    def begins(self, other: "Mirror") -> bool:
        """Whether its batches are the first batches of ``other``, as far down as both reach."""
        start = max(self.start, other.start)
        own = self._from(start)
        return own == other._from(start)[: len(own)]

    def _from(self, offset: int) -> list[tuple[int, int, int, int]]:
        first = self.first_above(offset)
        return list(zip(self.bases[first:], self.ends[first:], self.epochs[first:], self.crcs[first:], strict=True))

    def first_above(self, offset: int) -> int:
        """Return the index of the first batch that ends above ``offset``."""
        return bisect_right(self.ends, offset)

    def cut(self, offset: int) -> "Mirror":
        """Remove the batches that end above ``offset`` and return them."""
        count = bisect_right(self.ends, offset)
        removed = Mirror(self.start)
        removed.seed = self.seed
        removed.bases, self.bases = self.bases[count:], self.bases[:count]
        removed.ends, self.ends = self.ends[count:], self.ends[:count]
        removed.epochs, self.epochs = self.epochs[count:], self.epochs[:count]
        removed.crcs, self.crcs = self.crcs[count:], self.crcs[:count]
        removed.chains, self.chains = self.chains[count:], self.chains[:count]
        return removed

    def chain_at(self, offset: int) -> int | None:
        """Return the chain of the batches below ``offset``, None when no batch ends there."""
        if self.seed is None:
            return None
        if offset <= self.start:
            return self.seed if offset == self.start else None
        index = bisect_right(self.ends, offset) - 1
        return self.chains[index] if index >= 0 and self.ends[index] == offset else None

    def batch_at(self, offset: int) -> tuple[int, int] | None:
        """Return (epoch, checksum) of the batch that holds ``offset``."""
        index = bisect_right(self.bases, offset) - 1
        if index < 0 or offset >= self.ends[index]:
            return None
        return self.epochs[index], self.crcs[index]

    def copy(self) -> "Mirror":
        """Return a copy."""
        twin = Mirror(self.start)
        twin.seed = self.seed
        twin.bases, twin.ends, twin.epochs = list(self.bases), list(self.ends), list(self.epochs)
        twin.crcs, twin.chains = list(self.crcs), list(self.chains)
        return twin


class LogWatcher(Protocol):
    """Receives the events of the logs of one process."""

    def appended(self, log: "ObservedLog", first: int, as_leader: bool) -> None:
        """Called after an append: the batches from index ``first`` of the mirror onwards are new."""

    def truncated(self, log: "ObservedLog", end_before: int, removed: Mirror) -> None:
        """Called after a truncation; ``removed`` has the removed batches."""

    def high_watermark_moved(self, log: "ObservedLog", before: int) -> None:
        """Called after the high watermark has changed."""

    def log_start_moved(self, log: "ObservedLog", before: int, high_watermark_before: int) -> None:
        """Called after the log start has advanced."""

    def retained(self, log: "ObservedLog", offset: int, goes: list[SegmentExtent], wall_ms: int) -> None:
        """Called before retention deletes these segments below ``offset``."""

    def originals(self, log: "ObservedLog") -> Mirror | None:
        """Return the committed batches of a compacted topic as they were appended, None for any other topic."""

    def written(self, log: "ObservedLog", data: bytes) -> None:
        """Called before a leader appends this batch."""

    def replaces(self, log: "ObservedLog", cleaned: CleanedSegment) -> None:
        """Called before a compacted segment replaces others."""

    def replaced(self, log: "ObservedLog") -> None:
        """Called after a compacted segment has replaced others."""

    def set_aside(self, log: "ObservedLog") -> None:
        """Called after the log was set aside."""

    def deleted(self, log: "ObservedLog") -> None:
        """Called before the log is deleted."""

    def moved(self, old: "ObservedLog", log: "ObservedLog") -> None:
        """Called after ``log`` in another directory has replaced the log ``old``."""


class ObservedLog(PartitionLog):
    """A `PartitionLog` with a mirror; reports to a watcher."""

    watcher: LogWatcher | None = None
    mirror: Mirror

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.compaction = _ObservedCompaction(self, self._storage, self._steps)

    def begin_with(self, segments: list[Segment], log_start_offset: int, recovery_point: int) -> None:
        super().begin_with(segments, log_start_offset, recovery_point)
        self.mirror = Mirror(self.log_start_offset)
        if parse_future_name(self.path.rpartition("/")[2]) is None:
            self.watcher = self._files.watcher  # type: ignore[attr-defined]

    def rebuild_mirror(self) -> None:
        """Read the mirror from the segments, after a load."""
        headers: list[BatchHeader] = []
        try:
            for segment in self.local.segments:
                headers.extend(header for _, header in segment.headers(0))
        except CorruptMessageError:
            pass  # The mirror ends before the damaged batch.
        originals = self._originals()
        start = headers[0].base_offset if headers else self.log_start_offset
        self.mirror = Mirror(start if originals is None else min(start, self.log_start_offset))
        self._note_all(headers)

    def append_as_leader(self, data: bytes, leader_epoch: int, now_ms: int) -> AppendInfo:
        if self.watcher is not None:
            # Called before the append: a process that dies during the append may have written the batch.
            self.watcher.written(self, data)
        info = super().append_as_leader(data, leader_epoch, now_ms)
        if not info.duplicate:
            first = len(self.mirror.ends)
            crc = int.from_bytes(data[_CRC_AT : _CRC_AT + 4], "big")
            self.mirror.add(info.base_offset, info.last_offset + 1, leader_epoch, crc)
            if self.watcher is not None:
                self.watcher.appended(self, first, True)
        return info

    def append_as_follower(self, data: bytes | memoryview, now_ms: int | None = None) -> AppendInfo | None:
        try:
            info = super().append_as_follower(data, now_ms)
        except LogDirFullError:
            taken = [
                one for _, one in iterate_headers(data) if self.mirror.end < one.last_offset + 1 <= self.log_end_offset
            ]
            if taken:
                self._note_followed(taken)
            raise
        if info is not None:
            self._note_followed(one for _, one in iterate_headers(data) if one.last_offset <= info.last_offset)
        return info

    def _note_followed(self, headers: Iterable[BatchHeader]) -> None:
        headers, first = list(headers), len(self.mirror.ends)
        if not first and headers[0].base_offset < self.mirror.start:
            self.mirror.begin_at(headers[0].base_offset)
        self._note_all(headers)
        if self.watcher is not None:
            self.watcher.appended(self, first, False)

    def update_high_watermark(self, high_watermark: int) -> int:
        before = self.high_watermark
        after = super().update_high_watermark(high_watermark)
        if after != before and self.watcher is not None:
            self.watcher.high_watermark_moved(self, before)
        return after

    def increment_log_start_offset(self, offset: int) -> bool:
        before, high_watermark = self.log_start_offset, self.high_watermark
        moved = super().increment_log_start_offset(offset)
        if moved and self.watcher is not None:
            self.watcher.log_start_moved(self, before, high_watermark)
            if self.high_watermark != high_watermark:
                self.watcher.high_watermark_moved(self, high_watermark)
        return moved

    def retained_from(self, wall_ms: int) -> int | None:
        offset = super().retained_from(wall_ms)
        if offset is not None and self.watcher is not None:
            # Pass only segments to delete, which were just read: reading others may find damage that the log has not
            # found.
            extents = self.local.segments.extents(self.log_end_offset)
            self.watcher.retained(self, offset, list(takewhile(lambda one: one.end_offset <= offset, extents)), wall_ms)
        return offset

    def truncate_to(self, offset: int) -> None:
        end, high_watermark = self.log_end_offset, self.high_watermark
        super().truncate_to(offset)
        removed = self.mirror.cut(self.log_end_offset)
        if removed.ends and self.mirror.end < self.log_end_offset:
            # An own batch contains the leader's log start: its remaining records are below the log start.
            self.mirror = Mirror(self.log_end_offset)
        self._after_cut(end, high_watermark, removed)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        end, high_watermark = self.log_end_offset, self.high_watermark
        super().truncate_fully_and_start_at(offset)
        removed, self.mirror = self.mirror, Mirror(offset)
        self._after_cut(end, high_watermark, removed)

    def beyond_the_end(self) -> list[str]:
        """Describe each producer entry and each snapshot above the log end."""
        end = self.log_end_offset
        found = [
            f"producer {entry.producer_id} at {batch.last_offset}"
            for entry in self.producers.entries
            for batch in entry.batches
            if batch.last_offset >= end
        ]
        return found + [f"snapshot {offset}" for offset in self.snapshots.offsets() if offset > end]

    def _after_cut(self, end_before: int, high_watermark_before: int, removed: Mirror) -> None:
        if self.watcher is None:
            return
        if self.log_end_offset != end_before:
            self.watcher.truncated(self, end_before, removed)
        if self.high_watermark != high_watermark_before:
            self.watcher.high_watermark_moved(self, high_watermark_before)

    def _note_all(self, headers: Iterable[BatchHeader]) -> None:
        originals = self._originals()
        for header in headers:
            if originals is not None:
                self.mirror.add_compacted(header, originals)
            else:
                self.mirror.add(header.base_offset, header.last_offset + 1, header.leader_epoch, header.crc)

    def _originals(self) -> Mirror | None:
        return None if self.watcher is None else self.watcher.originals(self)


class _ObservedCompaction(LogCompaction):
    """Reports each compacted segment to the watcher of the log."""

    __slots__ = ("_observed",)

    def __init__(self, log: ObservedLog, storage: StorageErrors, steps: StorageErrors) -> None:
        super().__init__(log.local, storage, steps)
        self._observed = log

    def replace_segments(self, task: CleaningTask, cleaned: CleanedSegment) -> list[str]:
        watcher = self._observed.watcher if task.is_current() else None
        if watcher is not None:
            watcher.replaces(self._observed, cleaned)
        removed = super().replace_segments(task, cleaned)
        if watcher is not None:
            watcher.replaced(self._observed)
        return removed


class ObservedLogManager(LogManager):
    """The real log manager, which creates and loads `ObservedLog`s."""

    log_class = ObservedLog

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.futures.swap = self._swap  # type: ignore[method-assign]
        self.on_directory_returned: Callable[[], None] = lambda: None

    def _swap(self, tp: TopicPartition) -> PartitionLog:
        old = self.get(tp)
        log = FutureLogs.swap(self.futures, tp)
        assert isinstance(old, ObservedLog) and isinstance(log, ObservedLog)
        log.watcher = old.watcher
        log.rebuild_mirror()
        if log.watcher is not None:
            log.watcher.moved(old, log)
        return log

    def finish_retry(self, retry: DirectoryRetry) -> None:
        super().finish_retry(retry)
        for log in retry.loader.logs.values():
            assert isinstance(log, ObservedLog)
            log.rebuild_mirror()
        self.on_directory_returned()

    def delete(self, tp: TopicPartition) -> None:
        log = self.get(tp)
        super().delete(tp)
        if isinstance(log, ObservedLog) and log.watcher is not None:
            log.watcher.deleted(log)

    def set_log_aside(self, tp: TopicPartition, why: str) -> str:
        log = self.get(tp)
        path = super().set_log_aside(tp, why)
        if isinstance(log, ObservedLog) and log.watcher is not None:
            log.watcher.set_aside(log)
        return path

    def observed_logs(self) -> list[ObservedLog]:
        """Return all logs."""
        return [log for log in self.all_logs() if isinstance(log, ObservedLog)]
