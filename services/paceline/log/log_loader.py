"""Load one log from its directory, with recovery after an unclean stop.

No content of the directory stops a start: indexes, snapshots and the epoch file are derived from the batches and
rebuilt from them, a bad batch ends the log, and unknown names are left alone and reported.
Source: docs/protocol/log-format.md#loading-a-log and #recovery.
"""

import re
from dataclasses import dataclass, field

from paceline.log.checkpoint import PARTITION_METADATA, DamagedFileError, decode_partition_metadata
from paceline.log.files import FileKind, Files, join, read_all
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import MAX_INT64, BatchHeader
from paceline.log.segment import Segment
from paceline.log.segment_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from paceline.log.snapshots import SNAPSHOT_SUFFIX
from paceline.model.errors import CorruptMessageError

_SEGMENT_FILE = re.compile(r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.cleaned|\.swap|\.deleted)?")
_OTHER_FILES = re.compile(r"(leader-epoch-checkpoint|partition\.metadata)(\.tmp)?")


@dataclass(slots=True)
class LoadedLog:
    """Findings of loading one log."""

    log: PartitionLog
    recovered: bool = False
    """Whether batches were checked because of an unclean stop or inconsistent files."""
    truncated_bytes: int = 0
    """Bytes cut because they were no sound batch."""
    lost_batches: bool = False
    """Whether whole batches were among them, not merely an append that was interrupted."""
    ignored: list[str] = field(default_factory=list)
    """Paths that were left alone."""
    damaged: list[str] = field(default_factory=list)
    """Paths of files that could not be read and were done without."""


def load_log(
    files: Files,
    log: PartitionLog,
    *,
    clean: bool,
    recovery_point: int | None,
    log_start_offset: int | None,
    power_lost: bool = False,
    settings_known: bool = True,
) -> LoadedLog:
    """Load ``log`` from its directory, recovering everything after the recovery point unless the stop was clean.

    ``recovery_point`` and ``log_start_offset`` come from the checkpoints, ``None`` when not listed. ``power_lost``
    says that the page cache may be gone too: then a gap between segments after the recovery point is taken for the
    lost end of the earlier segment, and the segments after it are dropped; they were not durable. Compaction leaves
    gaps, too: nothing is dropped when the topic is compacted, or when ``settings_known`` says that it may be.

    Raises:
        OSError: storage failed.
    """
    return _Loader(files, log, clean, recovery_point, log_start_offset, power_lost, settings_known).load()


def read_topic_id(files: Files, path: str) -> str | None:
    """Return the topic id in a log's directory, ``None`` when there is no file.

    Raises:
        DamagedFileError: the file does not parse.
        OSError: storage failed.
    """
    try:
        data = read_all(files, join(path, PARTITION_METADATA))
    except FileNotFoundError:
        return None
    return decode_partition_metadata(data)


class _Loader:
    def __init__(
        self,
        files: Files,
        log: PartitionLog,
        clean: bool,
        recovery_point: int | None,
        log_start_offset: int | None,
        power_lost: bool,
        settings_known: bool,
    ) -> None:
        self._files = files
        self._log = log
        self._may_have_gaps = log.config.compacts or not settings_known
        self._clean = clean
        self._recovery_point = recovery_point or 0
        self._stopped_at = recovery_point if clean else None
        """Where the log ended at a clean stop, ``None`` when that is not known."""
        self._log_start = log_start_offset
        self._power_lost = power_lost
        self._recovered_end = 0
        self._recovered_epoch = -1
        self._limit = MAX_INT64
        self._result = LoadedLog(log)
        self._names: set[str] = set()

    def load(self) -> LoadedLog:
        bases = self._scan()
        self._load_epochs()
        segments = [self._log.local.new_segment(base) for base in bases]
        for segment in segments:
            segment.open()
        start = self._log_start if self._log_start is not None else (bases[0] if bases else 0)
        if not self._clean:
            first = self._first_to_recover(segments)
            self._recover_from(segments, first)
            self._index_swapped(segments[:first])
        else:
            self._rebuild_missing_indexes(segments)
        self._begin(segments, start)
        self._rebuild_epochs_if_damaged()
        self._log.epochs.truncate_from_end(self._log.log_end_offset)
        self._log.epochs.truncate_from_start(self._log.log_start_offset)
        self._load_producers()
        return self._result

    # -- files -------------------------------------------------------------------------------------------------

    def _scan(self) -> list[int]:
        """Finish or undo interrupted cleaning and deletion; return the base offsets of the segments."""
        swaps, cleaned = [], []
        for name, kind in self._files.list_directory(self._log.path):
            path = join(self._log.path, name)
            match = _SEGMENT_FILE.fullmatch(name)
            if kind is not FileKind.FILE or (match is not None and int(match[1]) > MAX_INT64):
                self._result.ignored.append(path)
            elif match is None:
                if _OTHER_FILES.fullmatch(name) is None:
                    self._result.ignored.append(path)
            elif match[3] == DELETED_SUFFIX:
                self._files.remove(path)
            elif match[3] == CLEANED_SUFFIX:
                cleaned.append(int(match[1]))
                self._files.remove(path)
            elif match[3] == SWAP_SUFFIX:
                swaps.append((int(match[1]), match[2], path))
            else:
                self._names.add(name)
        self._finish_swaps(swaps, min(cleaned, default=None))
        bases = sorted(int(name[:20]) for name in self._names if name.endswith(LOG_SUFFIX))
        self._remove_orphans(set(bases))
        return bases

    def _finish_swaps(self, swaps: list[tuple[int, str, str]], smallest_cleaned: int | None) -> None:
        """Let each compacted segment, a ``.log.swap``, replace the segments it covers.

        With a ``.cleaned`` file of the same or a smaller base offset it is void: the old segments are all there. Its
        indexes are made again, but for the transaction index, which may be renamed after the log file.
        """
        kept = []
        for base, suffix, path in swaps:
            if smallest_cleaned is not None and base >= smallest_cleaned:
                self._files.remove(path)
                continue
            if suffix in (LOG_SUFFIX, TXN_INDEX_SUFFIX):
                kept.append((base, suffix, path))
            else:
                self._files.remove(path)
        for base, suffix, path in sorted(kept, key=lambda swap: swap[1] == TXN_INDEX_SUFFIX):
            if suffix == LOG_SUFFIX:
                self._remove_covered(base, self._end_of_file(path, base))
            target = file_name(base, suffix)
            self._files.rename(path, join(self._log.path, target))
            self._names.add(target)

    def _remove_covered(self, base: int, end: int) -> None:
        """Remove the segments from ``base`` to ``end``, for good before one that covers them takes their place."""
        for name in sorted(self._names):
            if name.endswith(LOG_SUFFIX) and base <= int(name[:20]) < end:
                self._remove_name(name)
                for covered in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
                    self._remove_name(file_name(int(name[:20]), covered))
        for covered in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            # Its log file may have been renamed already.
            self._remove_name(file_name(base, covered))
        self._files.sync_directory(self._log.path)

    def _index_swapped(self, segments: list[Segment]) -> None:
        """Make the indexes of segments that an interrupted swap has left without them; recovery does not come here."""
        for segment in segments:
            names = {file_name(segment.base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)}
            if not segment.size or names <= self._names:
                continue
            try:
                segment.rebuild_indexes()
            except CorruptMessageError as error:
                self._result.damaged.append(f"{segment.log_path}: {error}")
            else:
                segment.release()

    def _end_of_file(self, path: str, base: int) -> int:
        """Return the offset behind the last batch of a swap file."""
        segment = self._log.local.new_segment(base)
        segment.log_path = path
        segment.size = self._files.size(path)
        end = base + 1
        try:
            for found in segment.headers(0):
                end = found.header.last_offset + 1
        except CorruptMessageError:
            pass
        return end

    def _remove_orphans(self, bases: set[int]) -> None:
        for name in sorted(self._names):
            if name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)) and int(name[:20]) not in bases:
                self._remove_name(name)

    def _remove_name(self, name: str) -> None:
        if name in self._names:
            self._files.remove(join(self._log.path, name))
            self._names.discard(name)

    # -- segments ----------------------------------------------------------------------------------------------

    def _first_to_recover(self, segments: list[Segment]) -> int:
        """Index of the segment that holds the recovery point."""
        at_or_below = sum(1 for segment in segments if segment.base_offset <= self._recovery_point)
        return max(at_or_below - 1, 0)

    def _rebuild_missing_indexes(self, segments: list[Segment]) -> None:
        for index, segment in enumerate(segments):
            names = {file_name(segment.base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)}
            damaged = segment.offset_index.damaged or segment.time_index.damaged
            if damaged or (segment.size and not names <= self._names):
                removed = self._recover_segment(segment)
                if removed:
                    self._recover_from(segments, index + 1, drop=True)
                    return

    def _recover_from(self, segments: list[Segment], first: int, *, drop: bool = False) -> None:
        """Recover segments from index ``first`` on; behind the first one that was cut, all are removed."""
        for index in range(first, len(segments)):
            is_last = index + 1 == len(segments)
            end = MAX_INT64 if self._stopped_at is None else self._stopped_at
            self._limit = end if is_last else segments[index + 1].base_offset
            if drop or self._follows_a_gap(segments, index, first) or self._recover_segment(segments[index]):
                behind = index if drop or self._recovered_end < segments[index].base_offset else index + 1
                self._remove_segments(segments, behind)
                return

    def _follows_a_gap(self, segments: list[Segment], index: int, first: int) -> bool:
        """Whether the end of the segment before was lost. Compaction leaves gaps as well, so there it does not tell."""
        if not self._power_lost or self._may_have_gaps or index == first:
            return False
        return segments[index].base_offset > self._recovered_end

    def _remove_segments(self, segments: list[Segment], first: int) -> None:
        for segment in reversed(segments[first:]):
            self._result.truncated_bytes += segment.size
            self._result.lost_batches |= segment.size > 0
            segment.remove()
        if segments[first:]:
            self._files.sync_directory(self._log.path)
        del segments[first:]

    def _recover_segment(self, segment: Segment) -> int:
        self._result.recovered = True
        self._recovered_end = segment.base_offset
        removed = segment.recover(self._accept)
        self._result.truncated_bytes += removed
        # Below the recovery point no append was in progress: a cut-off batch there has a wrong length.
        was_whole = self._clean or not segment.ended_in_an_append or self._recovered_end < self._recovery_point
        self._result.lost_batches |= removed > 0 and was_whole
        return removed

    def _accept(self, header: BatchHeader, is_last: bool) -> bool:
        """Let the batches have the last word about epochs.

        One from an older epoch than its forerunner's, or that reaches into the next segment, was truncated away once
        and came back because the truncation was not durable: it is refused. So is one behind where the log was stopped.
        """
        if header.last_offset >= self._limit:
            return False
        if header.leader_epoch < self._recovered_epoch:
            return False
        if is_last and self._is_displaced(header):
            return False
        if header.leader_epoch >= 0:
            self._recovered_epoch = header.leader_epoch
            epochs = self._log.epochs
            # Below the log start the cache knows nothing; to correct it there would cost the epochs of later segments.
            first = max(header.base_offset, self._log_start or 0)
            if first <= header.last_offset and epochs.epoch_of(first) != header.leader_epoch:
                epochs.truncate_from_end(first)
                epochs.assign(header.leader_epoch, first)
        self._recovered_end = header.last_offset + 1
        return True

    def _is_displaced(self, header: BatchHeader) -> bool:
        """Whether a last batch with a gap in front belongs there, and its offset has become too large.

        The log ended at the recovery point once, its epochs were durable before, and there the batch would end.
        """
        end = self._recovered_end
        if header.base_offset == end or end + header.last_offset_delta + 1 != self._recovery_point:
            return False
        return not self._may_have_gaps and self._log.epochs.epoch_of(end) == header.leader_epoch

    def _begin(self, segments: list[Segment], start: int) -> None:
        try:
            end = segments[-1].end_offset(check_last=self._clean) if segments else start
            if segments and self._stopped_at is not None and end != self._stopped_at:
                raise CorruptMessageError(f"{self._log.path} ends at {end}, it was stopped at {self._stopped_at}")
        except CorruptMessageError:
            self._recover_from(segments, len(segments) - 1)
            end = segments[-1].end_offset() if segments else start
        if segments and end < start:
            for segment in reversed(segments):
                segment.remove()
            segments = []
        if segments:
            self._activate(segments[-1])
        recovery_point = MAX_INT64 if self._clean else self._recovery_point
        self._log.begin_with(segments, start, recovery_point)
        durability = self._log.local.durability
        if not self._clean:
            # The page cache alone may hold the writes and removals of the last process.
            durability.topic_id_unsynced = self._log.topic_id is not None
            durability.removals_unsynced = True
        elif self._log_start:
            # The last process did not know whether the segments it removed stay removed.
            durability.removals_unsynced = True

    def _activate(self, segment: Segment) -> None:
        """Prepare for appends. Damage in front of the end costs no sound batch: reads and appends report it."""
        try:
            segment.activate()
        except CorruptMessageError:
            self._result.damaged.append(segment.log_path)
            segment.load_indexes()

    # -- derived state -----------------------------------------------------------------------------------------

    def _load_epochs(self) -> None:
        self._epochs_damaged = False
        try:
            self._log.epochs.load()
        except DamagedFileError:
            self._epochs_damaged = True

    def _rebuild_epochs_if_damaged(self) -> None:
        if not self._epochs_damaged and not self._lacks_the_first_epoch():
            return
        self._result.damaged.append(join(self._log.path, "leader-epoch-checkpoint"))
        epochs = self._log.epochs
        epochs.clear()
        try:
            for segment in self._log.segments:
                for _, header in segment.headers(0):
                    epochs.assign(header.leader_epoch, header.base_offset)
        except CorruptMessageError as error:
            self._result.damaged.append(f"{self._log.path}: {error}")
        epochs.mark_dirty()

    def _lacks_the_first_epoch(self) -> bool:
        """Whether the cache does not know the log's first batch: its file was missing or empty, which says nothing."""
        log = self._log
        if not log.segments or log.epochs.epoch_of(max(log.segments[0].base_offset, log.log_start_offset)) is not None:
            return False
        try:
            header = next((header for _, header in log.segments[0].headers(0)), None)
        except CorruptMessageError:
            return False
        return header is not None and header.leader_epoch >= 0

    def _load_producers(self) -> None:
        log = self._log
        trusted = log.log_end_offset if self._clean else min(self._recovery_point, log.log_end_offset)
        found = sorted(int(name[:20]) for name in self._names if name.endswith(SNAPSHOT_SUFFIX))
        offsets = log.snapshots.remove_above(trusted, found)
        try:
            log.local.reload_producers(log.log_end_offset, offsets)
        except CorruptMessageError:
            self._result.damaged.append(log.path)
        if len(offsets) > 1:
            log.snapshots.keep_only({segment.base_offset for segment in log.segments}, offsets)
