"""Requests that a limit refuses: counted, and logged once per principal, limit and minute."""

from collections import Counter

import pytest

from paceline.model.errors import GroupMaxSizeReachedError, InvalidRequestError, PacelineError
from paceline.rpc.admission.listener_limits import ListenerLimits
from paceline.rpc.interceptors import count_refusal
from paceline.rpc.security.authorizer import Authorizer, Call, Caller, acting_as


def test_each_principal_and_limit_gets_one_line_a_minute_with_the_number_of_refusals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    counts: Counter[tuple[str, str]] = Counter()
    limits = ListenerLimits(
        refused=lambda listener, limit, number: counts.update({(listener, limit): number}), clock_s=lambda: now_s
    )

    def refuse(name: str, error: PacelineError) -> None:
        with acting_as(Call(Caller(name), Authorizer())):
            count_refusal(limits, "CLIENT", error)

    size = GroupMaxSizeReachedError("full").with_metadata(limit="group.max.size")
    offsets = GroupMaxSizeReachedError("full").with_metadata(limit="group.max.offsets")
    for number in range(120):  # one refusal a second for two minutes
        now_s = float(number)
        refuse("User:a", size)
    for error in (size, offsets, InvalidRequestError("names no limit")):
        refuse("User:b", error)
    lines = [one.getMessage().partition(": ")[2] for one in caplog.records]
    assert lines == [
        "listener=CLIENT limit=group.max.size caller=User:a count=1",
        "listener=CLIENT limit=group.max.size caller=User:a count=60",
        "listener=CLIENT limit=group.max.size caller=User:b count=1",
        "listener=CLIENT limit=group.max.offsets caller=User:b count=1",
    ]
    assert counts == {("CLIENT", "group.max.size"): 121, ("CLIENT", "group.max.offsets"): 1}
