"""`Admin` repeats a call about a group whose answer was lost, but which was carried out."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from paceline.model.errors import ErrorCode, GroupIdNotFoundError, UnknownMemberIdError
from paceline.v1 import group_service_pb2 as pb
from paceline.v1 import metadata_service_pb2 as meta
from paceline.v1.errors_pb2 import PartitionError
from paceline.v1.group_service_pb2_grpc import GroupServiceServicer, add_GroupServiceServicer_to_server
from paceline.v1.metadata_service_pb2_grpc import MetadataServiceServicer, add_MetadataServiceServicer_to_server
from paceline_client import Admin


class Broker(GroupServiceServicer, MetadataServiceServicer):  # type: ignore[misc]
    """The only broker, which loses the answers of its first changes."""

    def __init__(self) -> None:
        self.port = 0
        self.groups = {"g"}
        self.lost_answers = 1

    def DescribeCluster(self, request: Any, context: Any) -> Any:  # noqa: N802
        brokers = [meta.BrokerInfo(id=1, host="127.0.0.1", port=self.port)]
        return meta.DescribeClusterResponse(brokers=brokers)

    def FindCoordinator(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.FindCoordinatorResponse(broker_id=1, host="127.0.0.1", port=self.port)

    def DeleteGroups(self, request: Any, context: Any) -> Any:  # noqa: N802
        (group_id,) = request.group_ids
        found = group_id in self.groups
        self.groups.discard(group_id)
        self._maybe_lose(context)
        return pb.DeleteGroupsResponse(
            groups=[pb.DeleteGroupResult(group_id=group_id, error=self._error(found, ErrorCode.GROUP_ID_NOT_FOUND))]
        )

    def CommitOffsets(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._maybe_lose(context)
        error = PartitionError(code=ErrorCode.UNKNOWN_MEMBER_ID.value, message="a member has joined")
        results = [pb.CommitOffsetResult(topic=one.topic, error=error) for one in request.offsets]
        return pb.CommitOffsetsResponse(partitions=results)

    def _error(self, found: bool, code: ErrorCode) -> Any:
        return None if found else pb.GroupError(code=int(code), message="absent")  # type: ignore[arg-type]

    def _maybe_lose(self, context: Any) -> None:
        if self.lost_answers:
            self.lost_answers -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer")


@pytest.fixture
def broker() -> Iterator[Broker]:
    servicer = Broker()
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    add_GroupServiceServicer_to_server(servicer, server)
    add_MetadataServiceServicer_to_server(servicer, server)
    servicer.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer
    server.stop(0).wait(60)


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(f"127.0.0.1:{broker.port}", describe_timeout_ms=60_000) as made:
        yield made


def test_a_deletion_whose_answer_was_lost_succeeds(broker: Broker, admin: Admin) -> None:
    (result,) = admin.delete_groups(["g"])
    assert result.error is None and broker.groups == set() and broker.lost_answers == 0


def test_a_group_that_was_never_there_is_an_error(broker: Broker, admin: Admin) -> None:
    broker.lost_answers = 0
    with pytest.raises(GroupIdNotFoundError):
        admin.delete_groups(["other"])


@pytest.mark.parametrize("lost_answers", [0, 1])
def test_refused_offsets_are_definite_only_if_no_earlier_attempt_may_have_been_carried_out(
    broker: Broker, admin: Admin, lost_answers: int
) -> None:
    broker.lost_answers = lost_answers
    with pytest.raises(UnknownMemberIdError) as refused:
        admin.alter_group_offsets("g", {("t", 0): 5})
    assert refused.value.definite == (lost_answers == 0)
