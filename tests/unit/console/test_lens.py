"""What the lens shows of a moment."""

import pytest

from paceline.console.drawing import strip_svg
from paceline.console.lens import frame_at
from paceline.console.recording import EVENT, SAMPLE, Entry, Header
from paceline.console.timeline import Timeline
from paceline.model.identifiers import TopicPartition
from tests.unit.console.history import TP, WHERE, replica, sample


def test_nothing_of_a_later_time_is_shown(timeline: Timeline) -> None:
    frame = frame_at(timeline, TP, 999)
    assert [(one.broker_id, one.log_end_offset) for one in frame.replicas] == [(1, 10), (2, 10)]
    assert (frame.leader, frame.leader_epoch, frame.isr) == (1, 0, (1, 2))
    assert not frame.requests
    assert [one["kind"] for one in frame.events] == ["controller-elected"]


def test_a_moment_before_the_first_sample_has_no_findings(timeline: Timeline) -> None:
    frame = frame_at(timeline, TP, 100)
    assert frame.replicas == frame.findings == ()
    assert frame.sample_age_ms is None


def test_acknowledgements_count_up_to_the_sample_that_is_shown(timeline: Timeline) -> None:
    at_first = frame_at(timeline, TP, 999)
    assert (at_first.acknowledged, at_first.acknowledged_by_leader) == (None, None)
    later = frame_at(timeline, TP, 1_000)
    assert (later.acknowledged, later.acknowledged_by_leader) == (10, 13)


def test_a_dead_replica_keeps_the_offsets_of_its_last_sample(timeline: Timeline) -> None:
    dead = frame_at(timeline, TP, 2_000).replicas[0]
    assert (dead.state, dead.log_end_offset, dead.known_ms, dead.in_isr) == ("dead", 13, 1_000, False)


def test_a_sample_without_an_answering_leader_does_not_hide_what_was_known(timeline: Timeline) -> None:
    timeline.add(sample(3_900, 2, 1, [2], [replica(1, 9, 9), replica(2, 10, 10)]))
    timeline.add(sample(4_000, 2, 1, [2], [replica(1), replica(2)], topic_id=None))
    assert [one.log_end_offset for one in frame_at(timeline, TP, 4_000).replicas] == [9, 10]


def test_offsets_of_a_deleted_topic_are_not_those_of_the_next(timeline: Timeline) -> None:
    timeline.add(sample(4_000, 2, 0, [2], [replica(1), replica(2, 3, 3)], topic_id="another"))
    dead = frame_at(timeline, TP, 4_000).replicas[0]
    assert (dead.state, dead.log_end_offset) == ("dead", None)


def test_a_topic_of_the_same_name_begins_again_at_epoch_0(timeline: Timeline) -> None:
    timeline.add(sample(4_000, 2, 0, [2], [replica(2, 3, 3)], topic_id="another"))
    assert frame_at(timeline, TP, 4_000).leader_epoch == 0


def test_a_truncation_is_shown_for_five_seconds(timeline: Timeline) -> None:
    assert frame_at(timeline, TP, 3_000).replicas[0].truncated_from == 13
    timeline.add(sample(9_000, 2, 1, [1, 2], [replica(1, 10, 10), replica(2, 10, 10)], zk_version=4))
    assert frame_at(timeline, TP, 9_000).replicas[0].truncated_from is None


def test_the_strip_shows_each_truncation_of_the_recording(timeline: Timeline) -> None:
    (cut,) = frame_at(timeline, TP, 0).truncations
    assert cut[1:] == (1, "broker 1 truncates its log from 13 to 10")
    assert cut[2] in strip_svg(frame_at(timeline, TP, 0))


def test_leader_epochs_end_where_the_next_begins(timeline: Timeline) -> None:
    assert frame_at(timeline, TP, 3_000).replicas[1].epochs == ((0, 0, 10), (1, 10, 10))


def test_changes_of_leader_and_isr_are_found_once_each(timeline: Timeline) -> None:
    spans = frame_at(timeline, TP, 0).spans
    assert [(one.begin, one.leader, one.leader_epoch, one.isr) for one in spans] == [
        (500, 1, 0, (1, 2)), (1_600, 2, 1, (2,)), (3_000, 2, 1, (1, 2)),
    ]  # fmt: skip
    assert spans[1].cause == "BrokerChange"


def test_a_deposed_leader_does_not_change_the_isr(timeline: Timeline) -> None:
    late = {
        **WHERE,
        "who": "broker-1",
        "kind": "isr-shrunk",
        "leader": 1,
        "leader_epoch": 0,
        "isr": [1],
        "zk_version": 9,
    }
    timeline.add(Entry(2_050, EVENT, late))
    assert frame_at(timeline, TP, 2_060).isr == (2,)


def test_two_controllers_overlap_until_the_deposed_one_resigns(timeline: Timeline) -> None:
    timeline.add(Entry(2_000, EVENT, {"who": "controller-8", "kind": "controller-elected", "controller_epoch": 2}))
    timeline.add(Entry(2_600, EVENT, {"who": "controller-7", "kind": "controller-resigned"}))
    frame = frame_at(timeline, TP, 2_300)
    assert [(one.controller, one.controller_epoch, one.begin, one.end) for one in frame.controllers] == [
        ("controller-7", 1, 0, 2_600), ("controller-8", 2, 2_000, None),
    ]  # fmt: skip
    assert (frame.controller, frame.controller_epoch) == (8, 2)


def test_a_broker_applies_each_controller_epoch_once(timeline: Timeline) -> None:
    timeline.add(sample(3_500, 2, 1, [2], [replica(2, 10, 10, controller_epoch=2)]))
    assert dict(frame_at(timeline, TP, 0).applied) == {1: ((1, 500),), 2: ((1, 500), (2, 3_500))}


def test_control_requests_and_events_are_kept_apart(timeline: Timeline) -> None:
    frame = frame_at(timeline, TP, 1_700)
    assert [(one["request"], one["controller_id"]) for one in frame.requests] == [("LeaderAndIsr", 7)]
    assert [one["kind"] for one in frame.events] == ["controller-elected", "leader-elected"]


def test_findings_come_from_the_rules_with_the_recordings_clock(timeline: Timeline) -> None:
    ((severity, sentence, _), *_) = frame_at(timeline, TP, 2_000).findings
    assert severity == "critical"
    assert sentence == (
        "t/0 takes no acks=all writes since 00:00:01 UTC, because its ISR is 2 alone and min.insync.replicas is 2: "
        "broker 1 is not alive."
    )


def test_records_that_a_dead_leader_alone_has_are_named(timeline: Timeline) -> None:
    assert any(
        "would lose 3 records (3 of them acknowledged to acks=1, none to acks=all)" in one[1]
        for one in frame_at(timeline, TP, 1_000).findings
    )


@pytest.mark.parametrize(
    ("value", "state"),
    [
        ({"alive": False}, "dead"),
        ({"paused": True, "role": "leader"}, "paused"),
        ({"answers": False}, "does not answer"),
        ({"role": "leader"}, "leads"),
        ({"role": "follower"}, "follows"),
        ({}, "idle"),
    ],
)
def test_states_of_a_replica(value: dict[str, object], state: str) -> None:
    entry = Entry(
        0, SAMPLE, {**WHERE, "leader": 1, "leader_epoch": 0, "isr": [1], "replicas": [{"broker_id": 1, **value}]}
    )
    timeline = Timeline(Header(title="", origin="cluster", began_ms=0), [entry])
    assert frame_at(timeline, TP, 0).replicas[0].state == state


def test_an_unknown_partition_has_an_empty_frame(timeline: Timeline) -> None:
    frame = frame_at(timeline, TopicPartition("none", 3), 1_000)
    assert (frame.leader, frame.isr, frame.replicas) == (None, (), ())


def test_a_window_of_two_minutes_follows_the_present(timeline: Timeline) -> None:
    assert frame_at(timeline, TP, 500).window == (0, 3_000)
    timeline.add(sample(300_000, 2, 1, [2], [replica(2, 10, 10)]))
    assert frame_at(timeline, TP, 500).window == (0, 120_000)
    assert frame_at(timeline, TP, 300_000).window == (180_000, 300_000)


def test_what_is_forgotten_leaves_the_state_at_that_time(timeline: Timeline) -> None:
    timeline.forget(events_before=2_900, samples_before=2_900)
    assert len(timeline.tracks[TP].samples.entries) == 2
    assert frame_at(timeline, TP, 2_950).leader == 2


def test_in_a_real_cluster_an_election_ends_the_time_of_the_controller_before() -> None:
    header = Header(title="", origin="cluster", began_ms=0)
    timeline = Timeline(header, [sample(0, 1, 0, [1], [replica(1, 3, 3)])])
    timeline.add(Entry(900, EVENT, {"who": "controller-8", "kind": "controller-elected", "controller_epoch": 2}))
    assert [(one.controller, one.begin, one.end) for one in frame_at(timeline, TP, 1_000).controllers] == [
        ("controller-7", 0, 900),
        ("controller-8", 900, None),
    ]


def test_a_high_watermark_that_moves_below_min_isr_is_found(timeline: Timeline) -> None:
    moved = [replica(1, 10, 10), replica(2, 12, 12, role="leader")]
    timeline.add(sample(2_400, 2, 1, [2], moved, zk_version=3))
    sentences = [sentence for _, sentence, _ in frame_at(timeline, TP, 2_400).findings]
    assert any("has moved its high watermark from 10 to 12, although its ISR is 2" in one for one in sentences)


def test_a_leader_that_was_not_in_the_isr_before_is_found(timeline: Timeline) -> None:
    timeline.add(sample(3_500, 3, 2, [3], [replica(1, 10, 10), replica(2, 10, 10)], zk_version=5))
    sentences = [sentence for _, sentence, _ in frame_at(timeline, TP, 3_500).findings]
    assert any("is led by broker 3, which may lack records" in one for one in sentences)


def test_only_control_requests_tell_the_applied_controller_epoch(timeline: Timeline) -> None:
    older = {**WHERE, "who": "broker-2", "kind": "became-leader", "controller_epoch": 0, "leader": 2, "leader_epoch": 1}
    timeline.add(Entry(2_200, EVENT, older))
    request = {**older, "kind": "control-request", "request": "LeaderAndIsr", "controller_epoch": 5}
    timeline.add(Entry(2_300, EVENT, request))
    timeline.add(Entry(2_400, EVENT, {**request, "controller_epoch": 4}))
    sentences = [one for _, one, _ in frame_at(timeline, TP, 2_400).findings if "deposed" in one]
    assert len(sentences) == 1 and "broker 2 applied controller epoch 4 after 5" in sentences[0]
