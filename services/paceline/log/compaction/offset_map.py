"""The last offset of each key in the part of a log that is being cleaned."""

from hashlib import blake2b
from typing import Final

BYTES_PER_KEY: Final = 200
"""Memory of one entry: a dictionary slot, a short key and its offset."""
_DIGEST_BYTES: Final = 16


class OffsetMap:
    """Map from keys to their last offsets, limited to the memory of ``log.cleaner.dedupe.buffer.size``."""

    def __init__(self, buffer_bytes: int, load_factor: float) -> None:
        self._capacity = max(1, int(buffer_bytes * load_factor) // BYTES_PER_KEY)
        self._offsets: dict[bytes, int] = {}
        self.end_offset: int | None = None
        """Exclusive end of the last batch that was added, ``None`` before the first."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add_batch(self, keys: dict[bytes, int], end_offset: int) -> bool:
        """Add the keys of one batch with their last offsets, unless the map is full; return whether they were added.

        The first batch is always added, so that every cleaning makes progress.
        """
        if self.end_offset is not None and len(self._offsets) + len(keys) > self._capacity:
            return False
        self._offsets.update(keys)
        self.end_offset = end_offset
        return True

    def last_offset(self, key: bytes) -> int:
        """Return the last offset of a key in the form of `short_key`, -1 when the map does not contain the key."""
        return self._offsets.get(key, -1)


def short_key(key: bytes) -> bytes:
    """Return a key of less than 16 bytes unchanged, and a 16-byte digest of a longer key; they never collide."""
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()
