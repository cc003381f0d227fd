"""ZooKeeper's request for the data of many nodes, which kazoo does not have.

Source: ZooKeeper 3.6 MultiOperationRecord, MultiResponse.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar, Final

_GET_DATA: Final = 4
_HEADER: Final = struct.Struct(">i?i")
"""Type of an operation or result, whether the list is over, and the error of a result."""
_LENGTH: Final = struct.Struct(">i")
_STAT_BYTES: Final = 68
_NOT_WATCHED: Final = b"\0"


@dataclass(frozen=True, slots=True)
class MultiRead:
    """Read nodes without watches; the result has an error code and the data of each."""

    paths: tuple[str, ...]
    type: ClassVar[int] = 22
    watcher: ClassVar[None] = None

    def serialize(self) -> bytes:
        """Return the request's body."""
        parts: list[bytes] = []
        for path in self.paths:
            name = path.encode()
            parts += (_HEADER.pack(_GET_DATA, False, -1), _LENGTH.pack(len(name)), name, _NOT_WATCHED)
        return b"".join([*parts, _HEADER.pack(-1, True, -1)])

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[tuple[int, bytes | None]]:
        """Return the error code, 0 without an error, and the data of each node."""
        found: list[tuple[int, bytes | None]] = []
        while True:
            kind, is_over, _ = _HEADER.unpack_from(data, offset)
            (number,) = (0,) if is_over else _LENGTH.unpack_from(data, offset + _HEADER.size)
            offset += _HEADER.size + _LENGTH.size
            if is_over:
                return found
            if kind != _GET_DATA:
                found.append((number, None))
                continue
            end = offset + max(number, 0)
            found.append((0, bytes(data[offset:end]) if number >= 0 else None))
            offset = end + _STAT_BYTES
