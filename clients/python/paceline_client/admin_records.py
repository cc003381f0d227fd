"""The part of `Admin` about records: deleting those at the beginning of partitions."""

from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from paceline.model.errors import (
    LeaderNotAvailableError,
    PacelineError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    error_for,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.pages import merged_pages
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline.v1.log_service_pb2 import DeleteRecordsPartition, DeleteRecordsRequest
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from paceline.v1.metadata_service_pb2 import DescribeTopicsRequest
from paceline.v1.metadata_service_pb2_grpc import MetadataServiceStub
from paceline_client.addresses import address_of
from paceline_client.admin_connection import (
    ONE_CALL_S,
    AdminConnection,
    checked,
    describe_cluster_once,
    named,
    names_anybody,
)
from paceline_client.errors import sendable

_GRACE_S = 2.0
"""The leader answers when its own time is over; the call ends this much later."""


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """What became of one partition; ``error`` is None on success."""

    topic_partition: TopicPartition
    error: PacelineError | None = None
    low_watermark: int | None = None
    """First offset that any live replica still has."""


class RecordAdmin(AdminConnection):
    """Records at the beginning of partitions; use `Admin`."""

    def delete_records(
        self,
        before: Mapping[tuple[str, int], int | None],
        *,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> list[DeletedRecords]:
        """Delete what lies before an offset, for good; returns when every live replica has deleted it.

        Args:
            before: per ``(topic, partition)`` the first offset that stays; None deletes everything committed now.
            timeout_ms: longest wait. Records may be deleted although the time is over.
            raise_errors: raise the first partition's error; False returns errors in the results.

        Raises:
            OffsetOutOfRangeError: the offset is negative, or beyond what is committed.
            PolicyViolationError: the topic is only compacted.
            UnknownTopicOrPartitionError: there is no such partition.
            RequestTimedOutError: not every replica has deleted in time, or a leader did not answer.
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
        """Ask every leader once, and settle what need not be asked again; raise why the rest has to be."""
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
                        # "Everything committed" means more the second time.
                        unknown = RequestTimedOutError(f"{problem}; whether records were deleted is not known")
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
            raise problem or LeaderNotAvailableError(f"no leader is known of {', '.join(map(str, open_partitions))}")

    def _by_leader(
        self,
        open_partitions: dict[TopicPartition, DeleteRecordsPartition],
        found: dict[TopicPartition, DeletedRecords],
        left_s: float,
    ) -> dict[str, list[TopicPartition]]:
        """Return the partitions by the address of their leader, whose epoch the requests then carry.

        Partitions that do not exist are settled.
        """
        topic_partitions = list(open_partitions)
        budget_ms = int(min(left_s, ONE_CALL_S) * 1000)
        cluster = self._anywhere(describe_cluster_once, budget_ms, names_anybody)
        addresses = {info.id: address_of(info.host, info.port) for info in cluster.brokers}
        request = DescribeTopicsRequest(topics=list(dict.fromkeys(tp.topic for tp in topic_partitions)))
        described = self._anywhere(
            lambda channel, left_s: merged_pages(
                request, lambda page: MetadataServiceStub(channel).DescribeTopics(page, timeout=left_s), "topics"
            ),
            budget_ms,
        )
        leaders = {
            TopicPartition(topic.name, one.partition): one.leader if one.HasField("leader") else -1
            for topic in described.topics
            for one in topic.partitions
        }
        for topic in described.topics:
            for one in topic.partitions:
                query = open_partitions.get(TopicPartition(topic.name, one.partition))
                if query is not None and one.leader_epoch >= 0:
                    query.current_leader_epoch = one.leader_epoch
        by_leader: dict[str, list[TopicPartition]] = {}
        for tp in topic_partitions:
            if tp not in leaders:
                found[tp] = DeletedRecords(tp, UnknownTopicOrPartitionError(f"there is no partition {tp}"))
            elif leaders[tp] in addresses:
                by_leader.setdefault(addresses[leaders[tp]], []).append(tp)
        return by_leader
