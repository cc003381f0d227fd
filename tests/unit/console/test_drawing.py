"""The pictures: well-formed, with all that a frame has, and nothing that a name could smuggle in."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from paceline.console import drawing
from paceline.console.lens import Frame, frame_at
from paceline.console.recording import EVENT, Entry
from paceline.console.timeline import Timeline
from tests.unit.console.history import TP, WHERE

DRAWINGS = (drawing.offsets_svg, drawing.strip_svg, drawing.controllers_svg, drawing.exchange_svg)


def texts(svg: str) -> list[str]:
    return ["".join(one.itertext()) for one in ET.fromstring(svg).iter("text")]


@pytest.mark.parametrize("t", [0, 1_000, 2_000, 3_000])
@pytest.mark.parametrize("draw", DRAWINGS)
def test_pictures_are_well_formed_at_every_time(draw: object, t: int, timeline: Timeline) -> None:
    assert callable(draw)
    svg = draw(frame_at(timeline, TP, t))
    assert ET.fromstring(svg).get("role") == "img"
    assert ET.fromstring(drawing.picture(svg)).get("width") == "960"


def test_offsets_are_in_proportion_and_uncommitted_records_are_hatched(timeline: Timeline) -> None:
    frame = frame_at(timeline, TP, 1_000)
    low, high = drawing.domain(frame)
    assert low <= 10 and high > 13
    found = {one.get("class"): one for one in ET.fromstring(drawing.offsets_svg(frame)).iter("rect")}
    assert found["hatched"].get("width") == f"{100 * 3 / (high - low):.2f}%"
    assert {"high watermark 10", "acknowledged 10", "● broker 1", "★ leads"} <= set(texts(drawing.offsets_svg(frame)))


def test_a_truncation_and_a_dead_replica_are_marked(timeline: Timeline) -> None:
    assert "✂ 3" in texts(drawing.offsets_svg(frame_at(timeline, TP, 3_000)))
    assert {"dead", "○ broker 1"} <= set(texts(drawing.offsets_svg(frame_at(timeline, TP, 2_000))))


def test_changes_truncations_and_faults_link_to_their_time(timeline: Timeline) -> None:
    svg = drawing.strip_svg(frame_at(timeline, TP, 0), lambda t: f"?t={t}")
    assert [one.get("href") for one in ET.fromstring(svg).iter("a")] == [
        "?t=500",
        "?t=1600",
        "?t=3000",
        "?t=2800",
        "?t=1200",
    ]


def test_a_gap_is_drawn_as_a_gap(timeline: Timeline) -> None:
    assert "not recorded: a test" in drawing.strip_svg(frame_at(timeline, TP, 0))


def test_a_refused_request_says_so_with_both_epochs(timeline: Timeline) -> None:
    refused = {"request": "LeaderAndIsr", "controller_id": 6, "who": "broker-1", "controller_epoch": 1}
    more = {"known_controller_epoch": 2, "error": "STALE_CONTROLLER_EPOCH"}
    timeline.add(Entry(1_700, EVENT, {**WHERE, "kind": "control-request", **refused, **more}))
    shown = texts(drawing.exchange_svg(frame_at(timeline, TP, 1_700)))
    assert "✗ LeaderAndIsr refused: controller epoch 1 < 2" in shown
    assert "✓ LeaderAndIsr e1, leader 2" in shown


def test_names_are_escaped(timeline: Timeline) -> None:
    frame = frame_at(timeline, TP, 1_000)
    evil: Frame = replace(frame, topic='"><script>', faults=((1_000, "<img>"),))
    for draw in DRAWINGS:
        assert "<script" not in draw(evil) and "<img" not in draw(evil)


@pytest.mark.parametrize(("span", "count", "step"), [(10, 10, 1), (20, 5, 5), (130, 8, 20), (336_776, 5, 100_000)])
def test_steps_of_an_axis_are_round(span: int, count: int, step: int) -> None:
    assert drawing.nice_step(span, count) == step
