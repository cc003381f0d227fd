"""Output of `paceline watch` and `paceline top`."""

import json
import re
import time
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

import paceline_client
from paceline.cli.commands import cli
from paceline.cli.top import _chosen, _row, screen
from paceline.cli.watch import _event_lines, _kinds, _since_ms, event_line
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import ReplicaOffsets, RequestAnswer, StateChange, StateChangeKind
from paceline_client import EventGap, PartitionDescription, WatchedEvents

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def change(kind: StateChangeKind = StateChangeKind.LEADER_ELECTED, **more: Any) -> StateChange:
    return StateChange(**{"who": "controller-1000001", "wall_ms": 0, "kind": kind, "topic_partition": T0, **more})


def texts(items: list[Any], wanted: list[tuple[str, int | None]], steps: bool = False) -> list[str]:
    return [text for _, text in _event_lines(items, wanted, steps)]


def test_an_isr_change_is_one_line_with_the_offsets_at_its_time() -> None:
    line = event_line(
        change(
            StateChangeKind.ISR_SHRUNK,
            who="broker-2",
            leader=2,
            leader_epoch=5,
            isr=(2,),
            old_isr=(2, 3),
            replicas=(ReplicaOffsets(2, 50), ReplicaOffsets(3, None)),
            cause="lag",
        )
    )
    assert line.endswith(
        "broker-2            isr-shrunk          t/0                  "
        "leader 2 epoch 5  isr [2,3] -> [2]  ends 2:50 3:-  (lag)"
    )


def test_a_control_request_is_one_line_with_its_result() -> None:
    answer = RequestAnswer(request="StopReplica", controller_id=7, error="STALE_CONTROLLER_EPOCH")
    refused = change(StateChangeKind.CONTROL_REQUEST, who="broker-2", leader_epoch=5, answer=answer)
    assert event_line(refused).endswith("control-request     t/0                  StopReplica STALE_CONTROLLER_EPOCH")
    applied = change(StateChangeKind.CONTROL_REQUEST, answer=RequestAnswer(request="UpdateMetadata", controller_id=7))
    assert event_line(applied).endswith("UpdateMetadata applied")


def test_an_event_of_another_day_has_its_date() -> None:
    now_ms = int(time.time() * 1000)
    yesterday = event_line(change(wall_ms=now_ms - 86_400_000))
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  controller-", yesterday), yesterday
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3}  controller-", event_line(change(wall_ms=now_ms)))


def test_ordinary_transitions_of_replicas_are_omitted_unless_requested() -> None:
    step = change(StateChangeKind.TRANSITION, replica=1, from_state="NewReplica", to_state="OnlineReplica")
    lost = change(StateChangeKind.TRANSITION, replica=1, from_state="OnlineReplica", to_state="OfflineReplica")
    items = [WatchedEvents((step, lost), "a:1")]
    assert len(texts(items, [])) == 2 and "OfflineReplica" in texts(items, [])[1]
    assert len(texts(items, [], steps=True)) == 3


def test_the_steps_of_a_new_topics_partitions_are_one_line_and_each_a_row() -> None:
    steps = [
        change(
            StateChangeKind.TRANSITION,
            topic_partition=TopicPartition("t", index),
            from_state=before,
            to_state=after,
            leader=None if after == "NewPartition" else 1,
            cause="TopicChange",
        )
        for before, after in (("NonExistentPartition", "NewPartition"), ("NewPartition", "OnlinePartition"))
        for index in range(16)
    ]
    lost = change(StateChangeKind.TRANSITION, from_state="OnlinePartition", to_state="OfflinePartition")
    item = WatchedEvents((change(StateChangeKind.TOPIC_CREATED, topic_partition=None, topic="t"), *steps, lost), "a:1")
    _, created, online, offline = [text for _, text in _event_lines([item], [], False, fold=True)]
    assert "topic-created" in created and "t/0" in offline and "OfflinePartition" in offline
    assert online.endswith("t                    NonExistentPartition -> OnlinePartition  (16 partitions, TopicChange)")
    assert len(texts([item], [])) == 1 + 1 + 32 + 1, "rows for programs, and --kind state, have every step"


@pytest.mark.parametrize(
    ("options", "lines"), [((), 3), (("-o", "ndjson"), 4), (("--kind", "state"), 5), (("-n", "1"), 1)]
)
def test_only_the_table_without_kinds_folds_steps_and_omits_those_of_replicas(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], lines: int
) -> None:
    created = {"from_state": "NewPartition", "to_state": "OnlinePartition", "cause": "TopicChange"}
    events = [
        change(StateChangeKind.TRANSITION, topic_partition=TopicPartition("a", 0), **created),
        change(StateChangeKind.TRANSITION, topic_partition=TopicPartition("a", 1), **created),
        change(StateChangeKind.TRANSITION, topic_partition=TopicPartition("b", 0), **created),
        change(StateChangeKind.TRANSITION, replica=1, from_state="NewPartition", to_state="OnlinePartition"),
        change(),
    ]

    class Admin:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.describe_cluster = lambda: None
            self.watch_events = lambda **_: iter([WatchedEvents(tuple(events), "a:1")])

        def __enter__(self) -> "Admin":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(paceline_client, "Admin", Admin)
    ended = CliRunner().invoke(cli, ["watch", *options, "-b", "127.0.0.1:1"])
    assert (ended.exception, len(ended.stdout.splitlines())) == (None, lines), ended.output
    if not options:
        assert [line.rpartition("  ")[2] for line in ended.stdout.splitlines()[:2]] == [
            "(2 partitions, TopicChange)",
            "(1 partition, TopicChange)",
        ]
    elif "ndjson" in options:
        assert all(json.loads(line) for line in ended.stdout.splitlines())


def test_only_events_of_the_named_partitions_and_of_no_partition_are_shown() -> None:
    about = [
        change(),
        change(topic_partition=T1),
        change(StateChangeKind.TOPIC_CREATED, topic_partition=None, topic="t"),
    ]
    shown = texts([WatchedEvents(tuple(about), "a:1")], [("t", 1)])
    assert len(shown) == 3 and "t/1" in shown[1] and "topic-created" in shown[2]


def test_a_reassignment_and_a_gap_are_shown() -> None:
    items = [
        WatchedEvents((), "a:1"),
        WatchedEvents((), "b:2", EventGap(None, other_process=True)),
        WatchedEvents((change(),), "b:2", EventGap(17, other_process=False)),
    ]
    said = texts(items, [])
    assert said[:3] == ["watching a:1", "continuing at b:2", "17 events were dropped because this watcher was too slow"]
    assert len(said) == 4


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("2h", 7_200), ("1d", 86_400), ("999999999d", 999_999_999 * 86_400)],
)
def test_since_counts_back_from_now(text: str, seconds: float) -> None:
    since_ms = _since_ms(text)
    assert since_ms is not None and abs(since_ms - max(0.0, (time.time() - seconds) * 1_000)) < 5_000


def test_since_is_all_or_a_time_or_refused() -> None:
    assert (_since_ms(None), _since_ms("all"), _since_ms("1970-01-01T00:00:01+00:00")) == (None, 0, 1_000)
    for text in ("soon", "10", "-5m", "2026-13-01"):
        with pytest.raises(click.BadParameter, match="neither a time ago"):
            _since_ms(text)


def test_kinds_are_groups_or_words() -> None:
    assert _kinds(("broker-up,topic", "broker-up")) == [
        StateChangeKind.BROKER_UP,
        StateChangeKind.TOPIC_CREATED,
        StateChangeKind.TOPIC_DELETED,
    ]
    with pytest.raises(click.BadParameter, match="'leaders' is none of isr, leader,"):
        _kinds(("leaders",))


def partition(index: int, leader: int | None = 1, **more: Any) -> PartitionDescription:
    return PartitionDescription(index, leader, 3, **{"replicas": (1, 2), "isr": (1, 2), **more})


def view(lag: int | None, isr: tuple[int, ...] = (1, 2), min_isr: int = 1, **more: Any) -> Any:
    replicas = [
        SimpleNamespace(broker_id=1, log_end_offset=50, lag_records=0, last_caught_up_ago_ms=0),
        SimpleNamespace(broker_id=2, log_end_offset=None, lag_records=lag, last_caught_up_ago_ms=more.pop("behind", 7)),
    ]
    fields = {"leader": 1, "leader_epoch": 3, "high_watermark": 40, "under_replicated": len(isr) < 2, **more}
    return SimpleNamespace(replicas=replicas, isr=isr, min_insync_replicas=min_isr, **fields)


def test_partitions_with_problems_are_first_then_those_with_the_greatest_lag() -> None:
    rows = [
        _row("quiet", partition(0), view(0)),
        _row("slow", partition(0), view(9)),
        _row("short", partition(0), view(5, isr=(1,))),
        _row("refuses", partition(0), view(5, isr=(1,), min_isr=2)),
        _row("gone", partition(0, leader=None), None),
        _row("silent", partition(0), None),
    ]
    order = [(row["partition"], row["state"]) for row in _chosen(rows, "lag", troubled=False)]
    assert order == [
        ("gone/0", "offline"),
        ("refuses/0", "under-min-isr"),
        ("short/0", "under-replicated"),
        ("silent/0", "unknown"),
        ("slow/0", ""),
        ("quiet/0", ""),
    ]
    assert [row["partition"] for row in _chosen(rows, "partition", troubled=True)] == [
        "short/0",
        "refuses/0",
        "gone/0",
        "silent/0",
    ]
    assert (rows[1]["leo"], rows[1]["hw"], rows[1]["lag"], rows[1]["behind_ms"]) == (50, 40, 9, 7)


def test_a_follower_that_never_fetched_has_no_lag() -> None:
    row = _row("t", partition(0), view(None, behind=None))
    assert (row["lag"], row["behind_ms"]) == (None, None)


def test_the_lag_is_unknown_while_one_followers_end_is_unknown() -> None:
    found = view(0)
    found.replicas.append(
        SimpleNamespace(broker_id=3, log_end_offset=None, lag_records=None, last_caught_up_ago_ms=None)
    )
    rows = [_row("slow", partition(0), view(9)), _row("dead", partition(0), found)]
    assert rows[1]["lag"] is None
    assert [row["partition"] for row in _chosen(rows, "lag", troubled=False)] == ["dead/0", "slow/0"]


@pytest.mark.parametrize("width", [200, 80, 65])
def test_no_column_of_the_screen_is_truncated(width: int) -> None:
    rows = [_row("a-topic-of-some-length", partition(0), view(1_000_000_000, isr=(1,)))]
    console = Console(width=width, height=20)
    with console.capture() as shown:
        console.print(screen(rows, 5, "", width))
    lines = shown.get().splitlines()
    assert "\u2026" not in shown.get() and max(map(len, lines)) <= width
    assert all(name in lines[1] for name in ("partition", "lag", "isr", "state"))
    assert "1000000000" in shown.get() and "under-replicated" in shown.get()


def test_the_screen_shows_as_many_rows_as_fit_and_the_number_of_hidden_rows() -> None:
    rows = [_row(f"t{number}", partition(0), view(number)) for number in range(10)]
    console = Console(width=120, height=20, record=True, file=None, quiet=False)
    with console.capture() as shown:
        console.print(screen(rows, 3, "BROKER_NOT_AVAILABLE: nobody", 120))
    text = shown.get()
    assert "10 partitions, 0 with problems" in text and "BROKER_NOT_AVAILABLE" in text
    assert "t2/0" in text and "t3/0" not in text and "7 more" in text
