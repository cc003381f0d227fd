"""Reassignments that race with failovers, ISR writes of leaders, and other clients of ZooKeeper, at each step."""

import itertools
import json
from typing import Any

import pytest

from paceline.controller.errors import UnexpectedResponseError
from paceline.controller.reassignment.reassignment_steps import RETRY_MS
from paceline.controller.zk_store import ZkStore
from paceline.coordination import znodes
from paceline.coordination.flow import Flow
from paceline.coordination.interface import Create, Delete, Response, SetData, ZkCode
from paceline.model.admin import NewTopic
from paceline.model.assignment import ReplicaAssignment
from paceline.model.errors import InvalidReplicaAssignmentError
from tests.support.reassignments import start_reassignments
from tests.unit.controller.admin_calls import kinds, move, moves
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, short, tp

PATH = znodes.partition_state_path(tp("a-0"))


def join(cluster: Cluster, broker_id: int) -> None:
    """Add a replica to the ISR as a leader does, without waiting: a conditional write, repeated after a conflict."""
    node = cluster.server.tree.get(PATH)
    assert node is not None and node.data is not None
    state = json.loads(node.data)
    if broker_id in state["isr"]:
        return
    state["isr"].append(broker_id)

    def answered(responses: list[Response]) -> None:
        if not responses[0].ok:
            join(cluster, broker_id)

    cluster.tool.submit([SetData(PATH, json.dumps(state).encode(), node.version)], answered)


@pytest.mark.parametrize("steps", range(60))
def test_a_replica_that_joins_during_a_failover_completes_the_reassignment_at_any_step(steps: int) -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    assert kinds(move(cluster, ("a-0", (3,)))) == [None]
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.settle()
    cluster.start_controller(CONTROLLER_ID + 1, settle=False)
    passed = itertools.count()
    cluster.time.run_until(lambda: next(passed) == steps, max_ms=0, must_hold=False)
    join(cluster, 3)
    cluster.settle()
    assert moves(cluster) == []
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [3]}
    assert (cluster.data(PATH)["leader"], cluster.data(PATH)["isr"]) == (3, [3])


def test_a_reassignment_to_a_broker_without_lease_gets_its_leader_at_the_next_heartbeat() -> None:
    cluster = Cluster()
    cluster.lease_ms = 9_000
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    assert kinds(move(cluster, ("a-0", (3,)))) == [None]
    for _ in range(4):
        cluster.heartbeat(1, 2)
        cluster.time.run_for(3_000)
    cluster.change_isr("a-0", [1, 2, 3])
    cluster.settle()
    assert (cluster.data(PATH)["leader"], cluster.data(PATH)["isr"]) == (-1, [3])
    assert cluster.controller.gauges()["offline_partitions"] == 1
    cluster.heartbeat(3)
    cluster.settle()
    assert (cluster.data(PATH)["leader"], cluster.data(PATH)["isr"]) == (3, [3])


def one_step_from_done() -> Cluster:
    """``a-0`` is being reassigned from 1 and 2 to 1 and 3; 3 has not joined the ISR yet."""
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    assert kinds(move(cluster, ("a-0", (1, 3)))) == [None]
    return cluster


def assert_done(cluster: Cluster) -> None:
    assert moves(cluster) == []
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [1, 3]}
    assert (cluster.data(PATH)["leader"], cluster.data(PATH)["isr"]) == (1, [1, 3])
    assert tp("a-0") not in cluster.brokers.epochs[2], "the removed replica is deleted"


def test_a_reassignment_continues_when_its_malformed_state_is_repaired() -> None:
    cluster = one_step_from_done()
    state = cluster.data(PATH)
    cluster.zk(SetData(PATH, json.dumps({**state, "isr": [1, 2, 3], "controller_epoch": 99}).encode()))
    cluster.settle()
    (ongoing,) = moves(cluster)
    assert ongoing.assignment == ReplicaAssignment((1, 3, 2), (3,), (2,)), "equal to the assignment in the topic's node"
    cluster.zk(SetData(PATH, json.dumps({**state, "isr": [1, 2, 3]}).encode()))
    cluster.time.run_for(RETRY_MS)
    assert_done(cluster)


def test_a_reassignment_whose_last_write_fails_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = one_step_from_done()
    real, refusals = ZkStore.write_topic, [ZkCode.NO_NODE, ZkCode.NO_NODE]

    def write_topic(self: ZkStore, *args: Any) -> Flow[None]:
        if refusals:
            raise UnexpectedResponseError(refusals.pop(), "set the topic's node")
        yield from real(self, *args)

    monkeypatch.setattr(ZkStore, "write_topic", write_topic)
    cluster.change_isr("a-0", [1, 2, 3], notify=False)
    cluster.settle()
    assert len(refusals) == 1 and len(moves(cluster)) == 1
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [1, 3, 2]}
    cluster.time.run_for(2 * RETRY_MS)
    assert_done(cluster)


@pytest.mark.parametrize("came_by", ["a call", "the node"])
def test_a_partition_that_never_had_a_leader_gets_its_first_leader_in_the_target(came_by: str) -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create_topic_node("a", [[8, 9]])
    cluster.settle()
    assert not cluster.exists(PATH)
    if came_by == "a call":
        assert kinds(move(cluster, ("a-0", (3, 1)))) == [None]
    else:
        asked = {"version": 1, "partitions": [{"topic": "a", "partition": 0, "replicas": [3, 1]}]}
        cluster.zk(Create(znodes.REASSIGN_PARTITIONS, json.dumps(asked).encode()))
    cluster.settle()
    assert moves(cluster) == []
    assert not cluster.exists(znodes.REASSIGN_PARTITIONS)
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [3, 1]}
    assert (cluster.data(PATH)["leader"], cluster.data(PATH)["isr"]) == (3, [3, 1])
    cluster.delete("a")
    cluster.settle()
    assert not cluster.exists(znodes.topic_path("a")), "its replicas are known, so they can be deleted"


def test_a_partition_that_never_had_a_leader_waits_for_a_broker_of_the_target() -> None:
    cluster = Cluster()
    cluster.start_broker(1)
    cluster.start_controller()
    cluster.create_topic_node("a", [[8, 9]])
    cluster.settle()
    assert kinds(move(cluster, ("a-0", (9,)))) == [None]
    assert len(moves(cluster)) == 1 and not cluster.exists(PATH)
    assert cluster.controller.gauges()["offline_partitions"] == 1, (
        "a partition that never had a leader counts as offline"
    )
    cluster.start_broker(9)
    cluster.settle()
    assert moves(cluster) == []
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [9]}
    assert (cluster.data(PATH)["leader"], cluster.data(PATH)["isr"]) == (9, [9])


def test_a_leader_outside_a_new_target_is_replaced_at_once() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3, 4)
    cluster.start_controller()
    cluster.create_topic_node("a", [[2, 1]])
    cluster.settle()
    assert kinds(move(cluster, ("a-0", (3, 4)))) == [None]
    cluster.change_isr("a-0", [2, 1, 4])
    cluster.kill_broker(2)
    cluster.settle()
    assert cluster.data(PATH)["leader"] == 4
    assert kinds(move(cluster, ("a-0", (1, 3)))) == [None]
    cluster.settle()
    assert (cluster.data(PATH)["leader"], cluster.data(PATH)["isr"]) == (1, [1])


def test_a_new_target_elects_no_leader_where_the_partition_had_none() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3, 4)
    cluster.start_controller()
    cluster.create_topic_node("a", [[2, 3]])
    cluster.settle()
    cluster.change_isr("a-0", [2])
    cluster.kill_broker(3)
    cluster.kill_broker(2)
    cluster.settle()
    assert kinds(move(cluster, ("a-0", (2, 1)))) == [None]
    path = znodes.topic_config_path("a")
    cluster.zk(Create(path, znodes.encode_config({"unclean.leader.election.enable": "true"})))
    assert kinds(move(cluster, ("a-0", (2, 4)))) == [None]
    cluster.settle()
    assert (cluster.data(PATH)["leader"], cluster.data(PATH)["isr"]) == (-1, [2])


def taken_back_and_no_further(leader: int, isr: list[int]) -> Cluster:
    """A controller cancelled the reassignment of ``a-0`` from 2 and 3 to 2 and 1 in the topic's node, and then died."""
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create_topic_node("a", [[2, 3]])
    cluster.settle()
    assert kinds(move(cluster, ("a-0", (2, 1)))) == [None]
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.settle()
    path = znodes.topic_path("a")
    taken_back = znodes.TopicAssignment({0: ReplicaAssignment((2, 3))}, cluster.data(path)["topic_id"])
    cluster.zk(SetData(path, znodes.encode_topic_assignment(taken_back)))
    cluster.zk(SetData(PATH, json.dumps({**cluster.data(PATH), "leader": leader, "isr": isr}).encode()))
    return cluster


@pytest.mark.parametrize(("leader", "isr", "left"), [(2, [2, 3, 1], [2, 3]), (2, [2, 1], [2]), (1, [3, 1], [3])])
def test_a_new_controller_removes_replicas_of_a_cancelled_reassignment_from_the_isr(
    leader: int, isr: list[int], left: list[int]
) -> None:
    cluster = taken_back_and_no_further(leader, isr)
    before = cluster.data(PATH)["leader_epoch"]
    cluster.start_controller(CONTROLLER_ID + 1)
    state = cluster.data(PATH)
    assert (state["leader"], state["isr"]) == (left[0], left)
    assert state["leader_epoch"] > before, "an ISR write of the leader that is in flight fails"
    assert tp("a-0") not in cluster.brokers.epochs[1], "its log is set aside"
    for broker_id in (2, 3):
        cluster.kill_broker(broker_id)
        cluster.settle()
    cluster.start_broker(2, 3)
    cluster.settle()
    assert cluster.data(PATH)["leader"] == left[-1], "the last in-sync replica"


def test_a_new_controller_keeps_an_isr_without_any_assigned_replica() -> None:
    """No controller creates such a state; it is left to an operator."""
    cluster = taken_back_and_no_further(-1, [1])
    before = cluster.state("a-0")
    cluster.start_controller(CONTROLLER_ID + 1)
    assert cluster.state("a-0") == before


@pytest.mark.parametrize("one", [None, (1, 4)])
@pytest.mark.parametrize("steps", range(30))
def test_a_cancellation_is_refused_when_a_new_replica_alone_stays_in_sync_at_any_step(
    one: tuple[int, ...] | None, steps: int
) -> None:
    """The leader, a new replica, removes the last other ISR member while the controller handles the request."""
    cluster = Cluster()
    cluster.start_broker(1, 2, 3, 4)
    cluster.start_controller()
    cluster.create_topic_node("a", [[2, 1]])
    cluster.settle()
    assert kinds(move(cluster, ("a-0", (3, 4)))) == [None]
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.settle()
    cluster.zk(SetData(PATH, json.dumps({**cluster.data(PATH), "leader": 3, "isr": [3, 1]}).encode()))
    cluster.start_controller(CONTROLLER_ID + 1)
    node = cluster.server.tree.get(PATH)
    assert node is not None
    shrinks = SetData(PATH, json.dumps({**cluster.data(PATH), "isr": [3]}).encode(), node.version)
    answers: list[Any] = []
    start_reassignments(cluster.controller, {tp("a-0"): one}, answers.append)
    passed = itertools.count()
    cluster.time.run_until(lambda: next(passed) == steps, max_ms=0, must_hold=False)
    cluster.tool.submit([shrinks], lambda _: None)
    cluster.settle()
    (result,) = answers[0]
    state, replicas = cluster.data(PATH), cluster.data(znodes.topic_path("a"))["partitions"]["0"]
    assert state["leader"] in state["isr"] and set(state["isr"]) <= set(replicas)
    if state["isr"] == [3]:
        assert isinstance(result.error, InvalidReplicaAssignmentError)
        assert cluster.brokers.epochs[3][tp("a-0")] == state["leader_epoch"], "the leader received its leader epoch"
        assert len(moves(cluster)) == 1
    else:
        assert result.error is None and tp("a-0") not in cluster.brokers.epochs[3]


@pytest.mark.parametrize("steps", range(50))
def test_a_reassignment_is_not_completed_when_its_target_leaves_the_isr_at_any_step(steps: int) -> None:
    """The old leader removes the whole target from the ISR after the controller has read it there."""
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create_topic_node("a", [[2, 1]])
    cluster.settle()
    assert kinds(move(cluster, ("a-0", (3,)))) == [None]
    state, node = cluster.data(PATH), cluster.server.tree.get(PATH)
    assert node is not None
    grows = SetData(PATH, json.dumps({**state, "isr": [2, 1, 3]}).encode(), node.version)
    shrinks = SetData(PATH, json.dumps({**state, "isr": [2]}).encode(), node.version + 1)
    cluster.tool.submit([grows], lambda _: None)
    passed = itertools.count()
    cluster.time.run_until(lambda: next(passed) == steps, max_ms=0, must_hold=False)
    cluster.tool.submit([shrinks], lambda _: None)
    cluster.settle()
    state, replicas = cluster.data(PATH), cluster.data(znodes.topic_path("a"))["partitions"]["0"]
    assert state["leader"] in state["isr"] and set(state["isr"]) <= set(replicas)
    assert all(cluster.brokers.epochs[b][tp("a-0")] == state["leader_epoch"] for b in state["isr"])
    if 2 in state["isr"]:
        assert len(moves(cluster)) == 1
        cluster.change_isr("a-0", [2, 3])
        cluster.settle()
    assert moves(cluster) == [] and cluster.data(PATH)["isr"] == [3]


@pytest.mark.parametrize("grown", [False, True])
@pytest.mark.parametrize("steps", range(28, 48))
def test_a_request_in_the_admin_node_for_a_partition_created_a_moment_before_is_executed(
    steps: int, grown: bool
) -> None:
    """After a completed reassignment the admin node is read before the event of a topic created meanwhile."""
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create_topic_node("b", [[1]])
    if grown:
        cluster.create_topic_node("a", [[1]])
    cluster.settle()
    cluster.zk(by_node("b-0", (2,)))
    cluster.settle()
    path = znodes.partition_state_path(tp("b-0"))
    joins = SetData(path, json.dumps({**cluster.data(path), "isr": [1, 2]}).encode())
    cluster.tool.submit([joins], lambda _: None)
    passed = itertools.count()
    cluster.time.run_until(lambda: next(passed) == steps, max_ms=0, must_hold=False)
    rows = {partition: ReplicaAssignment((1,)) for partition in range(2)}
    data = znodes.encode_topic_assignment(znodes.TopicAssignment(rows, "a".ljust(22, "_")))
    made = SetData(znodes.topic_path("a"), data) if grown else Create(znodes.topic_path("a"), data)
    answers: list[list[Response]] = []
    cluster.tool.submit([made, by_node("a-1", (3,))], answers.append)
    cluster.settle()
    asked = answers[0][1].ok  # Otherwise the earlier reassignment was not complete yet.
    assert asked or steps < 32
    assert [short(one.topic_partition) for one in moves(cluster)] == (["a-1"] if asked else [])


def by_node(partition: str, target: tuple[int, ...]) -> Create:
    return Create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({tp(partition): target}))


def test_a_failed_directory_of_an_added_replica_that_leads_is_noticed() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3, 4)
    cluster.start_controller()
    cluster.create_topic_node("a", [[1, 2]])
    cluster.settle()
    assert kinds(move(cluster, ("a-0", (3, 4)))) == [None]
    cluster.change_isr("a-0", [1, 2, 3])
    cluster.settle()
    cluster.kill_broker(1)
    cluster.settle()
    assert (cluster.data(PATH)["leader"], cluster.data(PATH)["isr"]) == (3, [2, 3])
    cluster.brokers.failed_dirs[3].add(tp("a-0"))
    cluster.zk(Create(znodes.LOG_DIR_EVENT_PREFIX, znodes.encode_log_dir_event(3), sequential=True))
    cluster.settle()
    assert (cluster.data(PATH)["leader"], cluster.data(PATH)["isr"]) == (2, [2])


def test_reassignments_in_the_admin_node_are_executed_after_the_node_was_deleted() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2), (1, 2))))
    for partition in ("a-0", "a-1"):
        cluster.zk(by_node(partition, (3, 2)))
        cluster.settle()
        cluster.zk(Delete(znodes.REASSIGN_PARTITIONS))
        cluster.settle()
    assert [short(one.topic_partition) for one in moves(cluster)] == ["a-0", "a-1"]


def test_brokers_receive_the_raised_epoch_when_a_cancellation_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    assert kinds(move(cluster, ("a-0", (1, 3)))) == [None]
    before = cluster.data(PATH)["leader_epoch"]

    def write_topic(self: ZkStore, *args: Any) -> Flow[None]:
        yield from ()
        raise UnexpectedResponseError(ZkCode.OTHER, "set the topic's node")

    monkeypatch.setattr(ZkStore, "write_topic", write_topic)
    assert kinds(move(cluster, ("a-0", None))) != [None]
    cluster.settle()
    assert len(moves(cluster)) == 1
    assert cluster.data(PATH)["leader_epoch"] > before
    for broker_id in (1, 2, 3):
        assert cluster.brokers.epochs[broker_id][tp("a-0")] == cluster.data(PATH)["leader_epoch"]


def add_partition(cluster: Cluster) -> None:
    """Add partition 1 to the node of ``a``, conditional on its version; repeated after a conflict."""
    path = znodes.topic_path("a")
    node = cluster.server.tree.get(path)
    assert node is not None and node.data is not None
    value = json.loads(node.data)
    value["partitions"]["1"] = [2, 3]

    def answered(responses: list[Response]) -> None:
        if not responses[0].ok:
            add_partition(cluster)

    cluster.tool.submit([SetData(path, json.dumps(value).encode(), node.version)], answered)


@pytest.mark.parametrize("steps", range(30))
def test_a_reassignment_keeps_a_partition_that_another_tool_adds(steps: int) -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    start_reassignments(cluster.controller, {tp("a-0"): (2, 1)}, lambda _: None)
    passed = itertools.count()
    cluster.time.run_until(lambda: next(passed) == steps, max_ms=0, must_hold=False)
    add_partition(cluster)
    cluster.settle()
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [2, 1], "1": [2, 3]}
    assert cluster.state("a-1").startswith("2/0")


@pytest.mark.parametrize("steps", range(30))
def test_a_re_created_topic_is_not_overwritten_by_the_reassignment_of_the_deleted_one(steps: int) -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    start_reassignments(cluster.controller, {tp("a-0"): (3, 1)}, lambda _: None)
    passed = itertools.count()
    cluster.time.run_until(lambda: next(passed) == steps, max_ms=0, must_hold=False)
    path, new = znodes.topic_path("a"), znodes.TopicAssignment({0: ReplicaAssignment((2,))}, "n" * 22)
    tree = [PATH, znodes.partition_path(tp("a-0")), znodes.topic_partitions_path("a"), path]
    cluster.tool.submit([*map(Delete, tree), Create(path, znodes.encode_topic_assignment(new))], lambda _: None)
    cluster.time.run_for(2 * RETRY_MS)
    assert cluster.data(path)["topic_id"] == "n" * 22
    assert cluster.data(path)["partitions"] == {"0": [2]}
    assert cluster.state("a-0").startswith("2/0")
