"""Choose the partition of a record: murmur2 of the key as in Kafka's Java client, sticky without a key.

Does no I/O and reads no clock. A bounded cache keeps the hashes of keys, since pure Python needs 2 to 4 microseconds
per hash and many topics have few distinct keys.
"""

import random
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF

_CACHED_KEYS: Final = 65_536
_LONGEST_CACHED_KEY: Final = 256
"""Longer keys are not cached, so that the cache stays below about 25 MB."""

_WORDS: Final = tuple(Struct(f"<{count}I") for count in range(65))


def murmur2(data: bytes) -> int:
    """Return Kafka's murmur2 of ``data`` as a signed 32-bit number.

    Source: Kafka clients Utils.murmur2; vectors of UtilsTest.testMurmur2.
    """
    length = len(data)
    hashed = _SEED ^ length
    count = length >> 2
    words = _WORDS[count] if count < 65 else Struct(f"<{count}I")
    for word in words.unpack_from(data):
        word = (word * _MULTIPLIER) & _MASK
        word ^= word >> 24
        hashed = ((hashed * _MULTIPLIER) ^ (word * _MULTIPLIER)) & _MASK
    rest = length & 3
    if rest:
        hashed ^= int.from_bytes(data[-rest:], "little")
        hashed = (hashed * _MULTIPLIER) & _MASK
    hashed ^= hashed >> 13
    hashed = (hashed * _MULTIPLIER) & _MASK
    hashed ^= hashed >> 15
    return hashed - (1 << 32) if hashed & 0x80000000 else hashed


def _positive_hash(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


_cached_hash = lru_cache(maxsize=_CACHED_KEYS)(_positive_hash)


def key_hash(key: bytes) -> int:
    """Return murmur2 of ``key`` with the sign bit cleared; modulo the partition count it is the partition."""
    return _cached_hash(key) if len(key) <= _LONGEST_CACHED_KEY else _positive_hash(key)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition of ``key`` in a topic of ``partition_count`` partitions; Kafka's DefaultPartitioner."""
    return key_hash(key) % partition_count


class StickyPartitioner:
    """Chooses a partition for records without a key and keeps it until its batch is complete (KIP-480)."""

    __slots__ = ("_rng", "current")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.current = -1
        """The partition chosen last, -1 before the first choice."""

    def choose(self, available: Sequence[int], partition_count: int) -> int:
        """Choose another partition, preferably a partition with a leader, and return it."""
        candidates = available or range(partition_count)
        if len(candidates) == 1:
            self.current = candidates[0]
            return self.current
        index = self._rng.randrange(len(candidates))
        if candidates[index] == self.current:
            index = (index + 1 + self._rng.randrange(len(candidates) - 1)) % len(candidates)
        self.current = candidates[index]
        return self.current
