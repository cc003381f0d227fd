"""Reassignments and events: totals, filters, bounds."""

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.console.pages.activity import events, reassignments
from paceline.console.recording import EVENT, Entry, Header
from paceline.console.timeline import Timeline
from paceline.model.identifiers import TopicPartition
from paceline.operations.reassign_progress import Progress, measure, move_row


def move(reason: str = "NOT_CAUGHT_UP", is_stuck: bool = False) -> Any:
    waits = (SimpleNamespace(broker_id=3, reason=reason, message="broker 3 has not caught up"),)
    return SimpleNamespace(
        topic_partition=TopicPartition("t", 0), replicas=(3, 1), target=(3,), adding=(3,), removing=(1,), isr=(1,),
        leader=1, waiting_for=waits, is_stuck=is_stuck,
    )  # fmt: skip


class FakeAdmin:
    """Replicas of t/0 on brokers 1 and 3."""

    def __init__(self) -> None:
        self.copied = 0

    def describe_log_dirs(self, brokers: list[int], partitions: list[Any] | None) -> list[Any]:
        assert (brokers, partitions) == ([1, 3], [("t", 0)])
        sizes = {1: 1_000, 3: self.copied}
        return [
            SimpleNamespace(
                broker_id=broker,
                log_dirs=[SimpleNamespace(replicas=[SimpleNamespace(
                    topic_partition=TopicPartition("t", 0), size_bytes=sizes[broker], is_future=False)])],
            )
            for broker in brokers
        ]  # fmt: skip


def test_a_move_shows_bytes_left_rate_and_time_and_the_reason_when_it_stands_still() -> None:
    admin, progress = FakeAdmin(), Progress()
    rows = []
    for at_s, copied in ((0.0, 100), (2.0, 300), (4.0, 300)):
        admin.copied = copied
        (speed,) = measure(admin, [move()], progress, at_s).values()  # type: ignore[arg-type]
        rows.append(move_row(move(), speed, {3: 5_000}))
    assert [(one["bytes_left"], one["bytes_per_s"], one["eta_s"]) for one in rows] == [
        (900, None, None), (700, 100, 7), (700, 0, None),
    ]  # fmt: skip
    assert rows[1]["reason"] == "broker 3 has not caught up" and rows[1]["throttle"] == 5_000
    assert rows[2]["reason"].endswith("no bytes were copied since the last measurement")
    found = reassignments([(TopicPartition("t", 0), rows[2])], {})
    assert (found["facts"], found["moves"][0]["severity"]) == ({"moves": 1, "stuck": 0, "bytes left": 700}, "note")


def test_the_bytes_left_are_unknown_when_those_of_one_move_are() -> None:
    row = move_row(move(is_stuck=True), next(iter(Progress().look([move()], {}, 0.0).values())), {})
    found = reassignments([(TopicPartition("t", 0), row)], {})
    assert found["facts"] == {"moves": 1, "stuck": 1, "bytes left": None}
    assert found["moves"][0]["severity"] == "critical"


def timeline() -> Timeline:
    found = Timeline(Header(title="", origin="cluster", began_ms=0))
    for t in range(300):
        where = {"topic": "t", "partition": t % 2, "who": "broker-1", "kind": "isr-shrunk"}
        found.add(Entry(t, EVENT, where))
    found.add(Entry(500, EVENT, {"who": "controller-7", "kind": "broker-down", "replica": 2}))
    found.add(Entry(501, EVENT, {"who": "controller-7", "kind": "topic-created", "topic": "<b>"}))
    return found


def kinds(**query: str) -> list[tuple[str, Any]]:
    return [(one["kind"], one["partition"]) for one in events(timeline(), query)["events"]]


def test_the_newest_events_come_first_and_their_number_is_bounded() -> None:
    found = events(timeline(), {})["events"]
    assert len(found) == 200
    assert [one["kind"] for one in found[:3]] == ["topic-created", "broker-down", "isr-shrunk"]
    assert found[2]["time"] == "1970-01-01 00:00:00.299"


def test_events_are_filtered_by_kind_topic_partition_and_broker() -> None:
    assert kinds(kind="broker-down") == [("broker-down", None)]
    assert kinds(topic="<b>") == [("topic-created", None)]
    assert set(kinds(topic="t/1")) == {("isr-shrunk", 1)}
    assert kinds(broker="2") == [("broker-down", None)]
    assert len(kinds(broker="1", topic="t")) == 200 and kinds(broker="1", kind="broker-down") == []


@pytest.mark.parametrize("query", [{"kind": "x"}, {"broker": "x"}, {"broker": "-1"}])
def test_a_filter_that_cannot_match_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="must be"):
        events(timeline(), query)
