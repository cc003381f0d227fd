"""The producer snapshot files of one log, named by the first offset they do not cover.

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
    """Snapshots in the directory of a log."""

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
        """Write a snapshot; none for offset 0. Not fsynced: its checksum tells a torn one.

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
        """Fill ``producers`` from the newest sound snapshot of ``lowest`` to ``limit``; return its offset.

        When there is none ``producers`` is empty, and ``lowest`` is returned. Unsound snapshots on the way are removed.
        ``offsets`` saves the listing where the caller knows them.

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
        """Remove snapshots beyond ``limit``; return the offsets that remain.

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
        """Remove the snapshot of one offset, if there is one.

        Raises:
            OSError: storage failed.
        """
        if self._files.exists(self._path(offset)):
            self._files.remove(self._path(offset))

    def keep_only(self, wanted: Collection[int], offsets: list[int]) -> None:
        """Of ``offsets`` remove the snapshots that are neither wanted nor the newest.

        Raises:
            OSError: storage failed.
        """
        for offset in offsets[:-1]:
            if offset not in wanted and self._files.exists(self._path(offset)):
                self._files.remove(self._path(offset))

    def _path(self, offset: int) -> str:
        return join(self._directory, f"{offset:020d}{SNAPSHOT_SUFFIX}")
