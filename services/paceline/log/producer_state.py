"""Keep the epoch and the last five batches of each idempotent producer of a log, and encode producer snapshots.

Kafka's snapshot has only the newest batch of each producer. A second file has the earlier batches, so that a repeated
batch is also recognised after a load.

Source: docs/protocol/log-format.md#producer-state and #producer-snapshots; KIP-98, KIP-360.
"""

import struct
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import google_crc32c

from paceline.log.checkpoint import DamagedFileError
from paceline.log.record_batch import MAX_INT32, BatchHeader
from paceline.model.errors import InvalidProducerEpochError, OutOfOrderSequenceNumberError

REMEMBERED_BATCHES: Final = 5
_VERSION = 1
_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
SNAPSHOT_HEAD_BYTES: Final = _HEAD.size
SNAPSHOT_ENTRY_BYTES: Final = _ENTRY.size
_CRC_START = 6
_EARLIER_VERSION = 1
_EARLIER_HEAD = struct.Struct(">hI")
_EARLIER_ROW = struct.Struct(">qiqiq")
_NO_SEQUENCE = -1
_ABORT = 0


class BatchMetadata(NamedTuple):
    """One appended batch of a producer."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Sequence of the first record, wrapping at 2^31."""
        return (self.last_sequence - self.offset_delta) & MAX_INT32

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.last_offset - self.offset_delta


NO_BATCH: Final = BatchMetadata(_NO_SEQUENCE, -1, 0, -1)
"""Stored for a producer that has written transaction markers only."""


@dataclass(slots=True)
class ProducerEntry:
    """State of one producer id; -1 means "none", as in the snapshot."""

    producer_id: int
    epoch: int = -1
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    coordinator_epoch: int = -1
    current_txn_first_offset: int = -1
    last_timestamp: int = -1
    active: bool = field(default=False, compare=False)
    """Whether the producer has written since the last call of `ProducerStateManager.remove_expired`."""

    @property
    def last_sequence(self) -> int:
        """Sequence of the last data record, -1 when none is known."""
        return self.batches[-1].last_sequence if self.batches else _NO_SEQUENCE


class AbortedTransaction(NamedTuple):
    """A transaction that ended with an abort marker at ``last_offset``; one row of the transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ProducerStateManager:
    """State of all producers of one log, in the order of their first batches."""

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}

    @property
    def entries(self) -> list[ProducerEntry]:
        """Entries of all producers."""
        return list(self._entries.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return the state of a producer, ``None`` when the producer id is not known."""
        return self._entries.get(producer_id)

    def clear(self) -> None:
        """Remove all producers."""
        self._entries.clear()

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the producer's remembered batch with the same epoch and sequences, ``None`` when there is none."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            return None
        first, last = header.base_sequence, header.last_sequence
        for batch in entry.batches:
            if batch.last_sequence == last and batch.first_sequence == first:
                return batch
        return None

    def check(self, header: BatchHeader) -> None:
        """Check the epoch and sequence of a producer's new batch, after `find_duplicate` found no duplicate.

        Raises:
            InvalidProducerEpochError: the epoch is older than the producer's current epoch.
            OutOfOrderSequenceNumberError: the sequence does not continue, or a new epoch does not start at 0.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch < 0:
            return
        if header.producer_epoch < entry.epoch:
            raise InvalidProducerEpochError(
                f"producer {header.producer_id} has epoch {entry.epoch}, the batch has {header.producer_epoch}"
            )
        expected = 0 if header.producer_epoch > entry.epoch else (entry.last_sequence + 1) & MAX_INT32
        if header.base_sequence != expected:
            raise OutOfOrderSequenceNumberError(
                f"producer {header.producer_id} continues at sequence {expected}, the batch has {header.base_sequence}"
            )

    def update(self, header: BatchHeader) -> None:
        """Add an appended data batch without checking epoch and sequence. ``header`` has its final offsets."""
        entry = self._entry(header.producer_id)
        if entry.epoch != header.producer_epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.batches.append(
            BatchMetadata(header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp)
        )
        entry.last_timestamp = header.max_timestamp
        entry.active = True
        if header.is_transactional and entry.current_txn_first_offset < 0:
            entry.current_txn_first_offset = header.base_offset

    def end_transaction(
        self, header: BatchHeader, marker_type: int, coordinator_epoch: int
    ) -> AbortedTransaction | None:
        """End the producer's open transaction; return a row for the transaction index if the marker aborts it."""
        entry = self._entry(header.producer_id)
        if entry.epoch != header.producer_epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        first_offset = entry.current_txn_first_offset
        entry.current_txn_first_offset = -1
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        entry.active = True
        if marker_type != _ABORT or first_offset < 0:
            return None
        still_open = self.first_undecided_offset
        stable = still_open if still_open is not None else header.last_offset + 1
        return AbortedTransaction(header.producer_id, first_offset, header.last_offset, stable)

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of the oldest open transaction, ``None`` when none is open."""
        return min(
            (e.current_txn_first_offset for e in self._entries.values() if e.current_txn_first_offset >= 0),
            default=None,
        )

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers idle for longer than ``expiration_ms`` without an open transaction; return their number.

        As in Kafka, idle time counts from the timestamp of the last batch. A producer that has written since the last
        call of this method is kept even if its records have old timestamps or none.
        """
        expired = [
            entry.producer_id
            for entry in self._entries.values()
            if not entry.active and entry.current_txn_first_offset < 0 and now_ms - entry.last_timestamp > expiration_ms
        ]
        for entry in self._entries.values():
            entry.active = False
        for producer_id in expired:
            del self._entries[producer_id]
        return len(expired)

    def encode(self) -> bytes:
        """Return the content of a snapshot file, with only the newest batch of each producer, in Kafka's order."""
        body = bytearray(struct.pack(">i", len(self._entries)))
        for entry in in_order_of_java(self._entries):
            last = entry.batches[-1] if entry.batches else NO_BATCH
            body += _ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
        return struct.pack(">hI", _VERSION, google_crc32c.value(bytes(body))) + bytes(body)

    def encode_earlier(self, snapshot: bytes) -> bytes | None:
        """Return the batches that ``snapshot``, the result of `encode`, lacks; ``None`` if it lacks none."""
        rows = b"".join(
            _EARLIER_ROW.pack(entry.producer_id, *batch)
            for entry in self._entries.values()
            for batch in list(entry.batches)[-2::-1]
        )
        return _earlier_head(snapshot, rows) + rows if rows else None

    def load(self, data: bytes, earlier: bytes | None = None) -> None:
        """Replace the state of all producers by a snapshot and the file of earlier batches beside it, if there is one.

        Raises:
            DamagedFileError: a version, checksum or length is wrong, or ``earlier`` belongs to another snapshot; the
                state is unchanged.
        """
        entries = {entry.producer_id: entry for entry in decode_snapshot(data)}
        if earlier is not None:
            rows = earlier[_EARLIER_HEAD.size :]
            if len(rows) % _EARLIER_ROW.size or not earlier.startswith(_earlier_head(data, rows)):
                raise DamagedFileError("the earlier batches are damaged or belong to another producer snapshot")
            for producer_id, *batch in _EARLIER_ROW.iter_unpack(rows):
                entries[producer_id].batches.appendleft(BatchMetadata(*batch))
        self._entries = entries

    def _entry(self, producer_id: int) -> ProducerEntry:
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(producer_id)
        return entry


def in_order_of_java(entries: Mapping[int, ProducerEntry]) -> list[ProducerEntry]:
    """Return the entries in the order of a java.util.HashMap that they were put into, which Kafka writes to snapshots.

    Kafka's map may have more buckets after producers have expired, and its order then differs.
    """
    buckets = max(16, 1 << ((len(entries) * 4 + 2) // 3 - 1).bit_length())

    def bucket(producer_id: int) -> int:
        hashed = (producer_id ^ (producer_id >> 32)) & 0xFFFFFFFF
        return (hashed ^ (hashed >> 16)) & (buckets - 1)

    return [entries[producer_id] for producer_id in sorted(entries, key=bucket)]


def decode_snapshot(data: bytes) -> Iterable[ProducerEntry]:
    """Return the entries of a snapshot file.

    Raises:
        DamagedFileError: version, checksum or length is wrong.
    """
    if len(data) < _HEAD.size:
        raise DamagedFileError("the producer snapshot is shorter than its header")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION or google_crc32c.value(data[_CRC_START:]) != crc:
        raise DamagedFileError("the producer snapshot has an unknown version or a wrong checksum")
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise DamagedFileError("the producer snapshot does not have the number of entries in its header")
    entries = []
    for values in _ENTRY.iter_unpack(data[_HEAD.size :]):
        producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, txn_start = values
        entry = ProducerEntry(producer_id, epoch, coordinator_epoch=coordinator_epoch)
        entry.current_txn_first_offset = txn_start
        entry.last_timestamp = timestamp
        if last_offset >= 0:
            entry.batches.append(BatchMetadata(last_sequence, last_offset, offset_delta, timestamp))
        entries.append(entry)
    return entries


def _earlier_head(snapshot: bytes, rows: bytes) -> bytes:
    """Return version and checksum; the checksum includes the snapshot, to which the rows belong."""
    return _EARLIER_HEAD.pack(_EARLIER_VERSION, google_crc32c.value(snapshot + rows))
