"""A server never waits past the deadline of a call."""

from typing import Any

import pytest

from paceline.rpc.deadlines import wait_within_deadline


class Call:
    def __init__(self, left_s: float | None) -> None:
        self._left_s = left_s

    def time_remaining(self) -> float | None:
        return self._left_s


@pytest.mark.parametrize(
    ("wait_ms", "context", "cut_ms"),
    [
        (30_000, None, 30_000),
        (30_000, object(), 30_000),
        (30_000, Call(None), 30_000),
        (30_000, Call(60.0), 30_000),
        (30_000, Call(5.0), 4_900),
        (30_000, Call(0.1), 75),
        (0, Call(5.0), 0),
        (30_000, Call(0.0), 0),
        (30_000, Call(-1.0), 0),
    ],
)
def test_the_wait_leaves_time_for_the_answer(wait_ms: int, context: Any, cut_ms: int) -> None:
    assert wait_within_deadline(wait_ms, context) == cut_ms
