"""Produce: append, then answer at once or after the high watermark has passed the batch.

Source: docs/protocol/replication.md#produce.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.partition.partition import Partition
from paceline.broker.requests.append_coalescing import AppendCoalescer, SmallAppend
from paceline.broker.requests.errors import failure_of
from paceline.broker.requests.leader_hints import hint, refusal
from paceline.broker.requests.proof_waits import ProofWaits
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.log.append_info import AppendInfo
from paceline.log.damage import DamagedLogError
from paceline.model.client_io import PartitionFailure, ProduceData, ProduceResult, RequiredAcks
from paceline.model.errors import (
    CorruptMessageError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    KafkaStorageError,
    LogDirFullError,
    NotEnoughReplicasAfterAppendError,
    PacelineError,
    RequestTimedOutError,
    error_for,
)
from paceline.model.identifiers import INTERNAL_TOPICS
from paceline.replication.purgatory import Cancel, DelayedOperation

ProduceReply = Callable[[list[ProduceResult]], None]


class ProduceHandler:
    """Handles produce requests for the hosted partitions."""

    def __init__(
        self, hosted: HostedPartitions, storage: ReplicaStorage, proofs: ProofWaits, coalescer: AppendCoalescer
    ) -> None:
        self._hosted = hosted
        self._storage = storage
        self._proofs = proofs
        self._scheduler = hosted.scheduler
        self._coalescer = coalescer
        self._traffic = hosted.traffic
        self.request_count = 0

    def produce(
        self,
        acks: RequiredAcks,
        timeout_ms: int,
        data: Sequence[ProduceData],
        reply: ProduceReply,
        from_client: bool = True,
        producer: Hashable = None,
    ) -> Cancel | None:
        """Append each batch and call ``reply`` once, with one result per batch in their order.

        ``producer`` identifies the connection, so that requests of the same producer are known as such; None for the
        broker's own appends, for which no fetch of a follower waits.
        Returns a function that cancels the wait for replication, None without a wait; appended batches stay.
        """
        self.request_count += 1
        if acks not in (RequiredAcks.ALL, RequiredAcks.NONE, RequiredAcks.LEADER):
            error = InvalidRequiredAcksError(f"acks is {acks}; valid values are -1, 0 and 1")
            reply([ProduceResult(item.topic_partition, failure_of(error)) for item in data])
            return None
        wait_for_all = acks == RequiredAcks.ALL
        wall_ms = self._scheduler.wall_ms()
        results: list[ProduceResult] = []
        pending: list[_Pending] = []
        append = None
        was_refused = False
        if wait_for_all and producer is not None:
            append = self._coalescer.append_arrived(producer, sum(len(item.batch) for item in data))
        try:
            for item in data:
                result = ProduceResult(item.topic_partition)
                results.append(result)
                partition, appended = self._append(item, wait_for_all, wall_ms, from_client, result)
                if wait_for_all and partition is not None and appended is not None:
                    pending.append(_Pending(partition, appended.last_offset + 1, result))
                was_refused = was_refused or appended is None
        finally:
            self._hosted.deliver_changes()
        if was_refused and not self._hosted.in_contact():
            reply = self._reply_when_proved(data, results, timeout_ms, reply)
        if not pending:
            reply(results)
            return None
        operation = DelayedProduce(self._hosted, results, pending, reply, self._coalescer, append)
        keys = [waiting.result.topic_partition for waiting in pending]
        return self._hosted.waiting_produces.await_completion(operation, keys, max(timeout_ms, 0))

    def _reply_when_proved(
        self, data: Sequence[ProduceData], results: list[ProduceResult], timeout_ms: int, reply: ProduceReply
    ) -> ProduceReply:
        """Return a reply that first waits for a proof of leadership if a producer does not retry one of the errors."""
        both = zip(data, results, strict=True)
        final = [(item, one) for item, one in both if one.failure and not error_for(one.failure.code).retriable]
        hosted, asked_ms = self._hosted, self._scheduler.now_ms()

        def answer() -> None:
            for item, result in final:
                try:
                    hosted.lookup(item.topic_partition).serving_log()
                except PacelineError as error:
                    result.failure = refusal(hosted, error, item.topic_partition, item.topic_id)
            reply(results)

        def reply_when_proved(_results: list[ProduceResult]) -> None:
            named = (item.topic_partition for item, _ in final)
            self._proofs.when_proved(named, asked_ms, timeout_ms, answer)

        return reply_when_proved if final else reply

    def _append(
        self, item: ProduceData, wait_for_all: bool, wall_ms: int, from_client: bool, result: ProduceResult
    ) -> tuple[Partition | None, AppendInfo | None]:
        topic_partition = item.topic_partition
        try:
            if from_client and topic_partition.topic in INTERNAL_TOPICS:
                raise InvalidTopicError(f"clients may not write to {topic_partition.topic}")
            partition = self._hosted.lookup(topic_partition)
            partition.check_topic_id(item.topic_id)
            appended = partition.append_as_leader(
                item.batch, wait_for_all, wall_ms, item.current_leader_epoch, uses_reserve=not from_client
            )
        except DamagedLogError as error:
            self._traffic.refused(topic_partition.topic, len(item.batch), hosted=True, invalid_crc=False)
            result.failure = failure_of(self._storage.log_damaged(topic_partition, error))
            return None, None
        except PacelineError as error:
            hosted = topic_partition.topic in self._traffic.topics
            invalid_crc = isinstance(error, CorruptMessageError)
            self._traffic.refused(topic_partition.topic, len(item.batch), hosted, invalid_crc)
            if isinstance(error, LogDirFullError):
                error = LogDirFullError(f"broker {self._hosted.broker_id} has no room for {topic_partition}: {error}")
            result.failure = refusal(self._hosted, error, topic_partition, item.topic_id)
            if isinstance(error, KafkaStorageError):
                self._storage.storage_failed()
            return None, None
        records = 0 if appended.duplicate else appended.last_offset + 1 - appended.base_offset
        self._traffic.produced(topic_partition.topic, len(item.batch), records)
        if records:
            partition.bytes_in += len(item.batch)
        result.base_offset = appended.base_offset
        result.log_append_time_ms = appended.log_append_time_ms
        result.log_start_offset = appended.log_start_offset
        return partition, appended


@dataclass(slots=True, eq=False)
class _Pending:
    """One appended batch that waits for the high watermark."""

    partition: Partition
    required_offset: int
    result: ProduceResult


class DelayedProduce(DelayedOperation):
    """A produce with acks=all; its batches stay in the log in any case."""

    def __init__(
        self,
        hosted: HostedPartitions,
        results: list[ProduceResult],
        pending: list[_Pending],
        reply: ProduceReply,
        coalescer: AppendCoalescer,
        append: SmallAppend | None,
    ) -> None:
        super().__init__()
        self._coalescer = coalescer
        self._append = append
        self._hosted = hosted
        self._results = results
        self._pending = pending
        self._reply = reply

    def advance(self) -> bool:
        """Whether every batch is decided: replicated, or lost to a change of leader."""
        self._pending = [waiting for waiting in self._pending if not self._decided(waiting)]
        return not self._pending

    def _decided(self, waiting: _Pending) -> bool:
        try:
            self._hosted.lookup(waiting.result.topic_partition)
            # Compare with the partition object of the append: after a deletion the batch was deleted with it.
            partition = waiting.partition
            log = partition.leader_log()
        except PacelineError as error:
            leader = hint(self._hosted, waiting.result.topic_partition, waiting.partition.topic_id)
            _fail(waiting.result, failure_of(error, leader))
            return True
        if log.high_watermark < waiting.required_offset:
            return False
        if not partition.has_enough_replicas:
            too_few = NotEnoughReplicasAfterAppendError(
                f"{waiting.result.topic_partition} has {len(partition.isr)} in-sync replicas left"
            )
            _fail(waiting.result, failure_of(too_few))
        return True

    def on_complete(self) -> None:
        """Answer; undecided batches have timed out."""
        for waiting in self._pending:
            error = RequestTimedOutError(f"{waiting.result.topic_partition} is not replicated yet")
            _fail(waiting.result, failure_of(error))
        if self._append is not None:
            self._coalescer.append_answered(self._append)
        self._reply(self._results)


def _fail(result: ProduceResult, failure: PartitionFailure) -> None:
    """Convert a result to a failure without offsets, which would suggest success."""
    result.failure = failure
    result.base_offset = -1
    result.log_append_time_ms = -1
