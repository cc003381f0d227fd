"""A partition's log that only checks producer sequences as Kafka does, for tests of the accumulator.

Source: docs/protocol/clients.md#idempotent-producer.
"""

from collections import deque

from paceline.log.record_batch import MAX_INT32, decode_batch, parse_header
from paceline.model.errors import OutOfOrderSequenceNumberError

WINDOW = 5


class ModelPartition:
    """The log of the present leader, as record values."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.leader_epoch = 0
        self._batches: list[bytes] = []
        self._producers: dict[int, deque[tuple[int, int, int]]] = {}

    def append(self, batch: bytes) -> int:
        """Append a batch and return its base offset, the original one for a duplicate."""
        header = parse_header(batch)
        values = [record.value or b"" for record in decode_batch(batch)]
        assert len(values) == header.record_count
        if header.producer_id >= 0:
            window = self._producers.get(header.producer_id)
            if window is not None:
                for base, last, offset in window:
                    if (base, last) == (header.base_sequence, header.last_sequence):
                        return offset
                if header.base_sequence != (window[-1][1] + 1) & MAX_INT32:
                    raise OutOfOrderSequenceNumberError(f"{header.base_sequence} after {window[-1][1]}")
            window = self._producers.setdefault(header.producer_id, deque(maxlen=WINDOW))
            window.append((header.base_sequence, header.last_sequence, len(self.values)))
        offset = len(self.values)
        self.values.extend(values)
        self._batches.append(batch)
        return offset

    def elect_unclean(self, lost_batches: int) -> None:
        """Make a replica the leader that lacks the last batches, and the state of their producers."""
        kept = self._batches[: max(0, len(self._batches) - lost_batches)]
        self.leader_epoch += 1
        self.values, self._batches, self._producers = [], [], {}
        for batch in kept:
            self.append(batch)
