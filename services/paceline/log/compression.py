"""The codecs of record batches: none, gzip, snappy, lz4 and zstd, with a limit on the decompressed size.

A batch of a kilobyte can expand to gigabytes, so every decoder stops at a limit. Snappy comes in two framings: the
xerial stream of the Java and Python clients, and one bare block from librdkafka.
"""

import struct
import zlib
from enum import IntEnum
from typing import Final

import cramjam

from paceline.model.errors import CorruptMessageError, MessageTooLargeError, UnsupportedCompressionTypeError

MAX_DECOMPRESSED_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a decompressed batch."""

MAX_EXPANSION: Final = 1024
"""Maximum ratio of decompressed to compressed size, for a batch that expands to more than a mebibyte."""

MAX_PARTS: Final = 4_096
"""Maximum number of gzip members or xerial blocks in one batch; decoding even an empty part takes microseconds.

Clients write one gzip member, and xerial blocks of 32 KiB, of which `MAX_DECOMPRESSED_BYTES` holds 2,048.
"""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = struct.Struct(">i")
_GZIP_WINDOW = 31
_GZIP_STEP_BYTES = 16 * 1024
"""Input bytes per call of zlib, which copies the unused rest of the input at the end of each gzip member."""
_LZ4_FAST = 0
_LZ4_INDEPENDENT_BLOCKS = 0x20


class Codec(IntEnum):
    """Codec bits of the batch attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def codec_of(attributes: int) -> Codec:
    """Return the codec named by the attributes of a batch.

    Raises:
        UnsupportedCompressionTypeError: the three codec bits have no known value.
    """
    try:
        return Codec(attributes & 7)
    except ValueError:
        raise UnsupportedCompressionTypeError(f"codec {attributes & 7} is not known") from None


def compress(codec: Codec, data: bytes) -> bytes:
    """Return ``data`` compressed, in the framing of Kafka's Java client."""
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec is Codec.SNAPPY:
        return _compress_xerial(data)
    if codec is Codec.LZ4:
        compressor = cramjam.lz4.Compressor(level=_LZ4_FAST, content_checksum=False, block_linked=False)
        compressor.compress(data)
        return bytes(compressor.finish())
    if codec is Codec.ZSTD:
        return bytes(cramjam.zstd.compress(data))
    return data


def expansion_limit(size: int) -> int:
    """Return the maximum size after decompression for ``size`` compressed bytes."""
    return min(MAX_DECOMPRESSED_BYTES, max(1 << 20, MAX_EXPANSION * size))


def decompress(codec: Codec, data: bytes | memoryview, prefix: bytes = b"", padding: int = 0) -> bytearray:
    """Return ``prefix``, then ``data`` decompressed, then ``padding`` zero bytes, in one buffer.

    Raises:
        CorruptMessageError: the stream is incomplete, damaged or followed by other bytes.
        MessageTooLargeError: it expands beyond `MAX_DECOMPRESSED_BYTES` or `MAX_EXPANSION`, or has more than
            `MAX_PARTS` parts.
    """
    limit = expansion_limit(len(data))
    try:
        if codec is Codec.GZIP:
            return bytearray().join((prefix, _gunzip(data, limit), bytes(padding)))
        if codec is Codec.SNAPPY:
            return bytearray().join((prefix, _unsnappy(bytes(data), limit), bytes(padding)))
        if codec is Codec.LZ4:
            _check_lz4_blocks(data)
        if codec is Codec.LZ4 or codec is Codec.ZSTD:
            return _decompress_growing(codec, bytes(data), limit, prefix, padding)
    except (cramjam.DecompressionError, zlib.error, struct.error, ValueError, OverflowError, MemoryError) as error:
        raise CorruptMessageError(f"the {codec.name.lower()} block cannot be read: {error}") from error
    return bytearray().join((prefix, data, bytes(padding)))


def _too_large(limit: int) -> MessageTooLargeError:
    return MessageTooLargeError(f"the batch expands to more than {limit} bytes")


def _too_many_parts(parts: str) -> MessageTooLargeError:
    return MessageTooLargeError(f"the batch consists of more than {MAX_PARTS} {parts}")


def _check_lz4_blocks(data: bytes | memoryview) -> None:
    """Refuse frames with linked blocks, which Kafka's own readers cannot read (KIP-57)."""
    if len(data) > 4 and not data[4] & _LZ4_INDEPENDENT_BLOCKS:
        raise CorruptMessageError("the lz4 frame has linked blocks; Kafka's readers take independent ones only")


def _gunzip(data: bytes | memoryview, limit: int) -> bytes:
    """Return the decompressed bytes of all gzip members.

    Each step gives zlib at most `_GZIP_STEP_BYTES`, so the cost grows linearly with the number of members.
    """
    view = memoryview(data)
    pieces = []
    position = 0
    for _member in range(MAX_PARTS):
        decoder = zlib.decompressobj(_GZIP_WINDOW)
        while not decoder.eof:
            window = view[position : position + _GZIP_STEP_BYTES]
            if not window:
                raise CorruptMessageError("the gzip member is incomplete")
            piece = decoder.decompress(window, limit + 1)
            limit -= len(piece)
            if limit < 0:
                raise _too_large(limit + len(piece))
            position += len(window) - len(decoder.unused_data)
            pieces.append(piece)
        if position == len(view):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    raise _too_many_parts("gzip members")


def _compress_xerial(data: bytes) -> bytes:
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        pieces.append(_INT32.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)


def _unsnappy(data: bytes, limit: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _unsnappy_block(data, limit)
    pieces = []
    position = len(_XERIAL_HEADER)
    if len(data) < position:
        raise CorruptMessageError("the xerial header is incomplete")
    while position < len(data):
        (length,) = _INT32.unpack_from(data, position)
        position += 4
        if length <= 0 or position + length > len(data):
            raise CorruptMessageError("a xerial block has a wrong length")
        piece = _unsnappy_block(data[position : position + length], limit)
        limit -= len(piece)
        pieces.append(piece)
        position += length
        if len(pieces) > MAX_PARTS:
            raise _too_many_parts("xerial blocks")
    return b"".join(pieces)


def _unsnappy_block(block: bytes, limit: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > limit:
        raise _too_large(limit)
    return bytes(cramjam.snappy.decompress_raw(block))


def _decompress_growing(codec: Codec, data: bytes, limit: int, prefix: bytes, padding: int) -> bytearray:
    """Decode into a buffer that grows fourfold until the stream fits or the limit is reached."""
    decode = cramjam.lz4.decompress_into if codec is Codec.LZ4 else cramjam.zstd.decompress_into
    room = min(limit, max(64 * 1024, 8 * len(data)))
    start = len(prefix)
    while True:
        buffer = bytearray(start + room + padding)
        try:
            size = int(decode(data, memoryview(buffer)[start : start + room]))
        except cramjam.DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise
            if room >= limit:
                raise _too_large(limit) from None
            room = min(limit, 4 * room)
            continue
        buffer[:start] = prefix
        end = start + size
        buffer[end : end + padding] = bytes(padding)
        del buffer[end + padding :]
        return buffer
