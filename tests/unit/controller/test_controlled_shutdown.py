"""Controlled shutdown: leaders move before a broker stops, and a stopping broker is not elected."""

from typing import Any

import pytest

from paceline.controller.events import ControlledShutdown
from paceline.model.control import ControlledShutdownRequest, ControlledShutdownResponse
from paceline.model.errors import ErrorCode, NotControllerError
from tests.unit.controller.cluster import CONTROLLER_ID, started, tp


@pytest.mark.origin("S3-9")
def test_a_controlled_shutdown_moves_leaders_first_and_stops_followers() -> None:
    cluster = started(("a", (1, 2)), ("b", (2, 1)), ("u", (1,)))
    response = cluster.controlled_shutdown(1)
    assert response.remaining == (), "the single replica of u does not block"
    cluster.settle()
    moved = "UM {a-0 2/1 [2] offline [1]}"
    shrunk = "UM {b-0 2/1 [2] offline [1]}"
    assert cluster.told() == {
        1: ["LAI a-0 2/1 [2]", moved, "SR b-0 0", shrunk, "SR b-0 0"],
        2: ["LAI a-0 2/1 [2]", moved, "LAI b-0 2/1 [2]", shrunk],
        3: [moved, shrunk],
    }
    cluster.kill_broker(1)
    cluster.settle()
    gone = "UM {a-0 2/1 [2] offline [1], b-0 2/1 [2] offline [1], u-0 -1/1 [1] offline [1]}"
    # The single replica's partition has an offline leader, so its election attempt stands for the plain UM {}.
    assert cluster.told() == {2: ["LAI a-0 2/1 [2], b-0 2/1 [2]", gone], 3: [gone]}


def test_a_controlled_shutdown_with_an_old_broker_epoch_is_refused() -> None:
    cluster = started(("a", (1, 2)))
    response = cluster.controlled_shutdown(1, broker_epoch=0)
    assert response == ControlledShutdownResponse(ErrorCode.STALE_BROKER_EPOCH)
    assert cluster.state("a-0") == "1/0 isr [1, 2] ce 1 v0"


def test_a_controlled_shutdown_of_an_unknown_broker_is_refused() -> None:
    cluster = started()
    answers: list[Any] = []
    cluster.controller.ask(ControlledShutdown(ControlledShutdownRequest(9, 1), reply=answers.append))
    cluster.settle()
    assert answers == [ControlledShutdownResponse(ErrorCode.BROKER_NOT_AVAILABLE)]


def test_a_standby_refuses_a_controlled_shutdown() -> None:
    cluster = started()
    standby = cluster.start_controller(CONTROLLER_ID + 1)
    answers: list[Any] = []
    standby.ask(ControlledShutdown(ControlledShutdownRequest(1, 1), reply=answers.append))
    assert isinstance(answers[0], NotControllerError)


def test_a_controlled_shutdown_that_cannot_complete_lists_the_remaining_partitions() -> None:
    cluster = started(("a", (1, 2)), ("b", (1, 2)))
    cluster.change_isr("a-0", [1])
    cluster.settle()
    assert cluster.controlled_shutdown(1).remaining == (tp("a-0"),)
    assert cluster.state("a-0") == "1/0 isr [1] ce 1 v1"
    assert cluster.state("b-0") == "2/1 isr [2] ce 1 v1"
    # The follower joins the ISR again, and the next attempt succeeds.
    cluster.change_isr("a-0", [1, 2])
    cluster.settle()
    assert cluster.controlled_shutdown(1).remaining == ()
    assert cluster.state("a-0") == "2/1 isr [2] ce 1 v3"


def test_a_broker_that_is_shutting_down_is_not_elected() -> None:
    cluster = started(("a", (1, 2, 3)))
    cluster.controlled_shutdown(2)
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.state("a-0").startswith("3/2 isr [3]")
