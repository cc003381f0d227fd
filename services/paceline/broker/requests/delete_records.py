"""DeleteRecords: raise the log start offset, first at the leader (KIP-107).

The request is answered when every live replica durably starts at or above the offset, so that neither a change of
leader nor a crash restores deleted records. Followers receive the leader's log start with a fetch and report their own
with the next fetch.
Source: docs/protocol/replication.md#deleterecords.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.partition.partition import Partition
from paceline.broker.requests.errors import failure_of
from paceline.broker.requests.leader_hints import hint, refusal
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.model.client_io import DeleteRecordsQuery, DeleteRecordsResult
from paceline.model.errors import (
    InvalidTopicError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    PacelineError,
    PolicyViolationError,
    RequestTimedOutError,
)
from paceline.model.identifiers import INTERNAL_TOPICS
from paceline.replication.purgatory import Cancel, DelayedOperation

DeleteRecordsReply = Callable[[list[DeleteRecordsResult]], None]


class DeleteRecordsHandler:
    """Handles DeleteRecords for the hosted partitions."""

    def __init__(self, hosted: HostedPartitions, storage: ReplicaStorage) -> None:
        self._hosted = hosted
        self._storage = storage

    def delete(
        self, queries: Sequence[DeleteRecordsQuery], timeout_ms: int, reply: DeleteRecordsReply
    ) -> Cancel | None:
        """Delete the records below the offsets and reply once, with one result per query.

        Returns a function that cancels the wait for the replicas, None without a wait.
        """
        results: list[DeleteRecordsResult] = []
        pending: list[_Pending] = []
        try:
            for query in queries:
                result = DeleteRecordsResult(query.topic_partition)
                results.append(result)
                waiting = self._delete(query, result)
                if waiting is not None:
                    pending.append(waiting)
            if pending:
                self._storage.make_log_starts_durable()
        finally:
            self._hosted.deliver_changes()
        if not pending:
            reply(results)
            return None
        operation = DelayedDeleteRecords(self._hosted, results, pending, reply)
        keys = [waiting.result.topic_partition for waiting in pending]
        return self._hosted.waiting_deletes.await_completion(operation, keys, max(timeout_ms, 0))

    def _delete(self, query: DeleteRecordsQuery, result: DeleteRecordsResult) -> "_Pending | None":
        topic_partition = query.topic_partition
        try:
            if topic_partition.topic in INTERNAL_TOPICS:
                raise InvalidTopicError(f"clients may not delete records of {topic_partition.topic}")
            partition = self._hosted.lookup(topic_partition)
            partition.check_topic_id(query.topic_id)
            log = partition.serving_log(query.current_leader_epoch)
            if not log.config.deletes:
                raise PolicyViolationError(f"{topic_partition.topic} has no cleanup policy that deletes")
            offset = log.high_watermark if query.before_offset is None else query.before_offset
            if not 0 <= offset <= log.high_watermark:
                raise OffsetOutOfRangeError(
                    f"{topic_partition}: offset {offset} is beyond the high watermark {log.high_watermark}",
                    log.log_start_offset,
                    log.high_watermark,
                )
            old_log_start_offset = log.log_start_offset
            partition.delete_records(offset)
            result.old_log_start_offset = old_log_start_offset
        except PacelineError as error:
            result.failure = refusal(self._hosted, error, topic_partition, query.topic_id)
            if isinstance(error, KafkaStorageError):
                self._storage.storage_failed()
            return None
        return _Pending(partition, offset, result)


@dataclass(slots=True, eq=False)
class _Pending:
    """A partition of which not every live replica has deleted the records."""

    partition: Partition
    offset: int
    result: DeleteRecordsResult


class DelayedDeleteRecords(DelayedOperation):
    """A deletion that waits for the replicas; deleted records stay deleted in any case."""

    def __init__(
        self,
        hosted: HostedPartitions,
        results: list[DeleteRecordsResult],
        pending: list[_Pending],
        reply: DeleteRecordsReply,
    ) -> None:
        super().__init__()
        self._hosted = hosted
        self._results = results
        self._pending = pending
        self._reply = reply

    def advance(self) -> bool:
        """Whether every partition has a result: all live replicas have deleted the records, or the partition failed."""
        self._pending = [waiting for waiting in self._pending if not self._decided(waiting)]
        return not self._pending

    def _decided(self, waiting: _Pending) -> bool:
        topic_partition = waiting.result.topic_partition
        try:
            self._hosted.lookup(topic_partition)
            log = waiting.partition.serving_log()
            if log.directory.is_offline:
                raise KafkaStorageError(f"the log directory of {topic_partition} has failed")
            if not log.directory.log_starts_durable:
                raise KafkaStorageError(f"the disk has no room to record the new log start of {topic_partition}")
        except PacelineError as error:
            leader = hint(self._hosted, topic_partition, waiting.partition.topic_id)
            waiting.result.failure = failure_of(error, leader)
            return True
        low_watermark = waiting.partition.low_watermark()
        if low_watermark is None or low_watermark < waiting.offset:
            return False
        waiting.result.low_watermark = low_watermark
        return True

    def on_complete(self) -> None:
        """Reply; a partition that still waits for replicas gets a timeout error."""
        for waiting in self._pending:
            error = RequestTimedOutError(f"not every replica of {waiting.result.topic_partition} has deleted yet")
            waiting.result.failure = failure_of(error)
        self._reply(self._results)
