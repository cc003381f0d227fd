"""The verdict of a commit that was refused after an attempt whose answer was lost."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from grpc_status.rpc_status import to_status

from paceline.model.errors import (
    CoordinatorLoadInProgressError,
    ErrorCode,
    IllegalGenerationError,
    PacelineError,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.channels import ChannelCache
from paceline.rpc.errors import to_rpc_status
from paceline.v1 import group_service_pb2 as pb
from paceline.v1.errors_pb2 import PartitionError
from paceline.v1.group_service_pb2_grpc import GroupServiceServicer, add_GroupServiceServicer_to_server
from paceline_client.errors import CommitFailedError
from paceline_client.groups.committed import check_committed, commit, commit_request
from paceline_client.groups.coordinator import GroupCoordinator
from paceline_client.groups.values import OffsetAndMetadata

REQUEST = commit_request("g", {TopicPartition("t", 0): OffsetAndMetadata(5)}, 1, "m")


class Broker(GroupServiceServicer):  # type: ignore[misc]
    """A coordinator that loses the answers of its first commits, and refuses the others."""

    def __init__(self, lost_answers: int) -> None:
        self.port = 0
        self.over = threading.Event()
        self._lost_answers = lost_answers

    def FindCoordinator(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.FindCoordinatorResponse(broker_id=1, host="127.0.0.1", port=self.port)

    def CommitOffsets(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self._lost_answers:
            self._lost_answers -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer")
        context.abort_with_status(to_status(to_rpc_status(IllegalGenerationError("another generation has begun"))))


class SlowBroker(Broker):
    """A coordinator that refuses the first commit because it is loading, and gives no answer to the others."""

    def CommitOffsets(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self._lost_answers:
            self.over.wait(60)
        self._lost_answers += 1
        error = CoordinatorLoadInProgressError("the coordinator is loading")
        context.abort_with_status(to_status(to_rpc_status(error)))


class Brokers:
    """Metadata with one broker."""

    def __init__(self, address: str) -> None:
        self.address = address

    def wait_for_brokers(self, _timeout_s: float) -> list["Brokers"]:
        return [self]

    def request(self) -> None:
        """Ignore the request for new metadata."""


@pytest.fixture
def channels() -> Iterator[ChannelCache]:
    cache = ChannelCache()
    yield cache
    cache.close()


@contextmanager
def served(servicer: Broker) -> Iterator[str]:
    """Serve a coordinator and yield its address."""
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    add_GroupServiceServicer_to_server(servicer, server)
    servicer.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{servicer.port}"
    finally:
        servicer.over.set()
        server.stop(0).wait(60)


@pytest.mark.parametrize("lost_answers", [0, 1])
def test_a_refused_commit_is_definite_only_if_no_earlier_attempt_may_have_been_carried_out(
    channels: ChannelCache, lost_answers: int
) -> None:
    with served(Broker(lost_answers)) as address:
        coordinator = GroupCoordinator("g", Brokers(address), channels)  # type: ignore[arg-type]
        with pytest.raises(CommitFailedError) as refused:
            commit(coordinator, REQUEST, 60_000)
        assert refused.value.definite == (lost_answers == 0)


def test_a_commit_whose_last_attempt_had_no_answer_is_not_definite_although_the_cause_is(
    channels: ChannelCache,
) -> None:
    with served(SlowBroker(0)) as address:
        coordinator = GroupCoordinator("g", Brokers(address), channels)  # type: ignore[arg-type]
        with pytest.raises(PacelineError) as refused:
            commit(coordinator, REQUEST, 3_000)
        assert not refused.value.definite


@pytest.mark.parametrize("taken", [0, 1])
def test_a_refused_commit_is_definite_only_if_no_partition_was_committed(taken: int) -> None:
    refused = PartitionError(code=ErrorCode.ILLEGAL_GENERATION.value, message="another generation has begun")
    results = [pb.CommitOffsetResult(topic="t", partition=0) for _ in range(taken)]
    results.append(pb.CommitOffsetResult(topic="t", partition=1, error=refused))
    with pytest.raises(PacelineError, match="t/1") as error:
        check_committed(pb.CommitOffsetsResponse(partitions=results))
    assert error.value.definite == (taken == 0)
