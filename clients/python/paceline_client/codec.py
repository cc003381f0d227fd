"""Encode record batches for the producer: each record is encoded when it is appended.

Decoding is in `paceline.log.record_batch`, which `records.py` calls. Appending is the only cost per record (0.15
microseconds in the compiled codec); compression and checksum are computed once per batch, in `finish`.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, Protocol

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from paceline.log.compression import Codec
from paceline.log.record_batch import MAGIC, NO_PRODUCER_ID, NO_SEQUENCE, recompress, set_crc
from paceline.model.errors import InvalidRequestError

Headers = Sequence[tuple[str, bytes | None]]
Row = tuple[int | None, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Timestamp in ms, key, value and headers of a record."""

RECORD_OVERHEAD_BYTES: Final = 21
"""Maximum overhead of a record beyond its key, value and headers."""

_PRODUCER_AT: Final = 43
_PRODUCER = Struct(">qhi")


class AppendedRecord(Protocol):
    """The encoder's result for an appended record."""

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
        """Append record number ``offset``; return None when the batch would be too large (the first always fits).

        A missing timestamp is set to the wall clock. A key or value that is not bytes raises TypeError.
        """

    def size(self) -> int:
        """Return the bytes encoded so far."""

    def set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int, /) -> None:
        """Set producer id, epoch and the sequence number of the first record."""

    def build(self) -> bytes | bytearray:
        """Return the batch with its header."""


class FinishedBatch:
    """A batch that the caller has encoded, in place of its encoder; it takes no more records."""

    def __init__(self, batch: bytes | bytearray) -> None:
        self._batch = batch

    def append(self, *_: object) -> None:
        """Accept no record."""

    def size(self) -> int:
        """Return the size of the batch."""
        return len(self._batch)

    def set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int, /) -> None:
        """Write the state of an idempotent producer into the batch; without an id, the batch keeps its own."""
        if producer_id != NO_PRODUCER_ID:
            if not isinstance(self._batch, bytearray):
                self._batch = bytearray(self._batch)
            set_producer_state(self._batch, producer_id, producer_epoch, base_sequence)

    def build(self) -> bytes | bytearray:
        """Return the batch."""
        return self._batch


def set_producer_state(batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Write producer id, epoch and the sequence number of the first record into a finished batch."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    set_crc(batch, len(batch))


def codec_named(name: str | None) -> Codec:
    """Return the codec for a setting: None, "none", "gzip", "snappy", "lz4" or "zstd".

    Raises:
        InvalidRequestError: the codec does not exist.
    """
    try:
        return Codec[(name or "none").upper()]
    except KeyError:
        known = ", ".join(codec.name.lower() for codec in Codec)
        raise InvalidRequestError(f"compression {name!r} is unknown; known are {known}") from None


def new_encoder(batch_bytes: int) -> BatchEncoder:
    """Return an encoder for a batch of at most ``batch_bytes``, uncompressed."""
    encoder: BatchEncoder = DefaultRecordBatchBuilder(MAGIC, 0, 0, NO_PRODUCER_ID, -1, NO_SEQUENCE, batch_bytes)
    return encoder


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the maximum size of a record in a batch.

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
    """Return the batch with producer state and checksum, compressed if that makes it smaller."""
    encoder.set_producer_state(producer_id, producer_epoch, base_sequence)
    plain: Any = encoder.build()
    if codec is Codec.NONE or isinstance(encoder, FinishedBatch):
        return bytes(plain) if not isinstance(plain, (bytes, bytearray)) else plain
    plain = bytearray(plain)
    return recompress(plain, len(plain), codec, keep_if_larger=True)
