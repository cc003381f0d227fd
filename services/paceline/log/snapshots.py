"""The producer snapshot files of one log, each named after the first offset that it does not cover.

A snapshot that lacks batches has a second file beside it, with the earlier batches of each producer. It is written
before the snapshot and removed after it, so a crash leaves no snapshot without its second file.

Source: docs/protocol/log-format.md#producer-snapshots.
"""

import re
from collections.abc import Collection

from paceline.log.checkpoint import DamagedFileError
from paceline.log.files import FileKind, Files, join, read_all
from paceline.log.producer_state import ProducerStateManager
from paceline.log.segment_names import CLEANED_SUFFIX

SNAPSHOT_SUFFIX = ".snapshot"
EARLIER_SUFFIX = ".earlier-batches"
_NAME = re.compile(r"([0-9]{20})\.snapshot")


class SnapshotFiles:
    """The producer snapshots in the directory of one log."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._unsynced: dict[str, None] = {}
        self.is_paused = False
        """Whether `write` does nothing, because the producers of a future log are those of the log that it copies."""

    def offsets(self) -> list[int]:
        """Return the offsets of all snapshots, ascending.

        Raises:
            OSError: storage failed.
        """
        if not self._files.exists(self._directory):
            return []
        names = (e.name for e in self._files.list_directory(self._directory) if e.kind is FileKind.FILE)
        return [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]

    def write(self, offset: int, producers: ProducerStateManager) -> None:
        """Write a snapshot unless ``offset`` is 0; the next flush makes it durable.

        The checksum reveals an incomplete write.

        Raises:
            OSError: storage failed.
        """
        if offset > 0 and not self.is_paused:
            snapshot = producers.encode()
            earlier = producers.encode_earlier(snapshot)
            if earlier is not None:
                self._write(self._path(offset, EARLIER_SUFFIX), earlier)
            self._write(self._path(offset), snapshot)
            if earlier is None:
                self._remove(self._path(offset, EARLIER_SUFFIX))

    def unsynced(self) -> list[str]:
        """Return the files that no flush has made durable."""
        return list(self._unsynced)

    def synced(self, paths: Collection[str]) -> None:
        """Remember that files are durable."""
        for path in paths:
            self._unsynced.pop(path, None)

    def sync(self) -> None:
        """Make all snapshots durable, with the names of all files in the log's directory.

        Raises:
            OSError: storage failed.
        """
        for path in self._unsynced:
            self._files.sync(path)
        self._files.sync_directory(self._directory)
        self._unsynced.clear()

    def load_newest(
        self, producers: ProducerStateManager, lowest: int, limit: int, offsets: list[int] | None = None
    ) -> int:
        """Load ``producers`` from the newest undamaged snapshot between ``lowest`` and ``limit``; return its offset.

        If there is no such snapshot, clear ``producers`` and return ``lowest``. Damaged snapshots found on the way are
        removed, and also those whose earlier batches are damaged: an older one and the batches after it give the whole
        state. ``offsets`` are the existing snapshots; with ``None`` the directory is listed.

        Raises:
            OSError: storage failed.
        """
        for offset in reversed(self.offsets() if offsets is None else offsets):
            if not lowest <= offset <= limit:
                continue
            beside = self._path(offset, EARLIER_SUFFIX)
            earlier = read_all(self._files, beside) if self._files.exists(beside) else None
            try:
                producers.load(read_all(self._files, self._path(offset)), earlier)
            except DamagedFileError:
                self.remove(offset)
                continue
            return offset
        producers.clear()
        return lowest

    def remove_above(self, limit: int, offsets: list[int] | None = None) -> list[int]:
        """Remove snapshots above ``limit``; return the offsets of the remaining snapshots.

        Raises:
            OSError: storage failed.
        """
        kept = []
        for offset in self.offsets() if offsets is None else offsets:
            if offset > limit:
                self.remove(offset)
            else:
                kept.append(offset)
        return kept

    def put_in_place(self, offset: int) -> None:
        """Give the copy of a snapshot, in ``.cleaned`` files, its name, if there is one.

        Raises:
            OSError: storage failed.
        """
        for path in (self._path(offset, EARLIER_SUFFIX), self._path(offset)):
            if self._files.exists(path + CLEANED_SUFFIX):
                self._files.rename(path + CLEANED_SUFFIX, path)
                self._unsynced[path] = None

    def remove(self, offset: int) -> None:
        """Remove the snapshot at ``offset`` if it exists.

        Raises:
            OSError: storage failed.
        """
        self._remove(self._path(offset))
        self._remove(self._path(offset, EARLIER_SUFFIX))

    def keep_only(self, wanted: Collection[int], offsets: list[int]) -> None:
        """Remove the snapshots of ``offsets`` that are not in ``wanted``, except the newest snapshot.

        Raises:
            OSError: storage failed.
        """
        for offset in offsets[:-1]:
            if offset not in wanted:
                self.remove(offset)

    def moved_to(self, directory: str) -> None:
        """Use the files in their renamed directory."""
        self._unsynced = {join(directory, path.removeprefix(self._directory + "/")): None for path in self._unsynced}
        self._directory = directory

    def _write(self, path: str, data: bytes) -> None:
        # A file that is written again is not durable for a time, and the batches of its producers may be deleted.
        if self._files.exists(path) and read_all(self._files, path) == data:
            return
        self._files.create(path)
        self._files.append(path, data)
        self._unsynced[path] = None

    def _remove(self, path: str) -> None:
        self._unsynced.pop(path, None)
        if self._files.exists(path):
            self._files.remove(path)

    def _path(self, offset: int, suffix: str = SNAPSHOT_SUFFIX) -> str:
        return join(self._directory, f"{offset:020d}{suffix}")
