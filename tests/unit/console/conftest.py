"""Fixtures of the tests of the console."""

import pytest

from paceline.console.recording import Header, Recording
from paceline.console.timeline import Timeline
from tests.unit.console.history import history


@pytest.fixture
def recording() -> Recording:
    steps = ((500, "Look at <b>this</b>."),)
    return Recording(
        Header(title="a <test>", origin="simulation", began_ms=0, made_by="pytest", steps=steps), history()
    )


@pytest.fixture
def timeline(recording: Recording) -> Timeline:
    return Timeline(recording.header, recording.entries)
