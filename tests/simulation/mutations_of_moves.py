"""Mutations of moves between log directories, for `mutants` (docs/protocol/simulator.md#mutants)."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from paceline.broker.fetcher.alter_log_dirs import AlterLogDirsFetcher
from paceline.broker.requests.fetch import FetchHandler
from paceline.log.future_logs import FutureLogs
from paceline.log.partition_log import PartitionLog
from paceline.log.segment_copy import SegmentCopy

if TYPE_CHECKING:
    from tests.simulation.mutants import Patches

_WAITS = 500
"""Looks at a complete future log before it is swapped in; there are about a hundred in a second."""


def swap_unguarded(patches: "Patches") -> None:
    """The future log replaces the current log before it has all records."""
    patches.set(FutureLogs, "is_complete", lambda self, tp, _flush_to: self._futures[tp].size_bytes > 0)


def high_watermark_forgotten(patches: "Patches") -> None:
    """The moved log begins with its log start as high watermark."""
    real = PartitionLog.take_over

    def take_over(self: PartitionLog, current: PartitionLog) -> None:
        real(self, current)
        self.update_high_watermark(0)

    patches.set(PartitionLog, "take_over", take_over)


def truncations_not_repeated(patches: "Patches") -> None:
    """A truncation of the current log leaves the future log unchanged.

    Swaps also wait for seconds, which breaks nothing, so that more truncations meet a future log.
    """
    real, calls = FutureLogs.is_complete, Counter[str]()

    def is_complete(self: FutureLogs, tp: Any, flush_to: int | None) -> bool:
        calls[self._futures[tp].path] += 1
        return calls[self._futures[tp].path] > _WAITS and real(self, tp, flush_to)

    patches.set(FutureLogs, "is_complete", is_complete)
    for name in ("truncate_to", "truncate_fully_and_start_at"):
        patches.set(PartitionLog, name, _without_future(PartitionLog.__dict__[name]))


def _without_future(real: Any) -> Any:
    def truncate(self: PartitionLog, offset: int) -> None:
        future, self.future = self.future, None
        try:
            real(self, offset)
        finally:
            self.future = future

    return truncate


def changed_segments_copied(patches: "Patches") -> None:
    """The copy of a segment is used although the logs were truncated meanwhile.

    The copies of last segments also take longer, which breaks nothing, so that more truncations meet one.
    """
    patches.set(SegmentCopy, "is_current", lambda self: not self._future.local.durability.is_over)
    real, waited = AlterLogDirsFetcher._advance, set[SegmentCopy]()

    def advance(self: AlterLogDirsFetcher, tp: Any) -> int | None:
        copy = self._copy
        is_last = copy is not None and copy.end_offset == self._current.local.segments.active.base_offset
        if copy is not None and is_last and copy.is_finished and copy not in waited:
            waited.add(copy)
            return 500
        return real(self, tp)

    patches.set(AlterLogDirsFetcher, "_advance", advance)


def old_directory_kept(patches: "Patches") -> None:
    """The swap leaves the old log in its directory."""
    real = FutureLogs.swap

    def swap(self: FutureLogs, tp: Any) -> PartitionLog:
        delete, self._delete = self._delete, lambda log: log.retire()
        try:
            return real(self, tp)
        finally:
            self._delete = delete

    patches.set(FutureLogs, "swap", swap)


def future_log_served(patches: "Patches") -> None:
    """Consumers and followers are served from the future log."""
    real = FetchHandler._readable

    def readable(*args: Any) -> Any:
        log, limit = real(*args)
        return (log if log.future is None else log.future), limit

    patches.set(FetchHandler, "_readable", readable)
