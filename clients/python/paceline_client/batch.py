"""One batch of records on its way to one partition, and the futures that share it.

A record costs no future of its own until somebody asks: `RecordFuture` is a pair (batch, index), and the batch is
delivered or fails as a whole.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from paceline.model.errors import PacelineError, RequestTimedOutError
from paceline.model.identifiers import TopicPartition
from paceline_client.codec import BatchEncoder

DeliveryCallback = Callable[["RecordMetadata | None", PacelineError | None], None]
"""Called once per record with its place in the log, or with what prevented it."""

_EVENT_LOCK = threading.Lock()


class RecordMetadata(NamedTuple):
    """Where a record is in the log; ``offset`` is None with acks NONE, when the broker does not say."""

    topic: str
    partition: int
    offset: int | None
    timestamp_ms: int | None
    """The broker's append time on topics that keep it, else None: the record has the producer's timestamp."""


class ProducerBatch:
    """Records of one partition, encoded; `Accumulator` moves it from state to state.

    The outcome (``error``, ``base_offset``, then ``done``) is written once; readers need no lock.
    """

    __slots__ = (
        "_announced",
        "_event",
        "attempts",
        "base_offset",
        "base_sequence",
        "callbacks",
        "charged_bytes",
        "count",
        "created_ms",
        "data",
        "done",
        "encoder",
        "error",
        "last_error",
        "log_append_time_ms",
        "maybe_appended",
        "number",
        "on_wire",
        "renumber",
        "sealed",
        "topic_id",
        "topic_partition",
        "was_oldest",
    )

    def __init__(self, topic_partition: TopicPartition, encoder: BatchEncoder, created_ms: int) -> None:
        self.topic_partition = topic_partition
        self.encoder: BatchEncoder | None = encoder
        self.created_ms = created_ms
        self.count = 0
        self.charged_bytes = 0
        self.callbacks: list[tuple[int, DeliveryCallback]] | None = None
        self.sealed = False
        """No record may be added any more."""
        self.data: bytes | bytearray | None = None
        """The finished batch, kept for retries, so every attempt sends the same bytes."""
        self.base_sequence: int | None = None
        self.number = 0
        """How many batches of the partition were drained before this one."""
        self.topic_id = ""
        """The topic that the last attempt was for, empty when metadata does not show ids."""
        self.on_wire = False
        self.was_oldest = False
        """No earlier batch of the partition was without outcome when the last attempt was sent."""
        self.attempts = 0
        self.maybe_appended = False
        """Some attempt ended without a definite answer."""
        self.renumber = False
        """Surely not in the log, and its sequence can never be continued: waits for a new producer id."""
        self.last_error: PacelineError | None = None
        self.done = False
        self.error: PacelineError | None = None
        self.base_offset: int | None = None
        self.log_append_time_ms: int | None = None
        self._announced = False
        self._event: threading.Event | None = None

    def resolve(self, base_offset: int | None, log_append_time_ms: int | None, error: PacelineError | None) -> None:
        """Set the outcome, once; `announce` follows when the callbacks have run."""
        assert not self.done
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.error = error
        self.done = True

    @property
    def announced(self) -> bool:
        """Whether the outcome is known and the callbacks have run."""
        return self._announced

    def announce(self) -> None:
        """Wake who waits for the outcome."""
        self._announced = True
        event = self._event
        if event is not None:
            event.set()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until the outcome is known and the callbacks have run; False when the time passed first.

        Without a timeout this still ends: every batch is delivered or fails within the delivery timeout.
        """
        if self._announced:
            return True
        event = self._event
        if event is None:
            with _EVENT_LOCK:
                event = self._event
                if event is None:
                    event = self._event = threading.Event()
        # `announce` writes before it looks at the event, so one of the two sides sees the other.
        return self._announced or event.wait(timeout_s)

    def metadata(self, index: int) -> RecordMetadata:
        """Return where record ``index`` of this delivered batch is."""
        topic, partition = self.topic_partition
        offset = None if self.base_offset is None else self.base_offset + index
        return RecordMetadata(topic, partition, offset, self.log_append_time_ms)

    def add_callback(self, index: int, callback: DeliveryCallback) -> None:
        """Have ``callback`` called for record ``index``; only before the outcome is known."""
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append((index, callback))


class RecordFuture:
    """The outcome of one `Producer.send`."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: ProducerBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._batch.done

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait for the outcome and return where the record is.

        Raises:
            RequestTimedOutError: ``timeout_s`` passed first; the record may still be delivered.
            DeliveryFailedError: not delivered within the delivery timeout; ``cause`` says why.
            PacelineError: the broker refused the record.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return self._batch.metadata(self._index)

    def exception(self, timeout_s: float | None = None) -> PacelineError | None:
        """Wait for the outcome and return the error, None when the record was delivered.

        Raises:
            RequestTimedOutError: ``timeout_s`` passed first.
        """
        # In a delivery callback the outcome is known before it is announced; waiting there would never end.
        if not self._batch.done and not self._batch.wait(timeout_s):
            raise RequestTimedOutError(f"no outcome for a record of {self._batch.topic_partition} in {timeout_s} s")
        return self._batch.error


class BulkFuture:
    """The outcome of one `Producer.send_many`."""

    __slots__ = ("_batches", "count")

    def __init__(self, batches: list[ProducerBatch], count: int) -> None:
        self._batches = batches
        self.count = count
        """How many records were sent."""

    def done(self) -> bool:
        """Return whether every outcome is known."""
        return all(batch.done for batch in self._batches)

    def wait(self, timeout_s: float) -> bool:
        """Wait for every outcome; return False when ``timeout_s`` passed first."""
        return wait_for_all(self._batches, timeout_s)

    def result(self, timeout_s: float = 300.0) -> int:
        """Wait until every record is delivered and return how many there were.

        Raises:
            RequestTimedOutError: ``timeout_s`` passed first.
            PacelineError: the error of the first batch that failed; others may have been delivered.
        """
        if not self.wait(timeout_s):
            raise RequestTimedOutError(f"no outcome for all of {self.count} records in {timeout_s} s")
        for batch in self._batches:
            if batch.error is not None:
                raise batch.error
        return self.count


def wait_for_all(batches: list[ProducerBatch], timeout_s: float) -> bool:
    """Wait for the outcome of every batch; return False when ``timeout_s`` passed first."""
    deadline_s = time.monotonic() + timeout_s
    return all(batch.wait(max(0.0, deadline_s - time.monotonic())) for batch in batches)
