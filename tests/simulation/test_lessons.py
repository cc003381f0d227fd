"""The lessons: a run shows what its sentences say, and the committed recordings play."""

import gzip
import re

import pytest

from paceline.console.lens import frame_at
from paceline.console.recording import read_recording
from paceline.console.timeline import Timeline
from tests.simulation.lessons import FOLDER, LESSONS, TP, Lesson, recorded

NAMED = pytest.mark.parametrize("lesson", LESSONS, ids=[one.name for one in LESSONS])


@NAMED
def test_a_run_shows_what_its_lesson_says(lesson: Lesson) -> None:
    """`recorded` fails when an event is missing or a sentence is not true of the lens."""
    assert [text for _, text in recorded(lesson).header.steps] == [step.sentence for step in lesson.steps]


@NAMED
def test_a_committed_recording_plays_and_its_page_has_its_sentences(lesson: Lesson) -> None:
    with gzip.open(FOLDER / f"{lesson.name}.ndjson.gz", "rt", encoding="utf-8") as lines:
        recording = read_recording(lines)
    assert recording.cut is None
    timeline = Timeline(recording.header, recording.entries)
    page = (FOLDER / f"{lesson.name}.md").read_text(encoding="utf-8")
    assert len(recording.header.steps) == 5
    for (t, sentence), step in zip(recording.header.steps, lesson.steps, strict=True):
        assert sentence == step.sentence and sentence in page
        assert step.is_true(frame_at(timeline, TP, t))
    for picture in re.findall(r"\]\((.+?\.svg)\)", page):
        assert (FOLDER / picture).read_text(encoding="utf-8").startswith("<svg")
