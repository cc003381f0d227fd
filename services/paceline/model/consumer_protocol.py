"""Kafka's embedded consumer protocol: encoding of subscriptions and assignments in groups.

The coordinator stores the bytes without decoding them; Kafka's tools read them in ``__consumer_offsets``. Paceline
writes subscription version 3 and assignment version 1, and reads every version: later versions only append fields.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from paceline.model.errors import InvalidRequestError

SUBSCRIPTION_VERSION: Final = 3
ASSIGNMENT_VERSION: Final = 1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
Partitions = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member's subscription, sent to the leader of its group."""

    topics: tuple[str, ...] = ()
    user_data: bytes = b""
    owned_partitions: Partitions = field(default_factory=dict)
    generation_id: int | None = None
    rack_id: str = ""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The leader's assignment for one member."""

    partitions: Partitions = field(default_factory=dict)
    user_data: bytes = b""


class Writer:
    """Appends primitive types in the encoding of Kafka's protocol before flexible versions."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def int16(self, value: int) -> None:
        """Append a number as two bytes."""
        self._parts.append(_INT16.pack(value))

    def int32(self, value: int) -> None:
        """Append a number as four bytes."""
        self._parts.append(_INT32.pack(value))

    def int64(self, value: int) -> None:
        """Append a number as eight bytes."""
        self._parts.append(value.to_bytes(8, "big", signed=True))

    def string(self, value: str | None) -> None:
        """Append a string with its length; None is length -1."""
        if value is None:
            self.int16(-1)
            return
        raw = value.encode()
        if len(raw) > 0x7FFF:
            raise InvalidRequestError(f"a text of {len(raw)} bytes is too long; the limit is 32767")
        self.int16(len(raw))
        self._parts.append(raw)

    def blob(self, value: bytes | None) -> None:
        """Append bytes with their length; None is length -1."""
        self.int32(-1 if value is None else len(value))
        self._parts.append(value or b"")

    def partitions(self, partitions: Partitions) -> None:
        """Append partitions by topic."""
        self.int32(len(partitions))
        for topic, indexes in partitions.items():
            self.string(topic)
            self.int32(len(indexes))
            self._parts.append(struct.pack(f">{len(indexes)}i", *indexes))

    def done(self) -> bytes:
        """Return the bytes appended so far."""
        return b"".join(self._parts)


class Reader:
    """Reads the primitive types of Kafka's protocol.

    Every method raises `InvalidRequestError` when the bytes end too early.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Number of bytes that have not been read."""
        return len(self._data) - self._at

    def _take(self, size: int) -> bytes:
        if size < 0 or size > self.left:
            raise InvalidRequestError(f"the bytes end too early: {size} wanted, {self.left} left")
        piece = self._data[self._at : self._at + size]
        self._at += size
        return piece

    def int16(self) -> int:
        """Return the number in the next two bytes."""
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        """Return the number in the next four bytes."""
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        """Return the number in the next eight bytes."""
        return int.from_bytes(self._take(8), "big", signed=True)

    def nullable_string(self) -> str | None:
        """Return a string, None for length -1."""
        size = self.int16()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise InvalidRequestError(f"a text is not UTF-8: {error}") from None

    def string(self) -> str:
        """Return a string, empty for length -1."""
        return self.nullable_string() or ""

    def blob(self) -> bytes:
        """Return bytes, empty for length -1."""
        size = self.int32()
        return b"" if size == -1 else self._take(size)

    def count(self) -> int:
        """Return the length of an array, after checking that as many elements of two bytes fit into the rest."""
        count = self.int32()
        if count > self.left // 2:
            raise InvalidRequestError(f"an array of {count} elements does not fit into {self.left} bytes")
        return max(0, count)

    def partitions(self) -> dict[str, tuple[int, ...]]:
        """Return partitions by topic."""
        found: dict[str, tuple[int, ...]] = {}
        for _ in range(self.count()):
            topic = self.string()
            count = self.count()
            found[topic] = struct.unpack(f">{count}i", self._take(4 * count))
        return found


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    """Return partitions sorted and grouped by topic."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return {topic: tuple(indexes) for topic, indexes in found.items()}


def encode_subscription(subscription: Subscription) -> bytes:
    """Return the bytes of a subscription, version 3."""
    out = Writer()
    out.int16(SUBSCRIPTION_VERSION)
    out.int32(len(subscription.topics))
    for topic in subscription.topics:
        out.string(topic)
    out.blob(subscription.user_data or None)
    out.partitions(subscription.owned_partitions)
    out.int32(-1 if subscription.generation_id is None else subscription.generation_id)
    out.string(subscription.rack_id or None)
    return out.done()


def decode_subscription(data: bytes) -> Subscription:
    """Return a subscription of any version.

    Raises:
        InvalidRequestError: the bytes are not a subscription.
    """
    source = Reader(data)
    version = source.int16()
    if version < 0:
        raise InvalidRequestError(f"a subscription has version {version}")
    topics = tuple(source.string() for _ in range(source.count()))
    user_data = source.blob()
    owned = source.partitions() if version >= 1 else {}
    generation = source.int32() if version >= 2 else -1
    rack = source.nullable_string() if version >= 3 else None
    return Subscription(topics, user_data, owned, None if generation < 0 else generation, rack or "")


def encode_assignment(assignment: Assignment) -> bytes:
    """Return the bytes of an assignment, version 1."""
    out = Writer()
    out.int16(ASSIGNMENT_VERSION)
    out.partitions(assignment.partitions)
    out.blob(assignment.user_data or None)
    return out.done()


def decode_assignment(data: bytes) -> Assignment:
    """Return an assignment of any version; empty bytes are an empty assignment.

    Raises:
        InvalidRequestError: the bytes are not an assignment.
    """
    if not data:
        return Assignment()
    source = Reader(data)
    version = source.int16()
    if version < 0:
        raise InvalidRequestError(f"an assignment has version {version}")
    return Assignment(source.partitions(), source.blob())
