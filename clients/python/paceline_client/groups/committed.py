"""Commit offsets and fetch committed offsets."""

from collections.abc import Iterable
from typing import Final

from paceline.model.consumer_protocol import by_topic
from paceline.model.errors import ErrorCode, PacelineError, error_for
from paceline.model.identifiers import TopicPartition
from paceline.v1.group_service_pb2 import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    OffsetToCommit,
    TopicPartitions,
)
from paceline_client.errors import CommitFailedError, sendable
from paceline_client.groups.coordinator import GroupCoordinator
from paceline_client.groups.values import OffsetAndMetadata, Offsets

LOST: Final = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}


def commit_request(
    group_id: str, offsets: Offsets, generation: int = -1, member_id: str = "", group_instance_id: str = ""
) -> CommitOffsetsRequest:
    """Return the request that commits offsets; without a generation, as a caller that is not a member.

    Raises:
        InvalidRequestError: an offset or its metadata text does not fit its field.
    """
    with sendable("commit"):
        return CommitOffsetsRequest(
            group_id=group_id,
            generation_id=generation if generation >= 0 else None,
            member_id=member_id,
            group_instance_id=group_instance_id,
            offsets=[
                OffsetToCommit(
                    topic=topic,
                    partition=partition,
                    offset=value.offset,
                    leader_epoch=value.leader_epoch,
                    metadata=value.metadata,
                )
                for (topic, partition), value in offsets.items()
            ],
        )


def check_committed(answer: CommitOffsetsResponse) -> None:
    """Raise the first error of a commit.

    Raises:
        PacelineError: a partition was refused; the message names it. It is not ``definite`` if the offset of another
            partition was committed.
    """
    refused = [one for one in answer.partitions if one.HasField("error")]
    if refused:
        one = refused[0]
        error = error_for(one.error.code, f"{one.topic}/{one.partition}: {one.error.message}")
        error.definite = error.definite and len(refused) == len(answer.partitions)
        raise error


def why_not_committed(group_id: str, error: PacelineError) -> PacelineError:
    """Return the error of a failed commit: `CommitFailedError` when the membership was lost."""
    if error.code in LOST:
        lost = CommitFailedError(
            f"group {group_id}: the offsets were not committed because the group has rebalanced without this member; "
            f"poll more often, return fewer records per poll or raise max_poll_interval_ms ({error})"
        )
        lost.__cause__ = error
        lost.definite = error.definite
        return lost
    return error


def commit(coordinator: GroupCoordinator, request: CommitOffsetsRequest, timeout_ms: float) -> None:
    """Commit and wait for the result.

    Raises:
        CommitFailedError: the membership was lost.
        PacelineError: the coordinator refused, or did not answer in time.
    """
    try:
        check_committed(coordinator.call("CommitOffsets", request, timeout_ms))
    except PacelineError as error:
        raise why_not_committed(request.group_id, error) from error.__cause__


def fetch_committed(
    coordinator: GroupCoordinator, partitions: Iterable[TopicPartition] | None, timeout_ms: float
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return the committed offsets of these partitions, None where a partition has none, or of all partitions.

    Raises:
        PacelineError: the coordinator refused, or did not answer in time.
    """
    request = fetch_offsets_request(coordinator.group_id, partitions)
    return {} if request is None else read_committed(coordinator.call("FetchOffsets", request, timeout_ms))


def fetch_offsets_request(group_id: str, partitions: Iterable[TopicPartition] | None) -> FetchOffsetsRequest | None:
    """Return the request for the offsets of these or of all partitions; None when there is no partition to ask for."""
    wanted = by_topic(partitions or ())
    if partitions is not None and not wanted:
        return None
    return FetchOffsetsRequest(
        group_id=group_id,
        partitions=[TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in wanted.items()],
    )


def read_committed(answer: FetchOffsetsResponse) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return the offsets of a response."""
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    for one in answer.partitions:
        epoch = one.leader_epoch if one.HasField("leader_epoch") else None
        value = OffsetAndMetadata(one.offset, one.metadata, epoch) if one.HasField("offset") else None
        found[TopicPartition(one.topic, one.partition)] = value
    return found
