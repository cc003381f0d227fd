"""Controlled shutdown: leaders move before a broker stops, and a stopping broker is not elected."""

import logging
from typing import Any

import pytest

from paceline.controller.events import ControlledShutdown
from paceline.model.control import BrokerHeartbeatRequest, ControlledShutdownRequest, ControlledShutdownResponse
from paceline.model.errors import ErrorCode, NotControllerError
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, started, tp


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


def with_heartbeats() -> Cluster:
    cluster = started(("a", (1, 2)), ("b", (2, 1)), lease_ms=9_000)
    cluster.heartbeat(1, 2, 3, shutting_down=False)
    assert cluster.controlled_shutdown(1).remaining == ()
    cluster.settle()
    cluster.told()
    return cluster


def test_a_heartbeat_of_a_broker_that_does_not_stop_ends_a_forged_controlled_shutdown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    cluster = with_heartbeats()
    cluster.time.run_for(3_000)
    cluster.heartbeat(1, shutting_down=False)
    cluster.settle()
    assert "broker does not stop" in caplog.text and "resumed" not in caplog.text, "its heartbeats never ended"
    assert cluster.told()[1][:2] == ["LAI a-0 2/1 [2], b-0 2/1 [2]", "UM {a-0 2/1 [2], b-0 2/1 [2]}"]
    for name in ("a-0", "b-0"):
        cluster.change_isr(name, [2, 1])
    cluster.settle()
    cluster.kill_broker(2)
    cluster.settle()
    assert [cluster.state(name) for name in ("a-0", "b-0")] == ["1/2 isr [1] ce 1 v3"] * 2


@pytest.mark.parametrize("shutting_down", [True, None])
def test_heartbeats_of_a_broker_that_stops_or_is_older_do_not_end_its_controlled_shutdown(
    shutting_down: bool | None,
) -> None:
    cluster = with_heartbeats()
    for _ in range(4):
        cluster.time.run_for(3_000)
        cluster.heartbeat(1, 2, 3, shutting_down=shutting_down)
    cluster.settle()
    assert cluster.told() == {}


def test_a_heartbeat_that_was_sent_before_the_stop_and_arrives_after_it_does_not_end_the_shutdown() -> None:
    cluster = with_heartbeats()
    cluster.heartbeat(1, shutting_down=False)
    cluster.settle()
    assert cluster.told() == {}


def test_a_late_heartbeat_does_not_end_a_stop_that_began_after_a_forged_shutdown() -> None:
    cluster = with_heartbeats()
    cluster.time.run_for(2_900)
    cluster.controlled_shutdown(1)
    cluster.time.run_for(200)
    cluster.told()
    cluster.heartbeat(1, shutting_down=False)
    cluster.settle()
    assert cluster.told() == {}


def test_a_late_heartbeat_of_a_stopped_process_does_not_end_the_shutdown_of_its_successor() -> None:
    """The heartbeat is handled while the restart and the next stop wait behind a slow ZooKeeper."""
    cluster = with_heartbeats()
    cluster.time.run_for(3_000)
    controller, stopped = cluster.controller, cluster.broker_epoch(1)
    cluster.bounce_broker(1)
    cluster.time.run_until(lambda: not controller.is_idle, max_ms=1_000)
    answers: list[Any] = []
    controller.ask(ControlledShutdown(ControlledShutdownRequest(1, stopped + 1_000), reply=answers.append))
    controller.broker_heartbeat(BrokerHeartbeatRequest(1, stopped, shutting_down=False))
    cluster.settle()
    assert answers == [ControlledShutdownResponse(ErrorCode.NONE)]
    assert cluster.broker_epoch(1) > stopped
    cluster.change_isr("a-0", [2, 1])
    cluster.kill_broker(2)
    cluster.settle()
    assert cluster.state("a-0").startswith("-1/"), "broker 1 is still shutting down"


def test_a_heartbeat_that_a_paused_controller_handles_late_does_not_end_the_shutdown() -> None:
    """A process that does not stop sends the next heartbeat a third of a lease later."""
    cluster = with_heartbeats()
    cluster.time.run_for(6_000)
    for _ in range(2):
        cluster.heartbeat(1, 2, 3, shutting_down=False)
    cluster.settle()
    assert cluster.told() == {}
    cluster.time.run_for(3_000)
    cluster.heartbeat(1, 2, 3, shutting_down=False)
    cluster.settle()
    assert cluster.told()[1][0] == "LAI a-0 2/1 [2], b-0 2/1 [2]"


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
