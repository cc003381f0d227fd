"""Decide when a batch is sent, with which sequence number, and how a failed attempt is handled.

Pure: no I/O, no threads, no clock. The caller passes `now_ms` and holds a lock around every call.

Rules that keep order and exactly-once delivery for an idempotent producer, per partition:

* A batch gets its sequence number when it is first drained and keeps it, and its bytes, in every retry
  (docs/protocol/clients.md#sequences-survive-retries).
* At most five batches have a sequence number, counted from the oldest batch without a result. Later batches count even
  if they have a result, because responses may arrive out of order. The broker remembers five batches, so it always
  recognises a retry of a batch that is in the log, and OUT_OF_ORDER_SEQUENCE_NUMBER always means "not in the log".
* Until the leader has acknowledged a batch of this producer id in its leader epoch, only one batch is in flight: a
  broker that does not know the producer id accepts any sequence number, and could append the second batch before the
  first (docs/protocol/clients.md#first-batch-alone).
* A batch carries the topic id that the metadata had when the batch got its sequence number. The leader of a re-created
  topic refuses the deleted topic's id and appends nothing. A new topic id in the metadata counts as a gap in the
  sequence, because the new log lacks the acknowledged batches of the deleted topic.
* After a retriable failure the batches without a result are resent one at a time, the oldest first. Later batches in
  flight reach the broker without the failed batch, are refused with OUT_OF_ORDER_SEQUENCE_NUMBER, and wait until they
  are the oldest.
* A batch that is given up leaves a gap in the sequence. Later batches that are definitely not in the log are renumbered
  under a new producer id. A batch whose result is unknown is first resent with its old number, and fails if the broker
  does not have it. A batch that may be in the log is never sent under another number.
* OUT_OF_ORDER_SEQUENCE_NUMBER for a batch that was sent with no earlier batch in flight, if this producer has left no
  gap, means that the leader lost acknowledged batches. All later batches that are not in flight get a new producer id,
  also those of unknown result: the leader has none of them, and can append none under its old number
  (docs/protocol/clients.md#lost-sequences).
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from paceline.model.errors import (
    InconsistentTopicIdError,
    InvalidProducerEpochError,
    NotEnoughReplicasAfterAppendError,
    OutOfOrderSequenceNumberError,
    PacelineError,
    RequestTimedOutError,
)
from paceline.model.identifiers import TopicPartition
from paceline_client.batch import ProducerBatch
from paceline_client.codec import FinishedBatch
from paceline_client.delivery_errors import closed_before, delivery_failed, in_words
from paceline_client.errors import ProducerClosedError, ProducerFatalError
from paceline_client.partition_queue import Gap, Leader, PartitionQueue
from paceline_client.record_buffer import AccumulatorConfig, RecordBuffer

MAX_IN_FLIGHT_IDEMPOTENT: Final = 5
"""Batches that a broker remembers per producer id and partition; Kafka's limit for idempotent producers."""

_SEQUENCE_MASK: Final = 0x7FFFFFFF


class ReadyCheck(NamedTuple):
    """Partitions with a batch to send now, and the time after which to check again at the latest, in ms."""

    partitions: list[TopicPartition]
    next_check_ms: int


class Accumulator(RecordBuffer):
    """The batches of all partitions of a producer, by the rules in the module docstring. Callers must hold a lock."""

    def __init__(self, config: AccumulatorConfig) -> None:
        super().__init__(config)
        self._max_in_flight = (
            min(config.max_in_flight, MAX_IN_FLIGHT_IDEMPOTENT) if config.enable_idempotence else config.max_in_flight
        )
        self._producer_id: int | None = None
        self._producer_epoch = -1
        self.flushing = 0
        """While positive, batches do not linger."""
        self.fatal: ProducerFatalError | None = None

    # Sending ---------------------------------------------------------------------------------------------------

    def needs_producer_id(self) -> bool:
        """Return whether a partition cannot send its batches without a new producer id."""
        if not self.config.enable_idempotence or self.fatal is not None:
            return False
        return any(self._waits_for_new_id(queue) for queue in self._active.values())

    def _waits_for_new_id(self, queue: PartitionQueue) -> bool:
        if queue.gap:
            settled = all(batch.renumber for batch in queue.unresolved)
            wanted = bool(queue.pending or queue.unresolved)
            return settled and wanted and queue.producer_id == self._producer_id
        return queue.producer_id is None and self._producer_id is None and bool(queue.pending)

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """Use a new producer id for partitions without an id or with a gap; all other partitions keep their id."""
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch

    def ready(self, now_ms: int) -> ReadyCheck:
        """Return the partitions that may be drained at ``now_ms``."""
        partitions: list[TopicPartition] = []
        soonest = self.config.delivery_timeout_ms
        for topic_partition, queue in list(self._active.items()):
            if not queue.pending and not queue.unresolved:
                del self._active[topic_partition]
                continue
            wait_ms = self._wait_ms(queue, now_ms)
            if wait_ms == 0:
                partitions.append(topic_partition)
            elif wait_ms is not None:
                soonest = min(soonest, wait_ms)
            soonest = min(soonest, max(1, self._next_expiry_ms(queue) - now_ms))
        return ReadyCheck(partitions, soonest)

    def _wait_ms(self, queue: PartitionQueue, now_ms: int) -> int | None:
        """Return the ms until the partition may be drained; None while it waits for an event, such as a result."""
        if self.fatal is not None:
            return None
        if self.config.enable_idempotence:
            queue.settle_gap(self._producer_id)
        next_up = queue.next_to_resend()
        if next_up is None and (queue.unresolved and queue.recovering()):
            return None
        if next_up is None and not self._may_send_new(queue):
            return None
        if now_ms < queue.retry_at_ms:
            return queue.retry_at_ms - now_ms
        if next_up is not None:
            return 0
        first = queue.pending[0]
        if first.sealed or len(queue.pending) > 1 or self.flushing or self.buffered_bytes >= self.config.buffer_memory:
            return 0
        return max(0, first.created_ms + self.config.linger_ms - now_ms)

    def _may_send_new(self, queue: PartitionQueue) -> bool:
        if not queue.pending:
            return False
        if queue.unresolved and queue.started - queue.unresolved[0].number >= self._max_in_flight:
            return False
        if not self.config.enable_idempotence:
            return True
        if queue.gap or (queue.producer_id is None and self._producer_id is None):
            return False
        return queue.acknowledged or not queue.unresolved

    def locate(self, topic_partition: TopicPartition, topic_id: str, leader_epoch: int | None) -> None:
        """Set topic id and leader epoch to which the partition's next batches are sent; an empty id changes nothing."""
        queue = self._queues[topic_partition]
        if queue.leader_epoch != leader_epoch:
            queue.leader_epoch = leader_epoch
            queue.acknowledged = False
        if topic_id and queue.topic_id != topic_id:
            queue.belong_to(topic_id)

    def drain(self, partitions: Iterable[TopicPartition], max_bytes: int, now_ms: int) -> list[ProducerBatch]:
        """Take at most one batch per partition, in total at most ``max_bytes`` unless the first batch alone is larger.

        The caller sends the batches and reports each attempt with `complete` or `fail`.
        """
        drained: list[ProducerBatch] = []
        total = 0
        for topic_partition in partitions:
            queue = self._queues[topic_partition]
            if self._wait_ms(queue, now_ms) != 0:
                continue
            batch = queue.next_to_resend() or queue.pending[0]
            size = len(batch.data) if batch.data is not None else batch.charged_bytes
            if drained and total + size > max_bytes:
                break
            total += size
            if queue.pending and batch is queue.pending[0]:
                self._start(queue, batch)
            elif not self.config.enable_idempotence:
                batch.topic_id = queue.topic_id
            batch.on_wire = True
            batch.renumber = False
            batch.was_oldest = queue.unresolved[0] is batch
            batch.leader_epoch = queue.leader_epoch
            batch.attempts += 1
            drained.append(batch)
            self._active.move_to_end(topic_partition)
        return drained

    def _start(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        queue.pending.popleft()
        queue.unresolved.append(batch)
        batch.number = queue.started
        queue.started += 1
        batch.topic_id = queue.topic_id
        batch.sealed = True
        if queue.open is batch:
            queue.open = None
        if not self.config.enable_idempotence:
            return
        if queue.producer_id is None:
            assert self._producer_id is not None
            queue.producer_id = self._producer_id
            queue.producer_epoch = self._producer_epoch
            queue.next_sequence = 0
            queue.acknowledged = False
        batch.base_sequence = queue.next_sequence
        queue.next_sequence = (queue.next_sequence + batch.count) & _SEQUENCE_MASK

    # Results ---------------------------------------------------------------------------------------------------

    def complete(self, batch: ProducerBatch, base_offset: int | None, log_append_time_ms: int | None) -> None:
        """Resolve a batch that the broker has appended, in this attempt or an earlier attempt."""
        queue = self._queues[batch.topic_partition]
        batch.on_wire = False
        queue.unresolved.remove(batch)
        queue.acknowledged = queue.acknowledged or batch.leader_epoch == queue.leader_epoch
        queue.last_error = None
        self._resolve(batch, base_offset, log_append_time_ms, None)

    def fail(
        self,
        batch: ProducerBatch,
        error: PacelineError,
        now_ms: int,
        answered: bool = True,
        leader: Leader | None = None,
    ) -> bool:
        """Schedule a retry of a failed attempt, or fail the batch; return whether the batch will be sent again.

        Args:
            batch: the batch.
            error: the failure; its message names the broker.
            now_ms: the time.
            answered: False when the request may have been sent and no response arrived; the batch may be in the log.
            leader: the leader that received the attempt; `retry_at_new_leaders` compares it with the present leader.
        """
        queue = self._queues[batch.topic_partition]
        batch.on_wire = False
        if not (answered and error.definite):
            batch.maybe_appended = True
        batch.renumber = isinstance(error, InconsistentTopicIdError)
        if isinstance(error, InvalidProducerEpochError):
            return self._fail_fatally(batch, error)
        if isinstance(error, OutOfOrderSequenceNumberError) and self.config.enable_idempotence:
            return self._out_of_order(queue, batch, error, now_ms)
        if not isinstance(error, RequestTimedOutError) or batch.last_error is None:
            batch.last_error = error
            queue.last_error = error
        if batch.done:
            queue.drop(batch)
            return False
        if not self._worth_another_attempt(batch, error):
            self._give_up(queue, batch, error)
            return False
        if now_ms >= batch.created_ms + self.config.delivery_timeout_ms:
            self._give_up(queue, batch, delivery_failed(queue, batch, self.config.delivery_timeout_ms))
            return False
        queue.retry_at_ms = now_ms + max(self._backoff_ms(batch.attempts), error.retry_delay_ms)
        queue.failed_leader = leader if error.refresh_metadata or not answered else None
        return True

    def retry_at_new_leaders(self, leader_of: Callable[[TopicPartition], Leader | None], now_ms: int) -> bool:
        """End the back-off of partitions whose leader has changed since the failure (KAFKA-15415).

        Return whether a partition in back-off still has its failed leader, so that metadata should be read again.
        """
        waiting = False
        for topic_partition, queue in self._active.items():
            if queue.failed_leader is None or now_ms >= queue.retry_at_ms:
                continue
            leader = leader_of(topic_partition)
            if leader is None or leader == queue.failed_leader:
                waiting = True
            else:
                queue.retry_at_ms = 0
        return waiting

    def record_error(self, topic_partition: TopicPartition, error: PacelineError) -> None:
        """Store the error that keeps batches of a partition from being sent; batches that expire name it as cause."""
        queue = self._queues.get(topic_partition)
        if queue is not None:
            queue.last_error = error

    def _worth_another_attempt(self, batch: ProducerBatch, error: PacelineError) -> bool:
        if isinstance(error, NotEnoughReplicasAfterAppendError):
            # A finished batch may have sequences of its caller, which keep a retry from being appended twice.
            return self.config.enable_idempotence or isinstance(batch.encoder, FinishedBatch)
        return error.retriable or error.refresh_metadata

    def _backoff_ms(self, attempts: int) -> int:
        return min(self.config.retry_backoff_ms << min(attempts - 1, 16), self.config.retry_backoff_max_ms)

    def _out_of_order(self, queue: PartitionQueue, batch: ProducerBatch, error: PacelineError, now_ms: int) -> bool:
        if queue.gap is None and batch.was_oldest:
            queue.gap = Gap.LOST
            queue.retry_at_ms = now_ms + self._backoff_ms(batch.attempts)
            queue.failed_leader = None
            batch.last_error = queue.last_error = error
        if batch.done:
            queue.drop(batch)
            return False
        if queue.gap is Gap.GIVEN_UP and batch.maybe_appended:
            self._give_up(queue, batch, error)
            return False
        # Without a gap, an earlier batch was in flight and may not have been appended before this batch. The retry is
        # sent with no earlier batch in flight, so its result is definite.
        batch.renumber = queue.gap is not None
        batch.maybe_appended = batch.maybe_appended and not batch.renumber
        return True

    def _fail_fatally(self, batch: ProducerBatch, error: PacelineError) -> bool:
        self.fail_all(ProducerFatalError(f"{batch.topic_partition}: {error}", error))
        return False

    def fail_all(self, error: PacelineError) -> None:
        """Fail every record without a result; a `ProducerFatalError` also ends later sends and appends."""
        if isinstance(error, ProducerFatalError):
            self.fatal = self.fatal or error
        for batch in list(self._incomplete.values()):
            self._resolve(batch, None, None, self._with_cause(batch, error))
        for queue in self._active.values():
            queue.open = None
            queue.pending.clear()
            queue.unresolved = deque(batch for batch in queue.unresolved if batch.on_wire)

    def _with_cause(self, batch: ProducerBatch, error: PacelineError) -> PacelineError:
        if isinstance(error, ProducerClosedError):
            return closed_before(self._queues[batch.topic_partition], batch, error)
        return error

    def cause_suffix(self) -> str:
        """Return the last error of a partition with batches, as a suffix for a message; empty without an error."""
        causes = (queue.last_error for queue in self._active.values() if queue.last_error is not None)
        cause = next(causes, None)
        return "" if cause is None else f"; {in_words(cause)}"

    def expire(self, now_ms: int) -> None:
        """Fail batches that reached the delivery timeout, including batches in flight."""
        limit = now_ms - self.config.delivery_timeout_ms
        for queue in list(self._active.values()):
            for batch in list(queue.unresolved):
                if batch.done or batch.created_ms > limit:
                    continue
                if not batch.on_wire:
                    self._give_up(queue, batch, delivery_failed(queue, batch, self.config.delivery_timeout_ms))
                else:
                    # Only the response of the attempt in flight decides whether the sequence has a gap.
                    batch.maybe_appended = True
                    self._resolve(batch, None, None, delivery_failed(queue, batch, self.config.delivery_timeout_ms))
            while queue.pending and queue.pending[0].created_ms <= limit:
                batch = queue.pending.popleft()
                if queue.open is batch:
                    queue.open = None
                self._resolve(batch, None, None, delivery_failed(queue, batch, self.config.delivery_timeout_ms))

    def _next_expiry_ms(self, queue: PartitionQueue) -> int:
        created = [batch.created_ms for batch in queue.unresolved if not batch.done]
        if queue.pending:
            created.append(queue.pending[0].created_ms)
        return min(created, default=1 << 62) + self.config.delivery_timeout_ms

    def _give_up(self, queue: PartitionQueue, batch: ProducerBatch, error: PacelineError) -> None:
        queue.drop(batch)
        if not batch.done:
            self._resolve(batch, None, None, error)
