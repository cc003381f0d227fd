"""Calls without a message: the oldest of the largest crowd gives way, and the log has one line a minute."""

import contextlib

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
