"""Load one log from its directory, with recovery after an unclean stop.

Damaged files do not prevent a load: indexes, snapshots and the epoch file are rebuilt from the batches, the log is
truncated at a bad batch, and unknown names are ignored and reported.
Source: docs/protocol/log-format.md#loading-a-log and #recovery.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.log.checkpoint import PARTITION_METADATA, DamagedFileError, decode_partition_metadata
from paceline.log.damage_file import GAP
from paceline.log.files import FileKind, Files, join, read_all
from paceline.log.missing_segments import SegmentSizes, gap_between, missing_records
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import MAX_INT64, BatchHeader
from paceline.log.segment import Segment
from paceline.log.segment_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    OTHER_FILES,
    SEGMENT_FILE,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from paceline.log.snapshots import EARLIER_SUFFIX, SNAPSHOT_SUFFIX
from paceline.model.errors import CorruptMessageError


@dataclass(slots=True)
class LoadedLog:
    """Findings of loading one log."""

    log: PartitionLog
    recovered: bool = False
    """Whether batches were checked after an unclean stop or because files were inconsistent."""
    truncated_bytes: int = 0
    """Bytes removed because they were not an intact batch, or followed a removed batch."""
    lost_batches: bool = False
    """Whether whole batches were removed, not only an interrupted append."""
    damage: dict[str, str] = field(default_factory=dict)
    """Descriptions of records that may be missing, by kind: `GAP` or `TRUNCATED`."""
    ignored: list[str] = field(default_factory=list)
    """Paths with unknown names, which were ignored."""
    damaged: list[str] = field(default_factory=list)
    """Paths of files that could not be read; they were rebuilt or ignored."""


def load_log(
    files: Files,
    log: PartitionLog,
    *,
    clean: bool,
    recovery_point: int | None,
    log_start_offset: int | None,
    power_lost: bool = False,
    may_have_gaps: bool = False,
    stopped_segments: SegmentSizes | None = None,
    on_loss: Callable[[], None] = lambda: None,
) -> LoadedLog:
    """Load ``log`` from its directory; after an unclean stop recover the batches from the recovery point on.

    ``recovery_point`` and ``log_start_offset`` come from the checkpoints, ``None`` when not listed. ``power_lost`` says
    that the page cache may be lost, too. A gap between segments above the recovery point then means that the end of the
    earlier segment was lost, and the later segments, which were not durable, are removed. Compaction also leaves gaps,
    so no segment is removed because of a gap with ``may_have_gaps``: the topic is or was compacted, or its settings are
    not known. ``stopped_segments`` are the log's segments at the last clean stop, if that stop has listed them.

    ``on_loss`` is called before the first whole batch is removed, so that the caller can record the loss: after the
    removal a load that was interrupted finds a sound log.

    Raises:
        OSError: storage failed.
    """
    loader = _Loader(files, log, clean, recovery_point, log_start_offset, power_lost, may_have_gaps, on_loss)
    return loader.load(stopped_segments)


def read_topic_id(files: Files, path: str) -> str | None:
    """Return the topic id in a log's directory, ``None`` when the file is missing.

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
        may_have_gaps: bool,
        on_loss: Callable[[], None],
    ) -> None:
        self._files = files
        self._on_loss = on_loss
        self._log = log
        self._may_have_gaps = may_have_gaps
        self._clean = clean
        self._recovery_point = recovery_point or 0
        self._stopped_at = recovery_point if clean else None
        """Log end offset at a clean stop, ``None`` after an unclean stop or when the checkpoint does not list it."""
        self._log_start = log_start_offset
        self._power_lost = power_lost
        self._recovered_end = 0
        self._epoch_limit = MAX_INT64
        """End of the previous batch, at which a new epoch may have begun; MAX_INT64 while it is not known."""
        self._recovered_epoch = -1
        """Leader epoch of the last batch that recovery kept."""
        self._limit = MAX_INT64
        """Exclusive limit for the offsets of the segment that is being recovered."""
        self._result = LoadedLog(log)
        self._names: set[str] = set()

    def load(self, stopped_segments: SegmentSizes | None) -> LoadedLog:
        bases = self._scan()
        self._load_epochs()
        segments = [self._log.local.new_segment(base) for base in bases]
        for segment in segments:
            segment.open()
        if stopped_segments is not None:
            self._result.damage |= missing_records(stopped_segments, {one.base_offset: one.size for one in segments})
        start = self._log_start if self._log_start is not None else (bases[0] if bases else 0)
        if not self._clean:
            first = self._first_to_recover(segments)
            self._recover_from(segments, first)
            self._index_swapped(segments[:first])
            if not self._may_have_gaps:
                self._result.damage |= gap_between(segments)
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
        """Finish or undo an interrupted compaction, remove ``.deleted`` files, return the base offsets of segments."""
        swaps, cleaned = [], []
        for name, kind in self._files.list_directory(self._log.path):
            path = join(self._log.path, name)
            match = SEGMENT_FILE.fullmatch(name)
            if kind is not FileKind.FILE or (match is not None and int(match[1]) > MAX_INT64):
                self._result.ignored.append(path)
            elif match is None:
                if OTHER_FILES.fullmatch(name) is None:
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
        """Put each compacted segment, a ``.log.swap`` file, in the place of the segments that it covers.

        A swap file is removed if a ``.cleaned`` file has the same or a smaller base offset: then the renames to
        ``.swap`` were not finished and all old segments still exist. The ``.swap`` indexes are removed and rebuilt
        later, except a transaction index, which is renamed too.
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
        """Remove the segments from ``base`` to ``end`` durably, before the segment that replaces them is renamed."""
        for name in sorted(self._names):
            if name.endswith(LOG_SUFFIX) and base <= int(name[:20]) < end:
                self._remove_name(name)
                for covered in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
                    self._remove_name(file_name(int(name[:20]), covered))
        for covered in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            # The segment at ``base`` may have indexes but no log file if the crash came between two renames.
            self._remove_name(file_name(base, covered))
        self._files.sync_directory(self._log.path)

    def _index_swapped(self, segments: list[Segment]) -> None:
        """Rebuild missing indexes of segments below the recovery point, where an interrupted swap has removed them."""
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
        """Return the offset after the last batch of a swap file."""
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
            if name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)):
                belongs = int(name[:20]) in bases
            else:
                belongs = not name.endswith(EARLIER_SUFFIX) or file_name(int(name[:20]), SNAPSHOT_SUFFIX) in self._names
            if not belongs:
                self._remove_name(name)

    def _remove_name(self, name: str) -> None:
        if name in self._names:
            self._files.remove(join(self._log.path, name))
            self._names.discard(name)

    # -- segments ----------------------------------------------------------------------------------------------

    def _first_to_recover(self, segments: list[Segment]) -> int:
        """Return the index of the segment that holds the recovery point."""
        at_or_below = sum(1 for segment in segments if segment.base_offset <= self._recovery_point)
        return max(at_or_below - 1, 0)

    def _rebuild_missing_indexes(self, segments: list[Segment]) -> None:
        for index, segment in enumerate(segments):
            names = {file_name(segment.base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)}
            damaged = segment.offset_index.damaged or segment.time_index.damaged
            if damaged or (segment.size and not names <= self._names):
                self._epoch_limit = MAX_INT64
                removed = self._recover_segment(segment)
                if removed:
                    self._recover_from(segments, index + 1, drop=True)
                    return

    def _recover_from(self, segments: list[Segment], first: int, *, drop: bool = False) -> None:
        """Recover the segments from index ``first`` on; when a segment was truncated, remove all later segments.

        With ``drop``, remove the segments from ``first`` on without recovering them.
        """
        if first == 0 and segments:
            self._epoch_limit = segments[0].base_offset if self._log_start is None else self._log_start
        for index in range(first, len(segments)):
            is_last = index + 1 == len(segments)
            end = MAX_INT64 if self._stopped_at is None else self._stopped_at
            self._limit = end if is_last else segments[index + 1].base_offset
            if drop or self._follows_a_gap(segments, index, first) or self._recover_segment(segments[index]):
                first_removed = index if drop or self._recovered_end < segments[index].base_offset else index + 1
                self._remove_segments(segments, first_removed)
                return

    def _follows_a_gap(self, segments: list[Segment], index: int, first: int) -> bool:
        """Whether a gap before the segment shows that the end of the previous segment was lost in a power loss.

        Compaction also leaves gaps, so in a compacted topic, or while the settings are not known, a gap proves nothing.
        Then the log is kept, and the gap is reported: the replica is rebuilt from its leader.
        """
        if not self._power_lost or index == first or segments[index].base_offset <= self._recovered_end:
            return False
        if self._may_have_gaps:
            text = f"has a gap at {self._recovered_end} after a loss of power, maybe not by compaction"
            self._result.damage.setdefault(GAP, text)
        return not self._may_have_gaps

    def _remove_segments(self, segments: list[Segment], first: int) -> None:
        if any(segment.size for segment in segments[first:]):
            self._lose_batches()
        for segment in reversed(segments[first:]):
            self._result.truncated_bytes += segment.size
            segment.remove()
        if segments[first:]:
            self._files.sync_directory(self._log.path)
        del segments[first:]

    def _recover_segment(self, segment: Segment) -> int:
        self._result.recovered = True
        self._recovered_end = segment.base_offset

        def before_truncation() -> None:
            # No append was in progress below the recovery point: an incomplete batch there has a damaged length.
            if self._clean or not segment.ended_in_an_append or self._recovered_end < self._recovery_point:
                self._lose_batches()

        removed = segment.recover(self._accept, before_truncation)
        self._result.truncated_bytes += removed
        return removed

    def _lose_batches(self) -> None:
        """Report, before the first removal, that whole batches are lost."""
        if not self._result.lost_batches:
            self._on_loss()
            self._result.lost_batches = True

    def _accept(self, header: BatchHeader, is_last: bool) -> bool:
        """Decide whether recovery keeps a batch, and correct the epoch cache by the batches that it keeps.

        Refuse a batch with an older epoch than the batch before it, or with offsets of the next segment: it had been
        truncated and came back because the truncation was not durable. Also refuse a batch above the end of the log at
        a clean stop.
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
            # The cache has no entries below the log start: a correction there would drop the epochs of later segments.
            first = max(header.base_offset, self._log_start or 0)
            if first <= header.last_offset and epochs.epoch_of(first) != header.leader_epoch:
                # Compaction may have removed the first batches of the epoch.
                begin = max(min(first, self._epoch_limit), self._log_start or 0)
                epochs.truncate_from_end(begin)
                epochs.assign(header.leader_epoch, begin)
        self._recovered_end = self._epoch_limit = header.last_offset + 1
        return True

    def _is_displaced(self, header: BatchHeader) -> bool:
        """Whether the base offset of a last batch after a gap is damaged and too large.

        This is so if the batch would end exactly at the recovery point without the gap: the log once ended there, and
        the epochs up to there are durable and match.
        """
        end = self._recovered_end
        if header.base_offset == end or end + header.last_offset_delta + 1 != self._recovery_point:
            return False
        return not self._may_have_gaps and self._log.epochs.epoch_of(end) == header.leader_epoch

    def _begin(self, segments: list[Segment], start: int) -> None:
        try:
            end = segments[-1].end_offset(check_last=self._clean) if segments else start
            if segments and self._stopped_at is not None and end != self._stopped_at:
                raise CorruptMessageError(
                    f"{self._log.path} ends at {end}, at the last clean stop it ended at {self._stopped_at}"
                )
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
            # Writes and removals by the previous process may be in the page cache only.
            durability.topic_id_unsynced = self._log.topic_id is not None
            durability.removals_unsynced = True
        elif self._log_start:
            # The previous process had not synced the removal of segments when it wrote its log start.
            durability.removals_unsynced = True

    def _activate(self, segment: Segment) -> None:
        """Prepare the segment for appends; if its batches are damaged, keep it whole and let reads report the error."""
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
        # Compaction may have removed the first batches of an epoch, so it may have begun where the batch before ends. A
        # follower with batches of an older epoch above that offset must be truncated to it.
        end = self._log.log_start_offset
        try:
            for segment in self._log.segments:
                for _, header in segment.headers(0):
                    epochs.assign(header.leader_epoch, min(end, header.base_offset))
                    end = header.last_offset + 1
        except CorruptMessageError as error:
            self._result.damaged.append(f"{self._log.path}: {error}")
        epochs.mark_dirty()

    def _lacks_the_first_epoch(self) -> bool:
        """Whether the cache has no epoch for the log's first batch, because its file was missing or empty."""
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
        # A snapshot above the recovery point may be of batches that are lost, but deleted records were committed.
        proved = max(self._recovery_point, log.log_start_offset)
        trusted = log.log_end_offset if self._clean else min(proved, log.log_end_offset)
        found = sorted(int(name[:20]) for name in self._names if name.endswith(SNAPSHOT_SUFFIX))
        offsets = log.snapshots.remove_above(trusted, found)
        try:
            log.local.reload_producers(log.log_end_offset, offsets)
        except CorruptMessageError:
            self._result.damaged.append(log.path)
        if len(offsets) > 1:
            log.snapshots.keep_only({segment.base_offset for segment in log.segments}, offsets)
