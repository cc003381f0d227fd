"""A batch of records for one partition, and the futures of its records.

A batch is delivered or fails as a whole, so no state is kept per record: the `RecordFuture` that `send` returns is a
pair (batch, index).
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from paceline.model.errors import PacelineError, RequestTimedOutError
from paceline.model.identifiers import TopicPartition
from paceline_client.codec import BatchEncoder

DeliveryCallback = Callable[["RecordMetadata | None", PacelineError | None], None]
"""Called with the metadata of a delivered record and None, or with None and the error."""

_EVENT_LOCK = threading.Lock()
_STATE_LOCK = threading.Lock()
_FUTURE_STATE: Final = frozenset(Future().__dict__)


class RecordMetadata(NamedTuple):
    """Position of a record in the log; ``offset`` is None with acks NONE, when the broker does not return it."""

    topic: str
    partition: int
    offset: int | None
    timestamp_ms: int | None
    """The broker's append time on topics with LogAppendTime; None when the record has the producer's timestamp."""


# tuple.__new__ creates the named tuple without a Python call, at half the cost.
_new: Final = tuple.__new__


class ProducerBatch:
    """Encoded records of one partition; `Accumulator` changes its state.

    The result (``error``, ``base_offset``, then ``done``) is written once; readers need no lock.
    """

    def __init__(self, topic_partition: TopicPartition, encoder: BatchEncoder, created_ms: int) -> None:
        self.topic_partition = topic_partition
        self.encoder: BatchEncoder | None = encoder
        self.created_ms = created_ms
        self.count = 0
        self.charged_bytes = 0
        self.callbacks: list[tuple[int, DeliveryCallback]] | None = None
        self.sealed = False
        """Whether no more records may be added."""
        self.data: bytes | bytearray | None = None
        """The finished batch, kept so that every retry sends the same bytes."""
        self.base_sequence: int | None = None
        self.number = 0
        """Number of batches of the partition that were drained before this batch."""
        self.topic_id = ""
        """Topic id of the last attempt, empty when the metadata has no topic ids."""
        self.leader_epoch: int | None = None
        """Leader epoch of the last attempt."""
        self.on_wire = False
        self.was_oldest = False
        """Whether all earlier batches of the partition had a result when the last attempt was sent."""
        self.attempts = 0
        self.maybe_appended = False
        """Whether an attempt ended without a definite answer."""
        self.renumber = False
        """Whether the batch is definitely not in the log and waits for a new producer id, because of a sequence gap."""
        self.last_error: PacelineError | None = None
        self.done = False
        self.error: PacelineError | None = None
        self.base_offset: int | None = None
        self.log_append_time_ms: int | None = None
        self._announced = False
        self._event: threading.Event | None = None
        self._listeners: list[Callable[[ProducerBatch], None]] | None = []
        """Called once with the resolved batch; None after these calls."""

    def resolve(self, base_offset: int | None, log_append_time_ms: int | None, error: PacelineError | None) -> None:
        """Set the result, once; call `announce` after the callbacks have run."""
        assert not self.done
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.error = error
        self.done = True

    @property
    def may_be_in_log(self) -> bool:
        """Whether an attempt is in flight or ended without a definite answer."""
        return self.on_wire or self.maybe_appended

    @property
    def announced(self) -> bool:
        """Whether the result is known and the callbacks have run."""
        return self._announced

    def when_resolved(self, listener: "Callable[[ProducerBatch], None]") -> None:
        """Call ``listener`` with this batch on the sender thread when its result is known, or now if it is known."""
        with _EVENT_LOCK:
            if self._listeners is not None:
                self._listeners.append(listener)
                return
        listener(self)

    def announce(self) -> None:
        """Call the listeners, and wake the threads that wait for the result."""
        with _EVENT_LOCK:
            listeners, self._listeners = self._listeners, None
        for listener in listeners or ():
            listener(self)
        self._announced = True
        event = self._event
        if event is not None:
            event.set()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until the result is known and the callbacks have run; return False after the timeout.

        Even without a timeout the wait ends, because every batch is delivered or fails within the delivery timeout.
        """
        if self._announced:
            return True
        event = self._event
        if event is None:
            with _EVENT_LOCK:
                event = self._event
                if event is None:
                    event = self._event = threading.Event()
        # `announce` sets the flag before it reads `_event`, and this thread stores `_event` before it reads the flag:
        # at least one of the two threads sees the change of the other.
        return self._announced or event.wait(timeout_s)

    def metadata(self, index: int) -> RecordMetadata:
        """Return the metadata of record ``index`` of this delivered batch."""
        topic, partition = self.topic_partition
        offset = None if self.base_offset is None else self.base_offset + index
        return _new(RecordMetadata, (topic, partition, offset, self.log_append_time_ms))

    def add_callback(self, index: int, callback: DeliveryCallback) -> None:
        """Register ``callback`` for record ``index``; allowed only before the result is known."""
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append((index, callback))


class RecordFuture(Future[RecordMetadata]):
    """The result of a `Producer.send`, a standard future that cannot be cancelled.

    `asyncio.wrap_future` and `concurrent.futures.wait` take it. Its own state is the batch's; the state of the base
    class, whose lock costs more than the rest of a send, exists only when a function of the standard library reads it.
    """

    __slots__ = ("batch", "index")

    def __init__(self, batch: ProducerBatch, index: int) -> None:
        self.batch = batch
        """Batch of the record."""
        self.index = index
        """Index of the record in its batch."""

    def __getattr__(self, name: str) -> Any:
        """Create the state of the base class, and return one of its attributes."""
        if name not in _FUTURE_STATE:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        with _STATE_LOCK:
            is_first = "_condition" not in self.__dict__
            if is_first:
                super().__init__()
        if is_first:
            self.batch.when_resolved(self._set_state)
        return self.__dict__[name]

    def _set_state(self, batch: ProducerBatch) -> None:
        if batch.error is not None:
            self.set_exception(batch.error)
        else:
            self.set_result(batch.metadata(self.index))

    def cancel(self) -> bool:
        """Return False: a record that was sent cannot be cancelled."""
        return False

    def done(self) -> bool:
        """Return whether the result is known."""
        return self.batch.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the result and return the record's metadata.

        Raises:
            RequestTimedOutError: ``timeout`` seconds passed; the record may still be delivered.
            DeliveryFailedError: not delivered within the delivery timeout; ``cause`` has the reason.
            PacelineError: any other failure, for example the broker refused the record or the producer was closed.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.batch.metadata(self.index)

    def exception(self, timeout: float | None = None) -> PacelineError | None:
        """Wait for the result and return the error, None when the record was delivered.

        Raises:
            RequestTimedOutError: ``timeout`` seconds passed.
        """
        # In a delivery callback the result is known but not announced; waiting for the announcement would deadlock.
        if not self.batch.done and not self.batch.wait(timeout):
            raise RequestTimedOutError(f"no result for a record of {self.batch.topic_partition} in {timeout} s")
        return self.batch.error


class BulkFuture:
    """The result of a `Producer.send_many`."""

    __slots__ = ("_batches", "count")

    def __init__(self, batches: list[ProducerBatch], count: int) -> None:
        self._batches = batches
        self.count = count
        """Number of records that were sent."""

    def done(self) -> bool:
        """Return whether every result is known."""
        return all(batch.done for batch in self._batches)

    def wait(self, timeout_s: float) -> bool:
        """Wait for every result; return False when ``timeout_s`` expired."""
        return wait_for_all(self._batches, timeout_s)

    def result(self, timeout_s: float = 300.0) -> int:
        """Wait until every record is delivered and return the number of records.

        Raises:
            RequestTimedOutError: ``timeout_s`` expired.
            PacelineError: the error of the first batch that failed; other batches may have been delivered.
        """
        if not self.wait(timeout_s):
            raise RequestTimedOutError(f"no result for all of {self.count} records in {timeout_s} s")
        for batch in self._batches:
            if batch.error is not None:
                raise batch.error
        return self.count


def wait_for_all(batches: list[ProducerBatch], timeout_s: float) -> bool:
    """Wait for the result of every batch; return False when ``timeout_s`` expired."""
    deadline_s = time.monotonic() + timeout_s
    return all(batch.wait(max(0.0, deadline_s - time.monotonic())) for batch in batches)
