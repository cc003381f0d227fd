"""A broker whose REPLICATION listener no broker reaches, and the checks C16 and K17."""

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.controller.context import ControllerContext
from paceline.controller.state.leader_election import Election
from paceline.controller.state_change_log import Cause
from paceline.model.control import BrokerHeartbeatRequest, LiveBroker
from paceline.model.leader_and_isr import LeaderAndIsr
from tests.simulation.checked_cluster import TP, cluster, prepared, state, violated
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.mutants import MUTANTS
from tests.simulation.run import Run

__all__ = ["cluster"]

HIDDEN = next(one for one in MUTANTS if one.name == "an unreached broker keeps its leaderships")
SEEDS = (1, 2, 4, 5, 12)


def test_leaders_leave_a_broker_with_a_hidden_listener_and_sends_are_acknowledged_again() -> None:
    moved = checked = 0
    for seed in SEEDS:
        run = Run(seed, profile=HIDDEN.profile(seed))
        assert run.run().failures == {}, seed
        moved += run.cluster.checks.reachability.moved
        checked += run.cluster.checks.verdicts.all["C16"].exercised
    assert moved >= 3 and checked >= 3


def controller() -> Any:
    """A controller that has elected broker 1 for a partition on brokers 1, 2 and 3, as far as the check reads it."""
    context = ControllerContext(brokers={one: LiveBroker(one, (), broker_epoch=one) for one in (1, 2, 3)})
    context.leadership[TP] = LeaderAndIsr(1, 0, (1, 2, 3), 0, 1)
    return SimpleNamespace(_context=context, _log=SimpleNamespace(cause_of_election=Cause.UNREACHABLE))


def hear(cluster: SimulatedCluster, machine: Any, **unreachable: int) -> set[int]:
    """Let all brokers send heartbeats; broker_2=1 means that broker 2 does not reach broker 1."""
    checks = cluster.checks.reachability
    enough: set[int] = set()
    for broker_id in (1, 2, 3):
        leader = unreachable.get(f"broker_{broker_id}")
        reached = tuple(one for one in (1, 2, 3) if one not in (broker_id, leader))
        heartbeat = BrokerHeartbeatRequest(broker_id, broker_id, (), () if leader is None else (leader,), reached)
        enough = checks._heard(checks._of(machine._context), heartbeat)
    return enough


def choose(cluster: SimulatedCluster, machine: Any, leader: int, isr: tuple[int, ...] = (1, 2, 3)) -> None:
    cluster.checks.reachability._chosen(machine, TP, Election(LeaderAndIsr(leader, 1, isr, 0, 1), (1, 2, 3)))


def test_one_of_two_followers_is_not_enough(cluster: SimulatedCluster) -> None:
    assert hear(cluster, controller(), broker_2=1) == set()
    assert hear(cluster, controller(), broker_2=1, broker_3=1) == {1}


@pytest.mark.parametrize(("leader", "isr", "is_fine"), [(1, (1, 2, 3), False), (2, (1, 2, 3), True), (1, (1,), True)])
def test_an_unreached_leader_is_reported_unless_no_other_member_is_there(
    cluster: SimulatedCluster, leader: int, isr: tuple[int, ...], is_fine: bool
) -> None:
    machine = controller()
    hear(cluster, machine, broker_2=1, broker_3=1)
    choose(cluster, machine, leader, isr)
    assert violated(cluster) == (() if is_fine else ("K17",))


def test_a_leader_that_returns_soon_is_reported(cluster: SimulatedCluster) -> None:
    machine = controller()
    hear(cluster, machine, broker_2=1, broker_3=1)
    choose(cluster, machine, 2)
    hear(cluster, machine)
    machine._log.cause_of_election = Cause.OTHER
    choose(cluster, machine, 1)
    assert violated(cluster) == ("K17",)


@pytest.mark.parametrize("moves", [False, True])
def test_a_partition_that_waits_for_a_hidden_leader_is_reported(cluster: SimulatedCluster, moves: bool) -> None:
    prepared(cluster)
    cluster.network.hide("broker-1", drops=False)
    cluster.checks.reachability.hidden(1, 1_000)
    if moves:
        state(cluster, 2, 1, (1, 2, 3), 1)
    cluster.world.run_until(cluster.world.now_us + 1_100_000)
    assert violated(cluster) == (() if moves else ("C16",))
