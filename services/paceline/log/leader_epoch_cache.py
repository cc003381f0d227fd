"""Map leader epochs to offsets of one log: entries (epoch, start offset), both strictly increasing.

An assignment changes memory only and marks the cache dirty; `flush` writes the file. Becoming leader therefore costs
no I/O. Nothing is lost by that: epochs with records are rebuilt from the batches after the recovery point, and the
file is made durable before the recovery point passes. Source: docs/protocol/log-format.md#leader-epoch-cache.
"""

from bisect import bisect_right
from typing import NamedTuple

from paceline.log.checkpoint import DamagedFileError, decode_lines, encode_lines, number
from paceline.log.files import Files, read_all, write_atomically


class EpochEntry(NamedTuple):
    """An epoch and the first offset it may have written."""

    epoch: int
    start_offset: int


class LeaderEpochCache:
    """The entries of one log, kept in a ``leader-epoch-checkpoint`` file."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._version = 0
        self._durable_version = 0

    @property
    def dirty(self) -> bool:
        """Whether memory knows more than the file."""
        return self._version != self._durable_version

    @property
    def version(self) -> int:
        """Number of changes so far; hand it to `flushed` with the content that was written."""
        return self._version

    @property
    def latest_epoch(self) -> int | None:
        """The largest epoch, ``None`` when there is none."""
        return self._epochs[-1] if self._epochs else None

    @property
    def entries(self) -> list[EpochEntry]:
        """All entries, ascending."""
        return [EpochEntry(epoch, start) for epoch, start in zip(self._epochs, self._starts, strict=True)]

    def load(self) -> None:
        """Read the file; a missing one means no entries.

        Raises:
            DamagedFileError: it does not parse, or is not ascending; the cache is empty then.
            OSError: it cannot be read.
        """
        self._epochs, self._starts = [], []
        try:
            data = read_all(self._files, self._path)
        except FileNotFoundError:
            return
        self._epochs, self._starts = decode_epochs(data)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that ``epoch`` starts at ``start_offset``; contradicting entries at the end give way.

        An epoch that is already the last one keeps its earlier start. Negative epochs (batches from before
        epochs) are not noted.
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

        For an epoch below the first entry the answer is (``epoch``, start of the first), so a follower that only
        has older data truncates to where the known history begins.
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
        """Return the epoch that wrote ``offset``, ``None`` below the first entry."""
        following = bisect_right(self._starts, offset)
        return self._epochs[following - 1] if following else None

    def truncate_from_end(self, offset: int) -> None:
        """Drop the entries that start at or beyond ``offset``."""
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()
            self._version += 1

    def truncate_from_start(self, offset: int) -> None:
        """Drop the entries that start at or before ``offset``, keeping the last of them rewritten to ``offset``."""
        count = bisect_right(self._starts, offset)
        if count == 0 or (count == 1 and self._starts[0] == offset):
            return
        epoch = self._epochs[count - 1]
        self._epochs[:count] = [epoch]
        self._starts[:count] = [offset]
        self._version += 1

    def clear(self) -> None:
        """Forget everything."""
        if self._epochs:
            self._epochs, self._starts = [], []
            self._version += 1

    def encode(self) -> bytes:
        """Return the content of the file."""
        pairs = zip(self._epochs, self._starts, strict=True)
        return encode_lines(f"{epoch} {start}" for epoch, start in pairs)

    def write(self, data: bytes) -> None:
        """Replace the file durably with the result of `encode`; safe on another thread than the owner's.

        Raises:
            OSError: storage failed.
        """
        write_atomically(self._files, self._path, data)

    def mark_dirty(self) -> None:
        """Have the next flush write the file even if nothing changed: the file itself is bad."""
        self._version += 1

    def flushed(self, version: int) -> None:
        """Note that the content of ``version`` is durable now."""
        self._durable_version = max(self._durable_version, version)

    def flush(self, *, durable: bool = True) -> None:
        """Write the file when memory knows more; without ``durable`` it survives a crash of the process only.

        Raises:
            OSError: storage failed; the cache stays dirty.
        """
        if self.dirty:
            write_atomically(self._files, self._path, self.encode(), durable=durable)
            self._durable_version = self._version


def decode_epochs(data: bytes) -> tuple[list[int], list[int]]:
    """Return (epochs, start offsets) of a leader-epoch file.

    Raises:
        DamagedFileError: it does not parse, or is not ascending.
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
