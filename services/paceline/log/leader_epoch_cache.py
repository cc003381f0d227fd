"""Map leader epochs to start offsets of one log: entries (epoch, start offset), both strictly increasing.

`LeaderEpochCache.assign` changes only memory and `LeaderEpochCache.flush` writes the file, so becoming leader costs no
I/O. A crash loses no epoch that has records: epochs above the recovery point are rebuilt from the batches, and the file
is durable before the recovery point passes an epoch. Source: docs/protocol/log-format.md#leader-epoch-cache.
"""

from bisect import bisect_right
from typing import NamedTuple

from paceline.log.checkpoint import DamagedFileError, decode_lines, encode_lines, number
from paceline.log.files import Files, read_all, write_atomically


class EpochEntry(NamedTuple):
    """An epoch and the first offset that its leader may have written."""

    epoch: int
    start_offset: int


class LeaderEpochCache:
    """The entries of one log and its ``leader-epoch-checkpoint`` file."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._version = 0
        self._durable_version = 0

    @property
    def dirty(self) -> bool:
        """Whether the file does not have the latest entries."""
        return self._version != self._durable_version

    @property
    def version(self) -> int:
        """Number of changes so far; pass it to `flushed` after the entries of this version were written."""
        return self._version

    @property
    def latest_epoch(self) -> int | None:
        """The largest epoch, ``None`` when there is no entry."""
        return self._epochs[-1] if self._epochs else None

    @property
    def entries(self) -> list[EpochEntry]:
        """All entries, ascending."""
        return [EpochEntry(epoch, start) for epoch, start in zip(self._epochs, self._starts, strict=True)]

    def load(self) -> None:
        """Read the file; a missing file means no entries.

        Raises:
            DamagedFileError: the file does not parse or is not ascending; the cache is then empty.
            OSError: the file cannot be read.
        """
        self._epochs, self._starts = [], []
        try:
            data = read_all(self._files, self._path)
        except FileNotFoundError:
            return
        self._epochs, self._starts = decode_epochs(data)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Add an entry; first remove the last entries whose epoch or start offset is not below the new entry's.

        If the last entry already has ``epoch`` and does not start later, nothing changes. A negative epoch, which
        batches written before leader epochs existed have, is ignored.
        """
        if epoch < 0:
            return
        if self._epochs and self._epochs[-1] == epoch and start_offset >= self._starts[-1]:
            return
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self._version += 1

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
        """Return (epoch, exclusive end offset) of the largest epoch not above ``epoch``, ``None`` when unknown.

        For an epoch below the first entry return (``epoch``, start offset of the first entry), so that a follower with
        only older records truncates to that offset.
        """
        if epoch < 0 or not self._epochs or epoch > self._epochs[-1]:
            return None
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        following = bisect_right(self._epochs, epoch)
        if following == 0:
            return epoch, self._starts[0]
        return self._epochs[following - 1], self._starts[following]

    def epoch_of(self, offset: int) -> int | None:
        """Return the leader epoch in which ``offset`` was written, ``None`` for an offset below the first entry."""
        following = bisect_right(self._starts, offset)
        return self._epochs[following - 1] if following else None

    def truncate_from_end(self, offset: int) -> None:
        """Remove the entries that start at or above ``offset``."""
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()
            self._version += 1

    def truncate_from_start(self, offset: int) -> None:
        """Remove the entries that start at or below ``offset``, except the last, whose start becomes ``offset``."""
        count = bisect_right(self._starts, offset)
        if count == 0 or (count == 1 and self._starts[0] == offset):
            return
        epoch = self._epochs[count - 1]
        self._epochs[:count] = [epoch]
        self._starts[:count] = [offset]
        self._version += 1

    def clear(self) -> None:
        """Remove all entries."""
        if self._epochs:
            self._epochs, self._starts = [], []
            self._version += 1

    def replace(self, other: "LeaderEpochCache") -> None:
        """Take over the entries of another cache."""
        self._epochs, self._starts = list(other._epochs), list(other._starts)
        self._version += 1

    def moved_to(self, path: str) -> None:
        """Use the file at its new path; the caller has renamed its directory."""
        self._path = path

    def encode(self) -> bytes:
        """Return the content of the file."""
        pairs = zip(self._epochs, self._starts, strict=True)
        return encode_lines(f"{epoch} {start}" for epoch, start in pairs)

    def write(self, data: bytes) -> None:
        """Replace the file durably by a result of `encode`; may run on another thread than the owner's.

        Raises:
            OSError: storage failed.
        """
        write_atomically(self._files, self._path, data)

    def mark_dirty(self) -> None:
        """Make the next flush write the file even if no entry changes, because the file is damaged."""
        self._version += 1

    def flushed(self, version: int) -> None:
        """Record that the entries of ``version`` are durable."""
        self._durable_version = max(self._durable_version, version)

    def flush(self, *, durable: bool = True) -> None:
        """Write the file if it is not current; without ``durable`` it survives a process crash but not a power loss.

        Raises:
            OSError: storage failed; the cache stays dirty.
        """
        if self.dirty:
            write_atomically(self._files, self._path, self.encode(), durable=durable)
            self._durable_version = self._version


def decode_epochs(data: bytes) -> tuple[list[int], list[int]]:
    """Return (epochs, start offsets) of a leader-epoch file.

    Raises:
        DamagedFileError: the file does not parse or is not ascending.
    """
    epochs: list[int] = []
    starts: list[int] = []
    for epoch_text, start_text in decode_lines(data, 2):
        epoch, start = number(epoch_text), number(start_text)
        if epoch < 0 or start < 0 or (epochs and (epoch <= epochs[-1] or start <= starts[-1])):
            raise DamagedFileError(f"entry {epoch} {start} is not above the one before")
        epochs.append(epoch)
        starts.append(start)
    return epochs, starts
