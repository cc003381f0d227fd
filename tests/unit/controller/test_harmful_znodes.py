"""Znodes that parse, yet would stop the whole cluster if the controller believed them.

A control request is about many partitions, and a broker that refuses one of them refuses the request: the controller
would retry it for ever, and all later requests to the broker would wait.
"""

import itertools
import json

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Create, Delete, GetData, SetData
from paceline.model.admin import NewTopic
from paceline.model.assignment import ReplicaAssignment
from paceline.model.control import LeaderAndIsrRequest, StopReplicaRequest
from paceline.rpc.convert import control
from tests.unit.controller.admin_calls import kinds, move
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp
from tests.unit.controller.test_malformed_znodes import assert_well, fail_over, started

TOPICS = {
    "a name that cannot be": ("we ird !", {"version": 1, "partitions": {"0": [1, 2]}}),
    "a name in another script": ("ümläut", {"version": 1, "partitions": {"0": [1, 2]}}),
    "a name too long": ("l" * 300, {"version": 1, "partitions": {"0": [1, 2]}}),
    "a topic id too short": ("odd", {"version": 3, "partitions": {"0": [1, 2]}, "topic_id": "zzz"}),
    "a topic id that is none": ("odd", {"version": 3, "partitions": {"0": [1, 2]}, "topic_id": "!" * 22}),
    "thousands of replicas": ("odd", {"version": 1, "partitions": {"0": list(range(1, 2_000))}}),
}
REGISTRATIONS = {
    "no host": {"version": 4, "endpoints": ["CONTROL://:9094"]},
    "port 0": {"version": 4, "endpoints": ["CONTROL://b9:0"]},
    "an old one without a host": {"version": 1, "host": "", "port": 9094},
    "dozens of listeners": {"version": 4, "endpoints": [f"L{n}://b9:{n + 1}" for n in range(17)]},
}
DAMAGED = b'{"version":1,"leader":1,"leader_epoch":'


def assert_brokers_accept(cluster: Cluster) -> None:
    """Check that every request sent passes the checks that brokers apply to a whole request."""
    assert cluster.brokers.received
    for _, request in cluster.brokers.received:
        if isinstance(request, LeaderAndIsrRequest):
            control.leader_and_isr_from_proto(control.leader_and_isr_to_proto(request))
        elif isinstance(request, StopReplicaRequest):
            control.stop_replica_from_proto(control.stop_replica_to_proto(request))
        else:
            control.update_metadata_from_proto(control.update_metadata_to_proto(request))


@pytest.mark.parametrize(("name", "node"), list(TOPICS.values()), ids=list(TOPICS))
def test_a_topic_that_brokers_would_refuse_is_ignored_and_can_be_deleted(
    name: str, node: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = started()
    cluster.zk(Create(znodes.topic_path(name), json.dumps(node).encode()))
    cluster.settle()
    assert cluster.brokers.received == [], "brokers receive nothing about it"
    fail_over(cluster)
    assert_brokers_accept(cluster)
    assert_well(cluster, caplog, znodes.topic_path(name))
    cluster.zk(Create(znodes.delete_topic_path(name)))
    cluster.settle()
    assert not cluster.exists(znodes.topic_path(name)) and not cluster.exists(znodes.delete_topic_path(name))


@pytest.mark.parametrize("when", ["while active", "before the election"])
def test_a_topic_with_too_many_partitions_for_a_topic_id_is_ignored(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = started()
    if when == "before the election":
        cluster.controllers.pop(CONTROLLER_ID).stop()
    rows = {str(partition): [1, 2] for partition in range(75_390)}
    data = json.dumps({"version": 1, "partitions": rows}, separators=(",", ":")).encode()
    cluster.zk(Create(znodes.topic_path("huge"), data))
    if when == "before the election":
        cluster.start_controller(CONTROLLER_ID + 1)
    cluster.settle()
    assert_well(cluster, caplog, znodes.topic_path("huge"))


def test_a_state_whose_epoch_cannot_be_raised_is_not_changed(caplog: pytest.LogCaptureFixture) -> None:
    cluster = started()
    path = znodes.partition_state_path(tp("sick-0"))
    data = DAMAGED + b'2147483647,"controller_epoch":1,"isr":[1,2]}'
    cluster.zk(SetData(path, data))
    cluster.brokers.received.clear()
    cluster.kill_broker(1)
    cluster.settle()
    assert_brokers_accept(cluster)
    assert_well(cluster, caplog, path)
    assert cluster.zk(GetData(path)).data == data


@pytest.mark.parametrize("node", list(REGISTRATIONS.values()), ids=list(REGISTRATIONS))
def test_a_broker_with_an_address_that_brokers_would_refuse_is_ignored(
    node: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = started()
    cluster.zk(Create(znodes.broker_path(9), json.dumps({**node, "timestamp": "0"}).encode()))
    cluster.start_broker(4)
    cluster.settle()
    assert_brokers_accept(cluster)
    assert_well(cluster, caplog, znodes.broker_path(9))


@pytest.mark.parametrize(
    "path",
    [
        f"{znodes.DELETE_TOPICS}/ghost",
        f"{znodes.ISR_CHANGE_NOTIFICATION}/isr_change_0000000000",
        f"{znodes.LOG_DIR_EVENT_NOTIFICATION}/log_dir_event_0000000000",
        znodes.PREFERRED_REPLICA_ELECTION,
        znodes.REASSIGN_PARTITIONS,
    ],
)
@pytest.mark.parametrize("when", ["while active", "before the election"])
def test_admin_nodes_are_removed_with_foreign_children(path: str, when: str, caplog: pytest.LogCaptureFixture) -> None:
    cluster = started()
    if when == "before the election":
        cluster.controllers.pop(CONTROLLER_ID).stop()
    for node in (path, f"{path}/foreign", f"{path}/foreign/deeper"):
        cluster.zk(Create(node, b"{}"))
    if when == "before the election":
        cluster.start_controller(CONTROLLER_ID + 1)
    cluster.settle()
    assert not cluster.exists(path)
    (result,) = cluster.delete("sick")
    assert result.error is None
    assert cluster.controller.controller_epoch == (2 if when == "before the election" else 1)
    assert not [r for r in caplog.records if "handling" in r.getMessage() or "failover" in r.getMessage()]


def test_a_reassignment_with_a_damaged_state_does_not_fail_a_failover(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = started()
    assert kinds(move(cluster, ("sick-0", (3, 2)))) == [None]
    path = znodes.partition_state_path(tp("sick-0"))
    cluster.zk(SetData(path, DAMAGED))
    fail_over(cluster)
    assert_well(cluster, caplog, path)


def test_a_reassignment_with_a_damaged_state_does_not_delay_a_starting_broker(caplog: pytest.LogCaptureFixture) -> None:
    cluster = started()
    assert kinds(move(cluster, ("sick-0", (3, 2)), ("well-0", (2, 3)))) == [None, None]
    cluster.kill_broker(3)
    cluster.settle()
    path = znodes.partition_state_path(tp("sick-0"))
    cluster.zk(SetData(path, DAMAGED))
    fail_over(cluster)
    cluster.told()
    cluster.start_broker(3)
    cluster.settle()
    assert any("LAI" in text and "well-0" in text and "new" in text for text in cluster.told()[3]), (
        "its reassignment runs"
    )
    assert not [r for r in caplog.records if "handling" in r.getMessage()]


def test_brokers_remove_a_deleted_topic_whose_state_was_unreadable() -> None:
    cluster = started()
    cluster.zk(SetData(znodes.partition_state_path(tp("sick-0")), DAMAGED))
    fail_over(cluster)
    cluster.told()
    (result,) = cluster.delete("sick")
    assert result.error is None
    told = cluster.told()
    assert all(any("UM {sick-0 -2/0 []" in text for text in told[broker_id]) for broker_id in (1, 2, 3)), told


def asked_by_node(cluster: Cluster, targets: dict[str, list[int]]) -> None:
    rows = [{"topic": tp(p).topic, "partition": tp(p).partition, "replicas": ids} for p, ids in targets.items()]
    cluster.zk(Create(znodes.REASSIGN_PARTITIONS, json.dumps({"version": 1, "partitions": rows}).encode()))
    cluster.settle()


def test_a_reassignment_to_no_replicas_deletes_nothing() -> None:
    cluster = started()
    cluster.told()
    asked_by_node(cluster, {"sick-0": [], "well-0": [3, 2]})
    assert cluster.data(znodes.topic_path("sick"))["partitions"] == {"0": [1, 2]}
    assert not any("SR sick" in text for texts in cluster.told().values() for text in texts)
    assert cluster.data(znodes.topic_path("well"))["partitions"] == {"0": [3, 2, 1]}, "the other topic is served"
    asked = cluster.data(znodes.REASSIGN_PARTITIONS)["partitions"]
    assert [row["topic"] for row in asked] == ["well"], "unserved partitions are removed from the node"


def test_a_request_in_the_admin_node_does_not_replace_a_reassignment_whose_new_replicas_alone_are_in_sync() -> None:
    cluster = started()
    assert kinds(move(cluster, ("sick-0", (3, 2)))) == [None]
    cluster.change_isr("sick-0", [3])
    cluster.settle()
    cluster.told()
    asked_by_node(cluster, {"sick-0": [2, 1]})
    assert cluster.data(znodes.topic_path("sick"))["partitions"] == {"0": [3, 2, 1]}
    assert not any("delete" in text for text in cluster.told().get(3, []))
    assert not cluster.exists(znodes.REASSIGN_PARTITIONS), "unserved partitions are removed from the node"


@pytest.mark.parametrize("steps", range(30))
def test_a_topic_deleted_and_re_created_in_zookeeper_gets_a_leader_at_any_step(steps: int) -> None:
    cluster = started()
    topic = znodes.topic_path("sick")
    data = znodes.encode_topic_assignment(znodes.TopicAssignment({0: ReplicaAssignment((3, 2))}, "s" * 22))
    gone = [f"{topic}/partitions/0/state", f"{topic}/partitions/0", f"{topic}/partitions", topic]
    cluster.tool.submit([Delete(path) for path in gone], lambda _: None)
    passed = itertools.count()
    cluster.time.run_until(lambda: next(passed) == steps, max_ms=0, must_hold=False)
    cluster.tool.submit([Create(topic, data)], lambda _: None)
    cluster.settle()
    assert cluster.controller.describe_topics(["sick"])[0].topic_id == "s" * 22
    assert cluster.state("sick-0").startswith("3/0 isr [3, 2]")


def test_deletion_markers_are_noticed_after_their_parent_node_was_deleted() -> None:
    """Operators remove deletions that hang with ``deleteall /admin/delete_topics``."""
    cluster = Cluster()
    cluster.start_broker(1)
    cluster.start_controller()
    assert cluster.create(NewTopic("a", assignments=((1,),)))[0].error is None
    cluster.zk(Delete(znodes.DELETE_TOPICS))
    cluster.settle()
    (result,) = cluster.delete("a")
    assert result.error is None
    assert not cluster.exists(znodes.topic_path("a"))


def test_isr_notifications_are_noticed_after_their_parent_node_was_deleted() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    assert cluster.create(NewTopic("a", assignments=((1, 2),)))[0].error is None
    cluster.zk(Delete(znodes.ISR_CHANGE_NOTIFICATION))
    cluster.settle()
    cluster.change_isr("a-0", [1])
    cluster.settle()
    (described,) = cluster.controller.describe_topics(["a"])[0].partitions
    assert described.isr == (1,)
