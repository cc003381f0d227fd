"""Rows S0-6, S0-7 and S0-12: replicas that elect among themselves, and the controller that does it for them."""

import json

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Create, Response, SetData
from paceline.model.admin import NewTopic
from paceline.model.settings import ControllerConfig
from tests.origins.leader_election import (
    LeaderNode,
    may_lead,
    should_give_up_leadership,
    wait_before_standing_ms,
)
from tests.support.broker_cluster import TP, BrokerCluster
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import MemoryZooKeeper, MemoryZooKeeperServer
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp
from tests.unit.origins.whole_cluster import WholeCluster

WAIT_MS = 400
LEADER = "/leader"


def race(assigned: tuple[int, ...], isr: tuple[int, ...], alive: tuple[int, ...]) -> tuple[int | None, int, int]:
    """Let the live replicas elect a leader; return winner, how many stood, and after how many milliseconds."""
    time = VirtualTime()
    server = MemoryZooKeeperServer(time)
    won: list[int] = []
    stood: list[int] = []
    begun_ms = time.now_ms()

    def stand(client: MemoryZooKeeper, broker_id: int) -> None:
        stood.append(broker_id)

        def done(responses: list[Response]) -> None:
            if responses[0].ok:
                won.append(broker_id)

        client.submit([Create(LEADER, LeaderNode(broker_id, 6).encode(), ephemeral=True)], done)

    # The last assigned replica is notified of the vacancy first.
    for broker_id in reversed(alive):
        client = MemoryZooKeeper(server, time)
        client.start(lambda _: None, lambda _: None)
        if may_lead(broker_id, assigned, isr, alive):
            wait_ms = wait_before_standing_ms(broker_id, assigned, alive, WAIT_MS)
            time.call_later(wait_ms, lambda c=client, b=broker_id: stand(c, b))  # type: ignore[misc]
    time.run_for(10 * WAIT_MS)
    node = server.tree.get(LEADER)
    if node is None:
        assert won == []
        return None, len(stood), time.now_ms() - begun_ms
    assert len(won) == 1, "only the replica that creates the node is leader"
    assert LeaderNode.decode(node.data or b"") == LeaderNode(won[0], 6)
    return won[0], len(stood), time.now_ms() - begun_ms


@pytest.mark.origin("S0-6")
@pytest.mark.parametrize(
    ("assigned", "isr", "alive", "winner", "candidates"),
    [
        ((1, 2, 3), (1, 2, 3), (1, 2, 3), 1, 3),  # the preferred replica, although the others were notified first
        (
            (1, 2, 3),
            (1, 2, 3),
            (2, 3),
            3,
            2,
        ),  # the preferred replica is dead: no replica waits, and the first notified one wins
        ((1, 2, 3), (2, 3), (1, 2, 3), 3, 2),  # alive but not in the ISR: the others wait for it in vain
        ((1, 2, 3), (2,), (1, 2, 3), 2, 1),
        ((1, 2, 3), (2,), (1, 3), 1, 2),  # the whole ISR is dead: any assigned replica, records are lost
        ((1, 2, 3), (), (2, 3), 3, 2),  # no ISR yet: any assigned replica
        ((1, 2, 3), (1, 2, 3), (4,), None, 0),  # not assigned
    ],
)
def test_exactly_one_replica_wins_the_race(
    assigned: tuple[int, ...], isr: tuple[int, ...], alive: tuple[int, ...], winner: int | None, candidates: int
) -> None:
    assert race(assigned, isr, alive)[:2] == (winner, candidates)


@pytest.mark.origin("S0-6")
@pytest.mark.parametrize(
    ("isr", "alive", "expected"),
    [
        ([1, 2, 3], (1, 2, 3), 1),
        ([2, 3], (1, 2, 3), 2),  # the first assigned replica in the ISR, in any order of notifications
        ([2], (1, 3), -1),  # no live ISR member: no leader rather than lost records
    ],
)
def test_today_the_controller_elects_by_assignment_from_the_isr(
    isr: list[int], alive: tuple[int, ...], expected: int
) -> None:
    assert elected(isr, alive, unclean=False) == expected


@pytest.mark.origin("S0-6")
def test_today_a_replica_outside_the_isr_leads_only_where_that_is_allowed() -> None:
    assert elected([2], (1, 3), unclean=True) == 1


def elected(isr: list[int], alive: tuple[int, ...], unclean: bool) -> int:
    """Let a new controller elect a leader for a partition without one."""
    cluster = Cluster()
    cluster.start_broker(*alive)
    cluster.create_topic_node("a", [[1, 2, 3]])
    if unclean:
        config = znodes.encode_config({"unclean.leader.election.enable": "true"})
        cluster.zk(Create(znodes.topic_config_path("a"), config))
    path = znodes.partition_state_path(tp("a-0"))
    for step in znodes.parent_paths(path):
        cluster.zk(Create(step), must_succeed=False)
    state = {"version": 1, "leader": -1, "leader_epoch": 3, "controller_epoch": 0, "isr": isr}
    cluster.zk(Create(path, json.dumps(state).encode()))
    cluster.start_controller()
    return int(cluster.data(path)["leader"])


# S0-7


@pytest.mark.origin("S0-7")
def test_a_follower_switches_to_the_new_leader_and_stops_fetching_from_the_old_one() -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    cluster.decide(2, 1, (1, 2, 3))
    cluster.time.run_for(50)
    sent = len(cluster[3].transport.fetches)
    cluster[2].produce(b"b")
    cluster.until_in_sync(1, 2, 3)
    cluster.time.run_for(2_000)
    assert {leader for leader, _ in cluster[3].transport.fetches[sent:]} == {2}
    assert cluster[1].values() == cluster[3].values() == [b"a", b"b"]


# S0-12


@pytest.mark.origin("S0-12")
@pytest.mark.parametrize(
    ("leader", "isr", "expected"), [(2, (2, 1), True), (2, (2, 3), False), (1, (1, 2), False), (3, (1, 2, 3), True)]
)
def test_a_leader_resigned_for_the_preferred_replica_only_if_that_was_in_sync(
    leader: int, isr: tuple[int, ...], expected: bool
) -> None:
    assert should_give_up_leadership(leader, (1, 2, 3), isr) is expected


def ask_for_preferred_leader(cluster: WholeCluster) -> None:
    cluster.zk(Create(znodes.PREFERRED_REPLICA_ELECTION, znodes.encode_partition_set([TP])))
    cluster.time.run_for(100)


@pytest.mark.origin("S0-12")
def test_today_the_preferred_leader_is_restored_without_losing_a_record() -> None:
    cluster = WholeCluster(replica_lag_time_max_ms=2_000)
    cluster.create("orders", (1, 2, 3))
    cluster.write(TP, b"a")
    cluster.kill(1)
    cluster.time.run_until(lambda: cluster.partition_of(TP).leader == 2, 20_000)
    cluster.write(TP, b"b")
    cluster.restart(1)
    ask_for_preferred_leader(cluster)
    assert cluster.partition_of(TP).leader == 2, "1 is not in sync yet, so nothing happens"
    cluster.time.run_until(lambda: 1 in cluster.state().isr, 20_000)
    cluster.time.run_for(10_000)  # The notice of the ISR change reaches the controller within five seconds and a tick.
    ask_for_preferred_leader(cluster)
    assert cluster.partition_of(TP).leader == 1
    cluster.write(TP, b"c")
    cluster.until_in_sync(1, 2, 3)
    assert cluster[1].values() == [b"a", b"b", b"c"]


@pytest.mark.origin("S0-12")
def test_today_nothing_happens_while_the_preferred_replica_is_out_of_sync() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    path = znodes.partition_state_path(tp("a-0"))
    state = cluster.data(path)
    cluster.zk(SetData(path, json.dumps({**state, "leader": 2, "leader_epoch": 1, "isr": [2]}).encode()))
    cluster.zk(Create(znodes.ISR_CHANGE_PREFIX, znodes.encode_partition_set([tp("a-0")]), sequential=True))
    cluster.settle()
    cluster.told()
    cluster.zk(Create(znodes.PREFERRED_REPLICA_ELECTION, znodes.encode_partition_set([tp("a-0")])))
    cluster.settle()
    assert cluster.state("a-0").startswith("2/1 isr [2]") and cluster.told() == {}


@pytest.mark.origin("S0-12")
@pytest.mark.parametrize(("percentage", "leaders"), [(49, [1, 1, 2, 2]), (50, [2, 1, 2, 2])])
def test_today_preferred_leaders_are_restored_above_the_imbalance_limit(percentage: int, leaders: list[int]) -> None:
    config = ControllerConfig(
        CONTROLLER_ID, leader_imbalance_check_interval_ms=5_000, leader_imbalance_per_broker_percentage=percentage
    )
    cluster = Cluster(config)
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2), (1, 2), (2, 1), (2, 1))))
    # Of the two partitions that broker 1 is preferred for it leads one: the other is away, half of them.
    for partition, leader, isr in ("a-0", 2, [2]), ("a-1", 1, [1, 2]):
        path = znodes.partition_state_path(tp(partition))
        state = {**cluster.data(path), "leader": leader, "leader_epoch": 1, "isr": isr}
        cluster.zk(SetData(path, json.dumps(state).encode()))
        cluster.zk(Create(znodes.ISR_CHANGE_PREFIX, znodes.encode_partition_set([tp(partition)]), sequential=True))
    cluster.settle()
    cluster.time.run_for(12_000)
    assert cluster.state("a-0").startswith("2/1 isr [2]"), "1 is not in sync"
    cluster.change_isr("a-0", [2, 1])
    cluster.time.run_for(6_000)
    assert [int(cluster.state(f"a-{n}").split("/")[0]) for n in range(4)] == leaders
