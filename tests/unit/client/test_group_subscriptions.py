"""The partition counts that the leader of a group assigns."""

from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from paceline.v1.errors_pb2 import ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION, TopicError
from paceline.v1.metadata_service_pb2 import DescribeTopicsResponse, PartitionDescription, TopicDescription
from paceline_client.groups import subscriptions
from paceline_client.groups.subscriptions import GroupSubscription

UNKNOWN = TopicError(code=ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION)


class Unreachable(grpc.RpcError):  # type: ignore[misc]
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "failed to connect"

    def trailing_metadata(self) -> tuple[()]:
        return ()


class Broker:
    """A broker's channel and stub; ``counts`` is None for a dead broker."""

    def __init__(self, counts: dict[str, int] | None) -> None:
        self._counts = counts
        self.asked = 0

    def DescribeTopics(self, request: Any, timeout: float) -> DescribeTopicsResponse:  # noqa: N802
        self.asked += 1
        if self._counts is None:
            raise Unreachable
        return DescribeTopicsResponse(
            topics=[
                TopicDescription(name=name, partitions=[PartitionDescription(partition=n) for n in range(count)])
                if (count := self._counts.get(name, 0))
                else TopicDescription(name=name, error=UNKNOWN)
                for name in request.topics
            ]
        )


@pytest.mark.parametrize(
    ("brokers", "counts", "asked"),
    [
        ([{"old": 2}, {"old": 2, "new": 3}, {"old": 2, "new": 3}], {"old": 2, "new": 3}, [1, 1, 0]),
        ([{"old": 2, "new": 3}, {"old": 2}], {"old": 2, "new": 3}, [1, 0]),
        ([None, {"old": 2}, {"old": 2}], {"old": 2}, [1, 1, 1]),
    ],
    ids=["one broker does not know the new topic yet", "all topics are known", "a deleted topic and a dead broker"],
)
def test_a_topic_that_one_broker_does_not_know_is_looked_up_at_the_others(
    monkeypatch: pytest.MonkeyPatch, brokers: list[dict[str, int] | None], counts: dict[str, int], asked: list[int]
) -> None:
    servers = [Broker(known) for known in brokers]
    metadata: Any = SimpleNamespace(
        wait_for_brokers=lambda _s: [SimpleNamespace(address=index) for index in range(len(servers))]
    )
    channels: Any = SimpleNamespace(get=lambda address: servers[address])
    monkeypatch.setattr(subscriptions, "MetadataServiceStub", lambda channel: channel)
    assert GroupSubscription(metadata, channels, 300_000).partition_counts(["old", "new"]) == counts
    assert [server.asked for server in servers] == asked
