"""From requests as the doors hand them over to the handlers, and from what they found to answers."""

from collections.abc import Callable, Sequence
from functools import partial

from paceline.broker.partition.offsets import describe_replicas, list_offsets, offsets_for_leader_epoch
from paceline.broker.partition.replica_manager import ReplicaManager
from paceline.broker.requests.digest_range import digest_range
from paceline.broker.requests.errors import failure_of
from paceline.broker.requests.fetch_types import FetchLimits, PartitionRead, Reader
from paceline.model.client_io import (
    DeleteRecordsQuery,
    DeleteRecordsResult,
    DigestAnswer,
    DigestQuery,
    EpochAnswer,
    EpochQuery,
    FetchRequest,
    FetchResponse,
    FetchResult,
    Isolation,
    OffsetAnswer,
    OffsetQuery,
    PartitionReplicasView,
    ProduceData,
    ProduceResult,
    RequiredAcks,
)
from paceline.model.errors import (
    ErrorCode,
    FetchSessionIdNotFoundError,
    InvalidFetchSessionEpochError,
    OffsetOutOfRangeError,
    PacelineError,
)
from paceline.model.replica_fetch import ReplicaFetchRequest, ReplicaFetchResponse, ReplicaFetchResult
from paceline.model.settings import BrokerConfig
from paceline.replication.fetch_session import FetchPosition
from paceline.replication.purgatory import Cancel

_SessionErrors = (FetchSessionIdNotFoundError, InvalidFetchSessionEpochError)
_CLIENT = Reader(None)


class ClientRequests:
    """The data path's requests. ``refusal`` is why the whole broker does not serve, None when it does."""

    def __init__(self, config: BrokerConfig, manager: ReplicaManager) -> None:
        self._config = config
        self._manager = manager

    def produce(
        self,
        acks: RequiredAcks,
        timeout_ms: int,
        data: Sequence[ProduceData],
        reply: Callable[[list[ProduceResult]], None],
        from_client: bool,
        refusal: PacelineError | None,
    ) -> Cancel | None:
        """Append batches and reply once."""
        if refusal is not None:
            reply([ProduceResult(item.topic_partition, failure_of(refusal)) for item in data])
            return None
        return self._manager.produces.produce(acks, timeout_ms, data, reply, from_client)

    def fetch(
        self, request: FetchRequest, reply: Callable[[FetchResponse], None], refusal: PacelineError | None
    ) -> Cancel | None:
        """Answer a client's fetch."""
        if refusal is not None:
            reply(FetchResponse([], 0, failure_of(refusal)))
            return None
        positions = [
            FetchPosition(
                item.topic_partition,
                item.topic_id,
                item.fetch_offset,
                item.max_bytes,
                item.current_leader_epoch,
                item.last_fetched_epoch,
            )
            for item in request.partitions
        ]
        limits = FetchLimits(
            request.max_wait_ms, request.min_bytes, min(request.max_bytes, self._config.fetch_max_bytes)
        )
        try:
            return self._manager.fetches.fetch(
                Reader(None, rack=request.rack) if request.rack else _CLIENT,
                limits,
                request.session_id,
                request.session_epoch,
                positions,
                request.forgotten,
                partial(self._answer_client, reply),
            )
        except _SessionErrors as error:
            reply(FetchResponse([], 0, failure_of(error)))
            return None

    def _answer_client(
        self, reply: Callable[[FetchResponse], None], session_id: int, reads: list[PartitionRead]
    ) -> None:
        reply(FetchResponse([self._client_result(read) for read in reads], session_id))

    def _client_result(self, read: PartitionRead) -> FetchResult:
        topic_partition = read.position.topic_partition
        if read.error is not None:
            refusal = self._manager.refusal(read.error, topic_partition, read.position.topic_id)
            return FetchResult(topic_partition, refusal)
        return FetchResult(
            topic_partition,
            None,
            read.high_watermark,
            read.high_watermark,
            read.log_start_offset,
            read.diverging_epoch,
            read.batches,
            read.preferred_replica,
        )

    def replica_fetch(
        self, request: ReplicaFetchRequest, reply: Callable[[ReplicaFetchResponse], None]
    ) -> Cancel | None:
        """Answer a follower's fetch."""
        positions = [
            FetchPosition(
                item.topic_partition,
                item.topic_id,
                item.fetch_offset,
                item.max_bytes,
                item.current_leader_epoch,
                item.last_fetched_epoch,
                item.log_start_offset,
            )
            for item in request.partitions
        ]
        try:
            return self._manager.fetches.fetch(
                Reader(
                    request.replica_id,
                    request.broker_epoch,
                    wants_high_watermark=request.wants_high_watermark,
                ),
                FetchLimits(request.max_wait_ms, request.min_bytes, request.max_bytes),
                request.session_id,
                request.session_epoch,
                positions,
                request.forgotten,
                lambda session_id, reads: reply(
                    ReplicaFetchResponse(session_id, [_replica_result(read) for read in reads])
                ),
            )
        except _SessionErrors as error:
            reply(ReplicaFetchResponse(0, [], error.code))
            return None

    def offsets_for_leader_epoch(
        self, queries: Sequence[EpochQuery], from_client: bool, refusal: PacelineError | None
    ) -> list[EpochAnswer]:
        """Say where leader epochs ended."""
        if refusal is not None:
            return [EpochAnswer(query.topic_partition, failure_of(refusal)) for query in queries]
        return offsets_for_leader_epoch(self._manager, queries, from_client)

    def digest_range(self, query: DigestQuery, refusal: PacelineError | None) -> DigestAnswer:
        """Summarize a range of this broker's replica."""
        if refusal is not None:
            return DigestAnswer(query.topic_partition, failure_of(refusal))
        return digest_range(self._manager, query)

    def list_offsets(
        self, queries: Sequence[OffsetQuery], isolation: Isolation, refusal: PacelineError | None
    ) -> list[OffsetAnswer]:
        """Look up offsets. Both isolation levels see the same while there are no transactions."""
        del isolation
        if refusal is not None:
            return [OffsetAnswer(query.topic_partition, failure_of(refusal)) for query in queries]
        return list_offsets(self._manager, queries)

    def delete_records(
        self,
        queries: Sequence[DeleteRecordsQuery],
        timeout_ms: int,
        reply: Callable[[list[DeleteRecordsResult]], None],
        refusal: PacelineError | None,
    ) -> Cancel | None:
        """Delete records from the beginning of logs and reply once."""
        if refusal is not None:
            reply([DeleteRecordsResult(query.topic_partition, failure_of(refusal)) for query in queries])
            return None
        return self._manager.deletes.delete(queries, timeout_ms, reply)

    def describe_replicas(self, topic: str, partitions: Sequence[int]) -> list[PartitionReplicasView]:
        """Show a leader's view; no partitions means all of the topic that are led here."""
        manager = self._manager
        indexes = partitions or sorted(
            partition.topic_partition.partition
            for partition in manager.led_partitions()
            if partition.topic_partition.topic == topic
        )
        return describe_replicas(manager, topic, indexes, manager.now_ms())


def _replica_result(read: PartitionRead) -> ReplicaFetchResult:
    error = read.error
    if error is None:
        return ReplicaFetchResult(
            read.position.topic_partition,
            ErrorCode.NONE,
            read.leader_epoch,
            read.high_watermark,
            read.log_start_offset,
            read.log_end_offset,
            read.diverging_epoch,
            read.batches,
        )
    result = ReplicaFetchResult(read.position.topic_partition, error.code, read.leader_epoch)
    if isinstance(error, OffsetOutOfRangeError):
        result.log_start_offset = read.log_start_offset
        result.log_end_offset = read.log_end_offset
    return result
