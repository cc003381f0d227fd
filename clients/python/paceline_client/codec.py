"""Record batches as the producer writes them: one encoder per batch, records encoded while they are appended.

Reading is in `paceline.log.record_batch`; `records.py` uses it. Appending is all that one record costs here (0.15
microseconds in the compiled codec); compression and checksum happen once per batch, in `finish`.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, Protocol

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from paceline.log.compression import Codec
from paceline.log.record_batch import MAGIC, NO_PRODUCER_ID, NO_SEQUENCE, recompress
from paceline.model.errors import InvalidRequestError

Headers = Sequence[tuple[str, bytes | None]]

RECORD_OVERHEAD_BYTES: Final = 21
"""Most that one record adds to its key, value and headers."""

_COUNT_AT: Final = 57
_INT32 = Struct(">i")


class AppendedRecord(Protocol):
    """What the encoder says about a record it took."""

    offset: int
    size: int
    timestamp: int


class BatchEncoder(Protocol):
    """The compiled encoder of one batch."""

    def append(
        self,
        offset: int,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        /,
    ) -> AppendedRecord | None:
        """Encode record number ``offset``; None when it would make the batch too large (the first is always taken).

        A missing timestamp becomes the wall clock's. A key or value that is not bytes raises TypeError.
        """

    def size(self) -> int:
        """Return the bytes encoded so far."""

    def set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int, /) -> None:
        """Set who wrote the batch and the sequence of its first record."""

    def build(self) -> bytes | bytearray:
        """Return the batch with its header."""


def codec_named(name: str | None) -> Codec:
    """Return the codec for a setting: None, "none", "gzip", "snappy", "lz4" or "zstd".

    Raises:
        InvalidRequestError: no such codec.
    """
    try:
        return Codec[(name or "none").upper()]
    except KeyError:
        known = ", ".join(codec.name.lower() for codec in Codec)
        raise InvalidRequestError(f"compression {name!r} is not known; there are {known}") from None


def new_encoder(batch_bytes: int) -> BatchEncoder:
    """Return an encoder for one batch of at most ``batch_bytes``, uncompressed."""
    encoder: BatchEncoder = DefaultRecordBatchBuilder(MAGIC, 0, 0, NO_PRODUCER_ID, -1, NO_SEQUENCE, batch_bytes)
    return encoder


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the largest size one record can have in a batch.

    Raises:
        TypeError: key, value or a header is of the wrong type.
    """
    return int(DefaultRecordBatchBuilder.size_of(key, value, list(headers))) + RECORD_OVERHEAD_BYTES


def finish(
    encoder: BatchEncoder,
    codec: Codec,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
) -> bytes | bytearray:
    """Return the batch: compressed when that makes it smaller, stamped with the producer's state, checksum set."""
    encoder.set_producer_state(producer_id, producer_epoch, base_sequence)
    plain: Any = encoder.build()
    if codec is Codec.NONE:
        return bytes(plain) if not isinstance(plain, (bytes, bytearray)) else plain
    plain = bytearray(plain)
    return recompress(plain, len(plain), codec, keep_if_larger=True)


def record_count(batch: bytes | bytearray) -> int:
    """Return how many records a finished batch holds."""
    return int(_INT32.unpack_from(batch, _COUNT_AT)[0])
