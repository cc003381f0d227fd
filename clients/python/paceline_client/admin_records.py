"""The part of `Admin` that deletes records at the beginning of partitions."""

from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from paceline.model.addresses import address_of
from paceline.model.errors import (
    LeaderNotAvailableError,
    PacelineError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    error_for,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline.v1.log_service_pb2 import DeleteRecordsPartition, DeleteRecordsRequest
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from paceline.v1.metadata_service_pb2 import DescribeTopicsRequest
from paceline_client.admin_connection import (
    ONE_CALL_S,
    AdminConnection,
    checked,
    describe_cluster_once,
    described_topics,
    named,
    names_anybody,
)
from paceline_client.errors import sendable
from paceline_client.metadata import topic_of

_GRACE_S = 2.0
"""Time from the requested timeout, at which the leader answers, to the RPC deadline."""


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """Result for one partition; ``error`` is None on success."""

    topic_partition: TopicPartition
    error: PacelineError | None = None
    low_watermark: int | None = None
    """Lowest log start offset of all live replicas."""


class RecordAdmin(AdminConnection):
    """Deletion of records at the beginning of partitions; use `Admin`."""

    def delete_records(
        self,
        before: Mapping[tuple[str, int], int | None],
        *,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> list[DeletedRecords]:
        """Permanently delete the records before an offset; returns when every live replica has deleted them.

        Args:
            before: first offset to keep per ``(topic, partition)``; None deletes all records that are committed.
            timeout_ms: longest wait. After a timeout the records may nevertheless be deleted.
            raise_errors: raise the first partition's error; False returns errors in the results.

        Raises:
            OffsetOutOfRangeError: the offset is negative, or beyond the high watermark.
            PolicyViolationError: the topic is only compacted.
            UnknownTopicOrPartitionError: the partition does not exist.
            RequestTimedOutError: not every replica has deleted the records in time, or a leader did not answer.
        """
        timeout_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        with sendable():
            open_partitions = {
                TopicPartition(topic, index): DeleteRecordsPartition(topic=topic, partition=index, before_offset=offset)
                for (topic, index), offset in before.items()
            }
        found: dict[TopicPartition, DeletedRecords] = {}
        if open_partitions:
            try:
                call_with_retry(
                    RetryPolicy(deadline_ms=timeout_ms),
                    lambda left_s: self._delete_once(open_partitions, found, left_s or timeout_ms / 1000),
                )
            except PacelineError as error:
                for topic_partition in open_partitions:
                    found[topic_partition] = DeletedRecords(topic_partition, error)
        return checked([found[TopicPartition(*named_one)] for named_one in before], raise_errors)

    def _delete_once(
        self,
        open_partitions: dict[TopicPartition, DeleteRecordsPartition],
        found: dict[TopicPartition, DeletedRecords],
        left_s: float,
    ) -> None:
        """Call every leader once and store final results; raise the cause when some partitions need another attempt."""
        problem: PacelineError | None = None
        calls = []
        for leader, topic_partitions in self._by_leader(open_partitions, found, left_s).items():
            request = DeleteRecordsRequest(
                partitions=[open_partitions[tp] for tp in topic_partitions], timeout_ms=max(1, int(left_s * 1000))
            )
            stub = LogServiceStub(self._channel(leader))
            calls.append((leader, topic_partitions, stub.DeleteRecords.future(request, timeout=left_s + _GRACE_S)))
        for leader, topic_partitions, call in calls:
            try:
                answer = call.result()
            except grpc.RpcError as failure:
                problem = named(f"broker at {leader}", failure)
                for tp in topic_partitions:
                    if not open_partitions[tp].HasField("before_offset") and not problem.definite:
                        # A second attempt for "all committed records" would delete more records.
                        unknown = RequestTimedOutError(f"{problem}; it is unknown whether records were deleted")
                        found[tp] = DeletedRecords(tp, unknown)
                continue
            for result in answer.partitions:
                tp = TopicPartition(result.topic, result.partition)
                if not result.HasField("error"):
                    found[tp] = DeletedRecords(tp, None, result.low_watermark)
                    continue
                error = error_for(result.error.code, f"{tp}: {result.error.message}")
                if error.retriable and not isinstance(error, RequestTimedOutError):
                    problem = error
                else:
                    found[tp] = DeletedRecords(tp, error)
        for tp in found:
            open_partitions.pop(tp, None)
        if open_partitions:
            raise problem or LeaderNotAvailableError(f"unknown leader of {', '.join(map(str, open_partitions))}")

    def _by_leader(
        self,
        open_partitions: dict[TopicPartition, DeleteRecordsPartition],
        found: dict[TopicPartition, DeletedRecords],
        left_s: float,
    ) -> dict[str, list[TopicPartition]]:
        """Group partitions by the address of their leader, and set the leader epoch in their requests.

        Stores an error for each partition that does not exist.
        """
        budget_ms = int(min(left_s, ONE_CALL_S) * 1000)
        cluster = self._anywhere(describe_cluster_once, budget_ms, names_anybody)
        addresses: dict[int | None, str] = {one.id: address_of(one.host, one.port) for one in cluster.brokers}
        request = DescribeTopicsRequest(topics=list(dict.fromkeys(tp.topic for tp in open_partitions)))
        described = self._anywhere(described_topics(request), budget_ms)
        known = {
            TopicPartition(topic.name, one.partition): one
            for topic in map(topic_of, described.topics)
            for one in topic.partitions
        }
        by_leader: dict[str, list[TopicPartition]] = {}
        for tp, query in open_partitions.items():
            if tp not in known:
                found[tp] = DeletedRecords(tp, UnknownTopicOrPartitionError(f"partition {tp} does not exist"))
                continue
            if known[tp].leader_epoch >= 0:
                query.current_leader_epoch = known[tp].leader_epoch
            if known[tp].leader in addresses:
                by_leader.setdefault(addresses[known[tp].leader], []).append(tp)
        return by_leader
