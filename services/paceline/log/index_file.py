"""Base of the offset index and the time index: fixed-size entries in a file, looked up by binary search.

New entries of the active segment are kept in memory and buffered, so an append does not cost three writes. That is safe
because an index is derived data: its entries are written before the recovery point passes them, and entries above the
recovery point are rebuilt after a crash. After a close the file has exactly the bytes that Kafka would write. Entries
of older segments are read from the file when needed.
Source: docs/protocol/log-format.md#index-files.
"""

import struct
from typing import Generic, TypeVar

from paceline.log.files import Files, is_no_room

EntryT = TypeVar("EntryT", bound=tuple[int, int])

_BUFFERED_BYTES = 4096


class IndexFile(Generic[EntryT]):
    """Entries of ``layout`` in a file, in ascending order of the first field.

    Subclasses convert a stored pair to an entry with an absolute offset.
    """

    layout: struct.Struct

    def __init__(self, files: Files, path: str, base_offset: int, max_index_bytes: int) -> None:
        self._files = files
        self._path = path
        self._base_offset = base_offset
        self._max_entries = 1
        self.set_max_bytes(max_index_bytes)
        self._entries: list[EntryT] | None = None
        self._count = 0
        self._pending = bytearray()
        self._exists = False

    def set_max_bytes(self, max_index_bytes: int) -> None:
        """Limit the index to ``max_index_bytes``, but at least one entry; existing entries are kept."""
        self._max_entries = max(1, max_index_bytes // self.layout.size)

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._path

    @property
    def entry_count(self) -> int:
        """Number of entries, including buffered entries."""
        return self._count

    @property
    def damaged(self) -> bool:
        """Whether the file ended in an incomplete entry when it was opened."""
        return self._damaged

    _damaged = False

    def open(self) -> None:
        """Count the entries of the file by its size, without reading them; a missing file has none.

        Raises:
            OSError: storage failed.
        """
        self._entries = None
        self._pending.clear()
        self._damaged = False
        try:
            size = self._files.size(self._path)
            self._exists = True
        except FileNotFoundError:
            size = 0
            self._exists = False
        self._count, rest = divmod(size, self.layout.size)
        self._damaged = rest != 0

    def start_empty(self) -> None:
        """Remove all entries from memory and from the file.

        Raises:
            OSError: storage failed.
        """
        self._entries = []
        self._count = 0
        self._pending.clear()
        self._damaged = False
        if self._files.exists(self._path):
            self._files.truncate(self._path, 0)
            self._exists = True
        else:
            self._exists = False

    def start_new(self) -> None:
        """Start an empty index for a new segment; `write_pending` creates the file."""
        self._entries = []

    def load(self) -> None:
        """Read all entries into memory, which `_add` requires.

        Raises:
            OSError: storage failed.
        """
        if self._entries is None:
            size = self.layout.size
            data = self._files.read_at(self._path, 0, self._count * size) if self._count else b""
            self._entries = [self._decode(pair) for pair in self.layout.iter_unpack(data)]
            self._count = len(self._entries)

    def unload(self) -> None:
        """Release the entries in memory, unless some of them could not be written because the disk is full."""
        if not self._pending:
            self._entries = None

    def write_pending(self) -> None:
        """Write buffered entries to the file; create the file when it is missing.

        Raises:
            OSError: storage failed.
        """
        if self._pending or not self._exists:
            if not self._exists:
                self._files.create(self._path)
                self._exists = True
            if self._pending:
                self._files.append(self._path, bytes(self._pending))
                self._pending.clear()

    def entry(self, index: int) -> EntryT:
        """Return the entry at position ``index``.

        Raises:
            OSError: storage failed.
        """
        entries = self._entries
        if entries is not None:
            return entries[index]
        size = self.layout.size
        return self._decode(self.layout.unpack(self._files.read_at(self._path, index * size, size)))

    @property
    def last(self) -> EntryT | None:
        """The last entry, ``None`` when there is none."""
        return self.entry(self._count - 1) if self._count else None

    def moved_to(self, path: str) -> None:
        """Use the file at its new path; the caller has renamed its directory."""
        self._path = path

    def rename(self, path: str) -> None:
        """Rename the file, which must exist.

        Raises:
            OSError: storage failed.
        """
        self._files.rename(self._path, path)
        self._path = path

    def _decode(self, pair: tuple[int, ...]) -> EntryT:
        raise NotImplementedError

    def _add(self, entry: EntryT, encoded: bytes) -> None:
        assert self._entries is not None, "entries are added to a loaded index only"
        self._entries.append(entry)
        self._count += 1
        self._pending += encoded
        if len(self._pending) >= _BUFFERED_BYTES:
            try:
                self.write_pending()
            except OSError as error:
                # The batch of the entry is in the log already. On a full disk entries stay buffered until a flush.
                if not is_no_room(error):
                    raise

    def _keep(self, count: int) -> None:
        """Remove all entries after the first ``count``."""
        if count >= self._count:
            return
        written = self._count - len(self._pending) // self.layout.size
        if count < written:
            self._pending.clear()
            self._files.truncate(self._path, count * self.layout.size)
        else:
            del self._pending[(count - written) * self.layout.size :]
        if self._entries is not None:
            del self._entries[count:]
        self._count = count

    def _position_after(self, field: int, target: int) -> int:
        """Return the number of entries whose ``field`` is at most ``target``."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[field] <= target:
                low = middle + 1
            else:
                high = middle
        return low
