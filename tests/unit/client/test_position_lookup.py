"""A position that was looked up in a topic that is then deleted and re-created."""

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.model.identifiers import TopicPartition
from paceline.v1.log_service_pb2 import ListOffsetsPartitionResult, ListOffsetsRequest, ListOffsetsResponse
from paceline_client import position_lookup
from paceline_client.fetch_response import PartitionResults
from paceline_client.metadata import Broker
from paceline_client.position_lookup import PositionLookup
from paceline_client.subscription import Assignment, OffsetReset
from paceline_client.wire import FetchedPartition

ONE = TopicPartition("t", 0)
LEADER = Broker(1, "127.0.0.1", 1)


class Ended:
    """A call with a response."""

    def __init__(self, response: ListOffsetsResponse) -> None:
        self._response = response

    def add_done_callback(self, callback: Any) -> None:
        callback(self)

    def cancelled(self) -> bool:
        return False

    def exception(self) -> None:
        return None

    def result(self) -> ListOffsetsResponse:
        return self._response


def test_an_end_that_was_looked_up_in_a_deleted_topic_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, topic_ids = [50, 7], ["old", "new"]

    def list_offsets(_request: ListOffsetsRequest, timeout: float) -> Ended:
        result = ListOffsetsPartitionResult(topic=ONE.topic, partition=ONE.partition, offset=ends.pop(0))
        return Ended(ListOffsetsResponse(partitions=[result]))

    stub = SimpleNamespace(ListOffsets=SimpleNamespace(future=list_offsets))
    monkeypatch.setattr(position_lookup, "LogServiceStub", lambda _channel: stub)
    cluster = SimpleNamespace(
        leader_of=lambda _tp: LEADER, partition=lambda _tp: None, topic_id=lambda _topic: topic_ids.pop(0)
    )
    metadata: Any = SimpleNamespace(cluster=cluster)
    errors: Any = None
    assignment, answered = Assignment(), list[Any]()
    assignment.assign([ONE], OffsetReset.LATEST)
    state = assignment.state(ONE)
    config: Any = SimpleNamespace(auto_offset_reset=OffsetReset.EARLIEST)
    answers = PartitionResults(config, metadata, errors)
    channels: Any = SimpleNamespace(get=lambda _address: None)
    lookup = PositionLookup(assignment, metadata, channels, errors, answered.append, lambda: None)

    def look_up() -> None:
        lookup.look_up(now_ms=0)
        answered.pop()()

    def fetch(topic_id: str) -> None:
        answers.take(state, FetchedPartition(ONE.topic, ONE.partition, high_watermark=100), LEADER, topic_id)

    look_up()
    assert state.position == 50
    fetch("new")
    assert (state.position, state.reset) == (None, OffsetReset.LATEST)
    look_up()
    fetch("new")
    assert state.position == 7
    fetch("newer")
    assert (state.position, state.reset) == (None, OffsetReset.EARLIEST)
