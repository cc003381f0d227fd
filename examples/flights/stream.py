"""Send the flights with an idempotent producer at a limited rate, and count the acknowledgements."""

import time
from collections.abc import Callable, Iterable
from itertools import islice

from examples.flights.report import StreamTotals
from paceline_client import Producer, RecordMetadata

_SLICE = 200
_SLOWDOWN = 5
_STALL_SECONDS = 0.5


class Stream:
    """A single pass over the records. Another thread may read `acked` and `sent`."""

    def __init__(self, producer: Producer, topic: str, total: int, duration_s: float) -> None:
        self._producer = producer
        self._topic = topic
        self._total = total
        self._duration_s = duration_s
        self._started = 0.0
        self._failures: list[str] = []
        self._last_ack = 0.0
        self._stalls: list[tuple[float, float]] = []
        self.sent = 0
        self.acked = 0
        self.acked_ends: dict[int, int] = {}
        """Exclusive end of the acknowledged records, by partition."""

    def run(
        self, records: Iterable[tuple[bytes, bytes]], on_start: Callable[[float], None], is_slow: Callable[[], bool]
    ) -> StreamTotals:
        """Send every record, at a fifth of the pace while ``is_slow()``; return when each is acknowledged or failed."""
        records = iter(records)
        due = self._started = time.monotonic()
        on_start(self._started)
        while chunk := list(islice(records, _SLICE)):
            for key, value in chunk:
                self._producer.send(self._topic, value, key=key, on_delivery=self._delivered)
            self.sent += len(chunk)
            due += self._duration_s * len(chunk) / self._total * (_SLOWDOWN if is_slow() else 1)
            ahead = due - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
        self._producer.flush(timeout_s=150.0)
        elapsed = time.monotonic() - self._started
        return StreamTotals(self.sent, self.acked, tuple(self._failures), elapsed, tuple(self._stalls))

    def _delivered(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        # Called on the producer's sender thread, one call at a time.
        if error is not None:
            self._failures.append(f"{type(error).__name__}: {error}")
            return
        self.acked += 1
        if metadata is not None and metadata.offset is not None:
            self.acked_ends[metadata.partition] = metadata.offset + 1
        now = time.monotonic() - self._started
        if now - self._last_ack > _STALL_SECONDS:
            self._stalls.append((self._last_ack, now))
        self._last_ack = now
