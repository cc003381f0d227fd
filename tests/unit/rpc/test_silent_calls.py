"""Calls without a message: the oldest of the largest crowd gives way, and the log has one line a minute."""

import contextlib
import threading

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
    limits = ListenerLimits(used=lambda _listener, _limit, number: used.append(number))
    calls = SilentCalls("CONTROL", 3, limits, grace_s=0)
    controller, crowd = Call(), [Call() for _ in range(5)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(calls.waiting("User:controller", controller))
        for call in crowd:
            stack.enter_context(calls.waiting("User:crowd", call))
        assert [call.is_cancelled for call in crowd] == [True, True, True, False, False]
        assert not controller.is_cancelled
        assert max(used) == 3
    assert used[-1] == 0


def test_a_call_whose_message_may_still_arrive_is_not_cancelled_for_the_next_one() -> None:
    entered, done = threading.Semaphore(0), threading.Event()
    calls = SilentCalls("CONTROL", 1, ListenerLimits(used=lambda *_: entered.release()), grace_s=30)
    first, second = Call(), Call()

    def enter_second() -> None:
        with calls.waiting("User:broker/2", second):
            done.set()

    with calls.waiting("User:broker/1", first):
        entered.acquire()
        other = threading.Thread(target=enter_second, daemon=True)
        other.start()
        assert entered.acquire(timeout=20), "the second call has its place in the order"
        assert not done.is_set()
    assert done.wait(20)
    other.join(20)
    assert not first.is_cancelled and not second.is_cancelled
