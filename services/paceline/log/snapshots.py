"""The producer snapshot files of one log, each named after the first offset that it does not cover.

Source: docs/protocol/log-format.md#producer-snapshots.
"""

import re
from collections.abc import Collection

from paceline.log.checkpoint import DamagedFileError
from paceline.log.files import FileKind, Files, join, read_all
from paceline.log.producer_state import ProducerStateManager

SNAPSHOT_SUFFIX = ".snapshot"
_NAME = re.compile(r"([0-9]{20})\.snapshot")


class SnapshotFiles:
    """The producer snapshots in the directory of one log."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory

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
        """Write a snapshot unless ``offset`` is 0. It is not fsynced: the checksum reveals an incomplete write.

        Raises:
            OSError: storage failed.
        """
        if offset > 0:
            path = self._path(offset)
            self._files.create(path)
            self._files.append(path, producers.encode())

    def load_newest(
        self, producers: ProducerStateManager, lowest: int, limit: int, offsets: list[int] | None = None
    ) -> int:
        """Load ``producers`` from the newest undamaged snapshot between ``lowest`` and ``limit``; return its offset.

        If there is no such snapshot, clear ``producers`` and return ``lowest``. Damaged snapshots found on the way are
        removed. ``offsets`` are the existing snapshots; with ``None`` the directory is listed.

        Raises:
            OSError: storage failed.
        """
        for offset in reversed(self.offsets() if offsets is None else offsets):
            if not lowest <= offset <= limit:
                continue
            try:
                producers.load(read_all(self._files, self._path(offset)))
            except DamagedFileError:
                self._files.remove(self._path(offset))
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
                self._files.remove(self._path(offset))
            else:
                kept.append(offset)
        return kept

    def remove(self, offset: int) -> None:
        """Remove the snapshot at ``offset`` if it exists.

        Raises:
            OSError: storage failed.
        """
        if self._files.exists(self._path(offset)):
            self._files.remove(self._path(offset))

    def keep_only(self, wanted: Collection[int], offsets: list[int]) -> None:
        """Remove the snapshots of ``offsets`` that are not in ``wanted``, except the newest snapshot.

        Raises:
            OSError: storage failed.
        """
        for offset in offsets[:-1]:
            if offset not in wanted and self._files.exists(self._path(offset)):
                self._files.remove(self._path(offset))

    def _path(self, offset: int) -> str:
        return join(self._directory, f"{offset:020d}{SNAPSHOT_SUFFIX}")
