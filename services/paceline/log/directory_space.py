"""`DirectorySpace`: decide from the free bytes of its disk which appends a log directory takes.

A directory is ROOMY, SHORT or FULL. SHORT begins below the limit (`log.dir.min.free.bytes`) and refuses the records of
producers; followers still copy records, because a follower that stops costs the partition an in-sync replica. FULL
begins below the reserve, a quarter of the limit, which is kept for checkpoints, retention and compaction; it refuses
all records. Each state ends at one and a half times the free bytes at which it begins.

A file operation without room (ENOSPC) means FULL at once, whatever the measured bytes say: a quota or the number of
inodes may be exhausted. Appends are tried again after a pause.

Source: docs/protocol/log-format.md#full-disk.
"""

from enum import IntEnum
from typing import Final

from paceline.log.files import DiskSpace
from paceline.model.errors import LogDirFullError

DEFAULT_MIN_FREE_BYTES: Final = 1 << 30
DEFAULT_MIN_FREE_DIVISOR: Final = 20
"""By default the limit is 1 GiB, or a twentieth of a file system of less than 20 GiB."""
_RESERVE_DIVISOR: Final = 4
_RETRY_MS: Final = 10_000
"""Pause after an operation without room, if enough bytes seem to be free."""


class Room(IntEnum):
    """The appends for which a log directory has room; a larger number means less room."""

    ROOMY = 1
    SHORT = 2
    FULL = 3


class DirectorySpace:
    """Free space of one log directory. Only the owner of the logs calls the methods, except `note_no_room`."""

    def __init__(self, path: str, min_free_bytes: int | None = None) -> None:
        """``min_free_bytes`` is the limit; with ``None`` it is the default, with 0 only an error means FULL."""
        self._path = path
        self._min_free_bytes = min_free_bytes
        self.disk: DiskSpace | None = None
        """The last measurement."""
        self.room = Room.ROOMY
        self._next_measure_bytes = 0
        """Bytes that may be appended before the next measurement."""
        self._no_room = False
        """Whether an operation found no room since the last measurement."""
        self._retry_at_ms: int | None = None
        """Time until which the directory stays FULL after an operation without room."""

    @property
    def limit_bytes(self) -> int:
        """Free bytes below which producers' records are refused; 0 before the first measurement."""
        if self._min_free_bytes is not None:
            return self._min_free_bytes
        if self.disk is None:
            return 0
        return min(DEFAULT_MIN_FREE_BYTES, self.disk.total_bytes // DEFAULT_MIN_FREE_DIVISOR)

    @property
    def reserve_bytes(self) -> int:
        """Free bytes below which all records are refused."""
        return self.limit_bytes // _RESERVE_DIVISOR

    def measured(self, disk: DiskSpace, now_ms: int | None = None) -> None:
        """Decide the state from a measurement. Only one with ``now_ms``, monotonic, can end the pause after ENOSPC."""
        self.disk = disk
        limit, reserve = self.limit_bytes, self.reserve_bytes
        if now_ms is not None:
            if self._no_room:
                self._no_room, self._retry_at_ms = False, now_ms + _RETRY_MS
            elif self._retry_at_ms is not None and now_ms >= self._retry_at_ms:
                self._retry_at_ms = None
        is_paused = self._no_room or self._retry_at_ms is not None
        if is_paused or disk.free_bytes < _threshold(reserve, self.room is Room.FULL):
            self.room = Room.FULL
        elif disk.free_bytes < _threshold(limit, self.room is not Room.ROOMY):
            self.room = Room.SHORT
        else:
            self.room = Room.ROOMY
        self._next_measure_bytes = disk.free_bytes - (limit if self.room is Room.ROOMY else reserve)

    def note_append(self, size: int) -> bool:
        """Count appended bytes; return whether they may have changed the state, so that a measurement is due."""
        if self.disk is None or self.room is Room.FULL:
            return False
        self._next_measure_bytes -= size
        return self._next_measure_bytes < 0

    def note_no_room(self) -> None:
        """Make the directory FULL because a file operation found no room; any thread may call this."""
        self._no_room = True
        self.room = Room.FULL

    def check(self, *, uses_reserve: bool, size: int = 0) -> None:
        """Refuse an append that the state does not allow; ``uses_reserve`` is for all but the records of producers.

        Also refuse one of ``size`` bytes after which producers' records would be refused.

        Raises:
            LogDirFullError: nothing may be appended at present.
        """
        does_not_fit = size and self.disk is not None and self.disk.free_bytes - size < self.limit_bytes
        if self.room is Room.FULL or (self.room is Room.SHORT and not uses_reserve) or does_not_fit:
            raise LogDirFullError(self.description())

    def description(self) -> str:
        """Return disk, directory and bytes as a text for an operator."""
        if self.disk is None:
            return f"the disk of log directory {self._path} is full"
        free, total, mount_point = self.disk
        limit = self.limit_bytes
        return (
            f"disk {mount_point} of log directory {self._path} has {free} of {total} bytes free, "
            f"log.dir.min.free.bytes is {limit}, and produce continues at {_threshold(limit, is_below=True)}"
        )


def _threshold(begins_bytes: int, is_below: bool) -> int:
    """Return the free bytes at which a state begins, or ends if it has begun."""
    return begins_bytes + begins_bytes // 2 if is_below else begins_bytes
