"""Append batches to a file, and scan, check and recover them.

Readers see only whole batches: reads stop at ``size``, which advances only after a write, and recovery truncates the
bytes that a failed write may have left beyond ``size``.

Source: docs/protocol/log-format.md#partition-files and #recovery.
"""

import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import google_crc32c

from paceline.log.files import Files
from paceline.log.record_batch import (
    CRC_START,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    MAX_INT64,
    BatchHeader,
    Buffer,
    check_crc,
    crc_of,
    parse_header,
)
from paceline.model.errors import CorruptMessageError

_EpochOf = Callable[[int], int | None]
_SCAN_BYTES = 8 * 1024
_RECOVERY_BYTES = 1 << 20
_SHORT_HEADER = struct.Struct(">qiibI2xi")
"""Base offset, length, leader epoch, magic, checksum and last offset delta: the fields that `cut_whole` checks."""
_PIECE_BYTES = 8 * 1024
_PIECES = 2048
"""Pieces of about `_PIECE_BYTES` that are remembered, 16 to 32 MiB for all logs of the process."""
_TINY_BATCH_BYTES = 512
"""A piece that begins with a larger batch is not remembered: to check it costs little more than to compare it."""


class BatchPosition(NamedTuple):
    """A batch header and the byte position of the batch in its segment."""

    position: int
    header: BatchHeader


class BatchFile:
    """Batches in a file. One owner appends; reads may come from other threads."""

    __slots__ = ("_files", "log_path", "size")

    def __init__(self, files: Files, log_path: str) -> None:
        self._files = files
        self.log_path = log_path
        self.size = 0
        """Bytes of whole batches."""

    def append(self, data: Buffer) -> None:
        """Write whole batches at the end with one write; readers see them when ``size`` advances.

        Raises:
            OSError: storage failed.
        """
        self._files.append(self.log_path, data)

    def headers(self, position: int, chunk_bytes: int = _SCAN_BYTES) -> Iterator[BatchPosition]:
        """Yield the batches from byte ``position`` on.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the bytes at a position are not a whole batch.
        """
        chunk, start = b"", position
        while position < self.size:
            offset = position - start
            if offset + HEADER_BYTES > len(chunk):
                chunk, start, offset = self._files.read_at(self.log_path, position, chunk_bytes), position, 0
                if len(chunk) < HEADER_BYTES:
                    raise CorruptMessageError(f"{self.log_path} ends within a batch header at {position}")
            try:
                header = parse_header(chunk, offset)
            except CorruptMessageError as error:
                raise CorruptMessageError(f"{self.log_path} at byte {position}: {error}") from None
            following = position + header.size
            if following > self.size:
                raise CorruptMessageError(
                    f"the batch at {position} of {self.log_path} extends beyond the end of the file"
                )
            yield BatchPosition(position, header)
            position = following

    def has_valid_crc(self, found: BatchPosition) -> bool:
        """Whether the checksum of a batch matches; a damaged length does not make this read more than 1 MiB at once.

        Raises:
            OSError: storage failed.
        """
        crc, end = 0, found.position + found.header.size
        for position in range(found.position + CRC_START, end, _RECOVERY_BYTES):
            piece = self._files.read_at(self.log_path, position, min(_RECOVERY_BYTES, end - position))
            crc = google_crc32c.extend(crc, piece)
        return crc == found.header.crc

    def next_base_offset(self, position: int, data: bytes, end: int) -> int:
        """Return the base offset of the batch that follows the first ``end`` bytes read at ``position``.

        If no batch follows, return `MAX_INT64`.

        Raises:
            OSError: storage failed.
        """
        behind = position + end
        if behind + HEADER_BYTES > self.size:
            return MAX_INT64
        found = data[end : end + 8] if end + 8 <= len(data) else self._files.read_at(self.log_path, behind, 8)
        return int.from_bytes(found, "big", signed=True)

    def sound_batches(self, on_disk: int) -> Iterator[BatchHeader]:
        """Yield the header of each batch, up to the first batch that is incomplete or fails its checksum.

        ``on_disk`` is the size of the file in bytes, valid or not.

        Raises:
            OSError: storage failed.
        """
        chunk, start, position = b"", 0, 0
        while position + HEADER_BYTES <= on_disk:
            at = position - start
            if at + HEADER_BYTES > len(chunk):
                chunk, start, at = self._files.read_at(self.log_path, position, _RECOVERY_BYTES), position, 0
            try:
                header = parse_header(chunk, at)
                if position + header.size > on_disk:
                    return
                if at + header.size > len(chunk):
                    wanted = max(_RECOVERY_BYTES, header.size)
                    chunk, start, at = self._files.read_at(self.log_path, position, wanted), position, 0
                check_crc(chunk, at, header)
            except (CorruptMessageError, struct.error):
                return
            yield header
            position += header.size

    def is_interrupted_append(self, on_disk: int, next_offset: int) -> bool:
        """Whether the bytes after the sound batches are the beginning of one batch.

        Such a batch was never acknowledged: its append was interrupted. ``next_offset`` is the offset after the last
        sound batch.

        Raises:
            OSError: storage failed.
        """
        left = on_disk - self.size
        if left < LENGTH_PREFIX_BYTES:
            return True
        prefix = self._files.read_at(self.log_path, self.size, LENGTH_PREFIX_BYTES)
        base_offset, length = int.from_bytes(prefix[:8], "big"), int.from_bytes(prefix[8:], "big", signed=True)
        return base_offset >= next_offset and length > left - LENGTH_PREFIX_BYTES


def last_before(headers: Iterator[BatchPosition], end: int, first_offset: int) -> BatchPosition | None:
    """Return the last batch that begins before byte ``end``, or ``None`` if no batch does.

    Also check the base offsets of the batches up to ``end`` and of the batch at ``end``: each must be above the last
    offset of the batch before it, and the first must not be below ``first_offset``. No checksum covers base offsets.

    Raises:
        CorruptMessageError: a base offset is too small.
    """
    last, following = None, first_offset
    for found in headers:
        if found.header.base_offset < following:
            raise CorruptMessageError(
                f"the batch at {found.position} begins at {found.header.base_offset}, below {following}"
            )
        if found.position >= end:
            break
        last, following = found, found.header.last_offset + 1
    return last


def cut_whole(data: bytes, limit_offset: int, epoch_of: _EpochOf, at: int = 0) -> tuple[int, int, int]:
    """Return (size of the whole batches below ``limit_offset``, offset after them, position of the last batch).

    The function checks checksums and leader epochs. It returns the valid batches before a bad batch, so that a reader
    gets these batches first and the error at its next read. ``at`` is the position of ``data`` in its file: reads that
    overlap divide the file into the same pieces, and a piece of tiny batches that was checked before is only compared.

    Raises:
        CorruptMessageError: the first bytes are not a batch, or the first batch is bad, incomplete or not below
            ``limit_offset``.
    """
    position, following, last, end = 0, -1, 0, len(data)
    while position + HEADER_BYTES <= end:
        stop = ((at + position) // _PIECE_BYTES + 2) * _PIECE_BYTES - at
        base_offset, length, *_ = _SHORT_HEADER.unpack_from(data, position)
        if length <= _TINY_BATCH_BYTES and stop <= end and base_offset >= following:
            size, after, last_in_piece, leader_epoch = _walk_piece(data[position:stop])
            epoch = epoch_of(base_offset)
            # Epochs ascend: with the same epoch at both ends, the piece has no other epoch.
            if size and after <= limit_offset and epoch in (leader_epoch, None) and epoch_of(after - 1) == epoch:
                position, following, last = position + size, after, position + last_in_piece
                continue
        position, following, last = _walk(data, position, stop, following, last, limit_offset, epoch_of)
        if position < stop:
            break
    if position == 0:
        raise CorruptMessageError("the bytes there differ from the batch that was written")
    return position, following, last


@lru_cache(_PIECES)
def _walk_piece(piece: bytes) -> tuple[int, int, int, int]:
    """Return the result of `_walk` for the first batches of one leader epoch, and the epoch."""
    leader_epoch = _SHORT_HEADER.unpack_from(piece)[2]
    return *_walk(piece, 0, len(piece), -1, 0, MAX_INT64, lambda _offset: leader_epoch), leader_epoch


def _walk(
    data: bytes, position: int, stop: int, following: int, last: int, limit_offset: int, epoch_of: _EpochOf
) -> tuple[int, int, int]:
    """Check the batches that begin from ``position`` to ``stop``, up to a bad one; return as `cut_whole`."""
    end = len(data)
    unpack = _SHORT_HEADER.unpack_from
    while position < stop and position + HEADER_BYTES <= end:
        base_offset, length, leader_epoch, magic, crc, last_offset_delta = unpack(data, position)
        size = length + LENGTH_PREFIX_BYTES
        if magic != MAGIC or size < HEADER_BYTES or last_offset_delta < 0:
            break
        last_offset = base_offset + last_offset_delta
        if position + size > end or last_offset >= limit_offset or base_offset < following:
            break
        if crc_of(data, position, size) != crc or epoch_of(base_offset) not in (leader_epoch, None):
            break
        last, position, following = position, position + size, last_offset + 1
    return position, following, last
