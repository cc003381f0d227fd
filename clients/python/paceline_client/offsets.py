"""Look up offsets at the leaders: earliest, latest, by time. Blocking, with a deadline."""

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import grpc

from paceline.model.admin import PartitionDescription
from paceline.model.errors import (
    LeaderNotAvailableError,
    PacelineError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    error_for,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.channels import ChannelCache
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline.v1.log_service_pb2 import (
    OFFSET_SPEC_EARLIEST,
    OFFSET_SPEC_LATEST,
    OFFSET_SPEC_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
)
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from paceline_client.call_errors import named_error
from paceline_client.metadata import Broker
from paceline_client.metadata_refresher import MetadataRefresher
from paceline_client.subscription import OffsetReset


class OffsetAndTimestamp(NamedTuple):
    """An offset, the timestamp of the record at the offset, and the leader epoch in which the record was written.

    The timestamp is None for the earliest and the latest offset, the epoch is None when it is not known.
    """

    offset: int
    timestamp_ms: int | None
    leader_epoch: int | None


SPEC_OF_RESET = {OffsetReset.EARLIEST: OFFSET_SPEC_EARLIEST, OffsetReset.LATEST: OFFSET_SPEC_LATEST}


def query_end(topic_partition: TopicPartition, reset: OffsetReset) -> ListOffsetsPartition:
    """Return the query for the earliest or latest offset."""
    topic, partition = topic_partition
    return ListOffsetsPartition(topic=topic, partition=partition, spec=SPEC_OF_RESET[reset])


def query_time(topic_partition: TopicPartition, timestamp_ms: int) -> ListOffsetsPartition:
    """Return the query for the first record at or after a time."""
    topic, partition = topic_partition
    return ListOffsetsPartition(topic=topic, partition=partition, spec=OFFSET_SPEC_TIMESTAMP, timestamp_ms=timestamp_ms)


def fence(query: ListOffsetsPartition, known: PartitionDescription | None) -> ListOffsetsPartition:
    """Set the known leader epoch in the query, so that a leader of another epoch refuses it; return the query."""
    query.ClearField("current_leader_epoch")
    if known is not None and known.leader_epoch >= 0:
        query.current_leader_epoch = known.leader_epoch
    return query


def read_result(result: ListOffsetsPartitionResult) -> OffsetAndTimestamp | None:
    """Return the offset found, None when every record is older than the queried time.

    Raises:
        PacelineError: the leader's error.
    """
    if result.HasField("error"):
        raise error_for(result.error.code, f"{result.topic}/{result.partition}: {result.error.message}")
    if not result.HasField("offset"):
        return None
    return OffsetAndTimestamp(
        result.offset,
        result.timestamp_ms if result.HasField("timestamp_ms") else None,
        result.leader_epoch if result.leader_epoch >= 0 else None,
    )


class OffsetLookup:
    """Looks up offsets at leaders, following leader changes."""

    def __init__(self, metadata: MetadataRefresher, channels: ChannelCache) -> None:
        self._metadata = metadata
        self._channels = channels

    def look_up(
        self, queries: Iterable[ListOffsetsPartition], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the offset for every query; None when every record is older than the queried time.

        Raises:
            UnknownTopicOrPartitionError: the topic or partition does not exist.
            PacelineError: an error that is not retriable, or the last error when ``timeout_ms`` has passed.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        open_queries = {TopicPartition(query.topic, query.partition): query for query in queries}
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for tp in sorted(open_queries):
            left_s = max(0.0, deadline - time.monotonic())
            count = self._metadata.wait_for_partition(tp.topic, tp.partition, left_s)
            if not 0 <= tp.partition < count:
                raise UnknownTopicOrPartitionError(
                    f"topic {tp.topic} has {count} partitions, no partition {tp.partition}"
                )

        def attempt(left_s: float | None) -> None:
            self._ask_once(open_queries, found, min(left_s or 1.0, 5.0))

        if open_queries:
            left_ms = max(0, int((deadline - time.monotonic()) * 1000))
            call_with_retry(RetryPolicy(deadline_ms=left_ms, initial_backoff_ms=50), attempt)
        return found

    def _ask_once(
        self,
        open_queries: dict[TopicPartition, ListOffsetsPartition],
        found: dict[TopicPartition, OffsetAndTimestamp | None],
        timeout_s: float,
    ) -> None:
        problem: PacelineError | None = None
        by_leader: dict[int, tuple[Broker, list[ListOffsetsPartition]]] = {}
        for tp, query in open_queries.items():
            leader = self._metadata.cluster.leader_of(tp)
            if leader is None:
                problem = LeaderNotAvailableError(f"{tp} has no leader")
            else:
                by_leader.setdefault(leader.broker_id, (leader, []))[1].append(
                    fence(query, self._metadata.cluster.partition(tp))
                )
        calls = [
            (
                leader,
                LogServiceStub(self._channels.get(leader.address)).ListOffsets.future(
                    ListOffsetsRequest(partitions=asked), timeout=timeout_s
                ),
            )
            for leader, asked in by_leader.values()
        ]
        for leader, call in calls:
            try:
                answer = call.result(timeout=timeout_s + 1.0)
            except grpc.FutureTimeoutError:
                problem = RequestTimedOutError(f"{leader} did not answer")
                continue
            except grpc.RpcError as failure:
                problem = named_error(leader, failure)
                continue
            for result in answer.partitions:
                tp = TopicPartition(result.topic, result.partition)
                try:
                    found[tp] = read_result(result)
                    open_queries.pop(tp, None)
                except PacelineError as error:
                    problem = error
                    self._metadata.apply_hint(tp, result.error)
        if problem is None and open_queries:
            problem = RequestTimedOutError(f"no answer for {', '.join(map(str, open_queries))}")
        if problem is not None:
            self._metadata.request()
            raise problem


def plain_offsets(found: Mapping[TopicPartition, OffsetAndTimestamp | None]) -> dict[TopicPartition, int]:
    """Return the offsets of a lookup without timestamps and epochs; omit partitions without a result."""
    return {tp: place.offset for tp, place in found.items() if place is not None}
