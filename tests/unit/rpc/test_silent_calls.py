"""Calls without a message: the oldest of the largest crowd gives way, and the log has one line a minute."""

import contextlib
import logging

import pytest

from paceline.rpc.admission.listener_limits import ListenerLimits
from paceline.rpc.admission.silent_calls import SilentCalls


class Call:
    """The context of a call."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def test_the_oldest_call_of_the_caller_with_most_calls_is_cancelled() -> None:
    used: list[int] = []
    calls = SilentCalls("CONTROL", 3, ListenerLimits(used=lambda _listener, _limit, number: used.append(number)))
    controller, crowd = Call(), [Call() for _ in range(5)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(calls.waiting("User:controller", controller))
        for call in crowd:
            stack.enter_context(calls.waiting("User:crowd", call))
        assert [call.is_cancelled for call in crowd] == [True, True, True, False, False]
        assert not controller.is_cancelled
        assert max(used) == 3
    assert used[-1] == 0


def test_a_limit_logs_one_line_a_minute_for_a_caller(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    times_s = iter((0.0, 1.0, 59.0, 59.0, 60.0))
    refused: list[tuple[str, str, int]] = []
    limits = ListenerLimits(refused=lambda *row: refused.append(row), clock_s=lambda: next(times_s))
    for _ in range(3):
        limits.refuse("CONTROL", "a.limit", "User:alice", "refusing")
    limits.refuse("CONTROL", "a.limit", "User:bob", "refusing", 7)
    limits.refuse("CONTROL", "a.limit", "User:alice", "refusing", 4)
    assert [record.getMessage() for record in caplog.records] == [
        "refusing: listener=CONTROL limit=a.limit caller=User:alice count=1",
        "refusing: listener=CONTROL limit=a.limit caller=User:bob count=7",
        "refusing: listener=CONTROL limit=a.limit caller=User:alice count=6",
    ]
    assert [count for _, _, count in refused] == [1, 1, 1, 7, 4]
