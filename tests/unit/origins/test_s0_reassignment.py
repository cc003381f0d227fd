"""Rows S0-13 to S0-16: reassignments, by the leader in the design of 2011 and by the controller today."""

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Create
from paceline.model.admin import NewTopic
from paceline.model.control import LeaderAndIsrRequest
from paceline.model.errors import InvalidReplicaAssignmentError
from tests.origins.leader_election import may_lead
from tests.origins.reassignment import (
    CompletionStep,
    PartitionNodes,
    Progress,
    check_reassigned_replicas,
    completion_steps,
    orders_for_new_target,
)
from tests.origins.state_change_queue import Order, StateChange
from tests.support.broker_cluster import TP
from tests.support.reassignments import running_reassignments
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp
from tests.unit.origins.whole_cluster import WholeCluster


def started(*assignment: int, brokers: tuple[int, ...] = (1, 2, 3, 4, 5, 6)) -> Cluster:
    cluster = Cluster()
    cluster.start_broker(*brokers)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=(assignment,)))
    cluster.told()
    return cluster


# S0-13


@pytest.mark.origin("S0-13")
def test_a_target_starts_new_replicas_and_an_empty_target_closes_all() -> None:
    start = StateChange(Order.START_REPLICA, TP, 6)
    close = StateChange(Order.CLOSE_REPLICA, TP, 6)
    assert orders_for_new_target(TP, (1, 2, 3), (3, 4, 5), 6) == [(4, start), (5, start)]
    assert orders_for_new_target(TP, (1, 2, 3), (3, 2), 6) == []
    assert orders_for_new_target(TP, (1, 2, 3), (), 6) == [(1, close), (2, close), (3, close)]


@pytest.mark.origin("S0-13")
def test_today_new_replicas_start_fetching_and_join() -> None:
    cluster = WholeCluster((1, 2, 3))
    cluster.create("orders", (1, 2))
    cluster.write(TP, b"a")
    assert cluster[3].logs.get(TP) is None
    cluster.reassign(TP, 1, 3)
    cluster.time.run_until(lambda: bool(cluster[3].transport.fetches), 5_000)
    cluster.time.run_until(lambda: cluster.partition_of(TP).replicas == (1, 3), 20_000)
    cluster.write(TP, b"b")
    cluster.until_in_sync(1, 3)
    assert cluster[3].values() == [b"a", b"b"]
    cluster.time.run_until(lambda: cluster[2].logs.get(TP) is None, 5_000)


@pytest.mark.origin("S0-13")
def test_today_an_empty_target_is_refused_and_deletion_uses_a_marker() -> None:
    cluster = started(1, 2)
    (result,) = cluster.reassign({tp("a-0"): ()})
    assert isinstance(result.error, InvalidReplicaAssignmentError) and cluster.told() == {}
    cluster.zk(Create(znodes.delete_topic_path("a")))
    cluster.settle()
    assert all("SR a-0 -2 delete" in cluster_told for cluster_told in (cluster.told()[1],))
    assert not cluster.exists(znodes.topic_path("a"))


# S0-14

AR, RAR = (1, 2, 3), (4, 5, 6)


def progress(ends: dict[int, int], isr: tuple[int, ...], leader: int = 1, sent: bool = False) -> Progress:
    return check_reassigned_replicas(100, ends, AR, RAR, isr, leader, sent)


@pytest.mark.origin("S0-14")
def test_no_replica_is_closed_before_every_new_replica_has_the_record() -> None:
    assert progress({4: 100, 5: 100, 6: 99}, AR) is Progress.WAIT
    assert progress({4: 100, 5: 100}, AR) is Progress.WAIT
    assert progress({4: 100, 5: 100, 6: 100}, AR) is Progress.CLOSE_OLD


@pytest.mark.origin("S0-14")
def test_the_leader_waits_until_closed_replicas_left_the_isr_and_leaves_last() -> None:
    caught_up = dict.fromkeys(RAR, 100)
    assert progress(caught_up, (1, 2, *RAR), sent=True) is Progress.WAIT
    assert progress(caught_up, (1, *RAR), sent=True) is Progress.COMPLETE_AND_STOP
    assert progress(caught_up, RAR, leader=4, sent=True) is Progress.COMPLETE


@pytest.mark.origin("S0-14")
def test_today_old_replicas_are_stopped_after_all_new_ones_joined_and_the_leader_after_its_successor() -> None:
    cluster = started(1, 2, 3)
    cluster.reassign({tp("a-0"): (4, 5, 6)})
    cluster.settle()
    for isr in ([1, 2, 3, 4], [1, 2, 3, 4, 5]):
        cluster.change_isr("a-0", isr)
        cluster.settle()
    assert not any("SR" in text for texts in cluster.told().values() for text in texts)
    cluster.brokers.received.clear()
    cluster.change_isr("a-0", [1, 2, 3, 4, 5, 6])
    cluster.settle()
    first_stop = min(n for n, (_, request) in enumerate(cluster.brokers.received) if "StopReplica" in repr(request))
    led_before = [
        request.partitions[0].leader
        for broker_id, request in cluster.brokers.received[:first_stop]
        if broker_id == 4 and isinstance(request, LeaderAndIsrRequest)
    ]
    assert led_before[-1] == 4, "4 leads before 1 is stopped"
    told = cluster.told()
    assert [b for b in (1, 2, 3) if any("SR" in text and "delete" in text for text in told[b])] == [1, 2, 3]
    assert not any("SR" in text for b in (4, 5, 6) for text in told[b])


# S0-15

NODES = PartitionNodes(assigned_replicas=AR, isr=(1, *RAR), leader=1, target=RAR)


def after_crash(nodes: PartitionNodes) -> PartitionNodes:
    """The leader dies; an eligible replica is elected, reads the written state, and finishes the reassignment."""
    alive = (2, 3, 4, 5, 6)
    candidates = [r for r in nodes.assigned_replicas if may_lead(r, nodes.assigned_replicas, nodes.isr, alive)]
    # While the old assignment stands, only its members watch: a live one of the ISR, or, if there is none, anybody.
    elected = PartitionNodes(nodes.assigned_replicas, nodes.isr, candidates[0] if candidates else 4, nodes.target)
    steps = completion_steps(elected, stop=elected.leader not in RAR)
    return steps[-1].nodes if steps else elected


@pytest.mark.origin("S0-15")
def test_the_isr_is_written_before_the_assignment_and_the_target_is_deleted_last() -> None:
    assert [step.what for step in completion_steps(NODES, stop=True)] == [
        "write ISR",
        "write assignment",
        "close own replica",
        "delete target",
        "delete leader",
    ]
    assert completion_steps(PartitionNodes(RAR, RAR, 4, None), stop=False) == []
    stays = completion_steps(PartitionNodes((4, 2, 3), (4, *RAR), 4, RAR), stop=False)
    assert [step.what for step in stays] == ["write ISR", "write assignment", "delete target"]


@pytest.mark.origin("S0-15")
@pytest.mark.parametrize("done", range(6))
def test_after_a_crash_between_any_two_steps_the_target_is_assigned_in_sync_and_leads(done: int) -> None:
    steps = [CompletionStep("nothing", NODES), *completion_steps(NODES, stop=True)]
    nodes = after_crash(steps[done].nodes)
    assert nodes.assigned_replicas == RAR and nodes.target is None
    assert set(RAR) <= set(nodes.isr), "the next leader has every committed record"
    eligible = [r for r in (2, 3, 4, 5, 6) if may_lead(r, nodes.assigned_replicas, nodes.isr, (2, 3, 4, 5, 6))]
    assert eligible == list(RAR), "no replica that was moved away can lead again"


@pytest.mark.origin("S0-15")
def test_the_other_order_leaves_an_assignment_without_an_in_sync_replica() -> None:
    only_old_in_sync = PartitionNodes(assigned_replicas=RAR, isr=(1,), leader=1, target=RAR)
    assert not set(only_old_in_sync.isr) & set(only_old_in_sync.assigned_replicas)
    for done in completion_steps(PartitionNodes(AR, (1,), 1, RAR), stop=True):
        assert set(done.nodes.isr) & set(done.nodes.assigned_replicas), done


@pytest.mark.origin("S0-15")
@pytest.mark.parametrize("writes", range(12))
def test_today_a_controller_that_dies_after_any_write_of_the_completion_is_succeeded(writes: int) -> None:
    cluster = started(1, 2, 3)
    cluster.reassign({tp("a-0"): (4, 5, 6)})
    cluster.settle()
    first = cluster.controller_clients[CONTROLLER_ID]
    session_id = first.session_id
    left = [writes]

    def count(*_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            first.crash()

    cluster.server._on_write = lambda write: count() if write.session_id == session_id else None
    if writes == 0:
        first.crash()
    cluster.change_isr("a-0", [1, 2, 3, 4, 5, 6], notify=False)
    cluster.settle()
    cluster.server._on_write = None
    if writes:
        first.crash()
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.server.expire(session_id)
    cluster.start_controller(CONTROLLER_ID + 1)
    cluster.time.run_for(5_000)
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [4, 5, 6]}
    state = cluster.data(znodes.partition_state_path(tp("a-0")))
    assert state["leader"] == 4 and sorted(state["isr"]) == [4, 5, 6]
    assert running_reassignments(cluster.controller) == {}
    told = cluster.told()
    left = [one for one in (1, 2, 3) if not any(line.startswith("SR") and "delete" in line for line in told[one])]
    assert left == [], "every old replica is deleted, by this controller or by its predecessor"


# S0-16


@pytest.mark.origin("S0-16")
def test_a_refused_deletion_is_retried_and_a_reassignment_waits_for_no_answer() -> None:
    cluster = started(1, 2)
    cluster.brokers.undeletable[2].add(tp("a-0"))
    cluster.zk(Create(znodes.delete_topic_path("a")))
    cluster.settle()
    assert cluster.exists(znodes.delete_topic_path("a")), "the deletion is still pending"
    cluster.brokers.undeletable.clear()
    cluster.told()
    cluster.kill_broker(2)
    cluster.start_broker(2)
    cluster.settle()
    assert "SR a-0 -2 delete" in cluster.told()[2] and not cluster.exists(znodes.topic_path("a"))
    cluster.create(NewTopic("b", assignments=((1, 2),)))
    cluster.settle()
    # Broker 1 answers nothing from here on, neither its new leader epoch nor the deletion of its replica.
    cluster.brokers.silent.add(1)
    cluster.reassign({tp("b-0"): (3, 2)})
    cluster.change_isr("b-0", [1, 2, 3])
    cluster.settle()
    assert {broker_id for broker_id, _ in cluster.brokers.held} == {1}
    moved = cluster.data(znodes.topic_path("b"))
    assert moved["partitions"] == {"0": [3, 2]}
    assert not moved.get("adding_replicas") and not moved.get("removing_replicas"), (
        "the reassignment is complete, not only started"
    )
    state = cluster.data(znodes.partition_state_path(tp("b-0")))
    assert state["leader"] in (2, 3) and sorted(state["isr"]) == [2, 3]
    told = cluster.told()
    assert "delete" not in str(told[1]), "the deletion waits behind a request that is not answered"
    cluster.brokers.release(1)
    cluster.settle()
    deletions = [line for line in cluster.told()[1] if line.startswith("SR b-0") and line.endswith("delete")]
    assert len(deletions) == 1, "the request is sent once the broker answers"
