"""Topics that are deleted and re-created while the controller reads them, and topic ids that tools drop."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from paceline.controller.node import ControllerNode
from paceline.controller.zk_store import ZkStore
from paceline.coordination import znodes
from paceline.coordination.flow import Flow
from paceline.coordination.interface import Create, Delete, Request, SetData
from paceline.model.admin import NewTopic
from paceline.model.assignment import ReplicaAssignment
from paceline.model.control import UpdateMetadataRequest
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp

NODE = znodes.encode_topic_assignment(znodes.TopicAssignment({0: ReplicaAssignment((1, 2))}, "t" * 22))


def made_again_when_read(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete topic ``t`` after it was listed and before its node is read, and re-create it after that read."""
    real, path = ZkStore.topic_nodes, znodes.topic_path("t")
    times: list[int] = []

    def topic_nodes(self: ZkStore, topics: Sequence[str], gone: set[str] | None = None) -> Flow[Any]:
        racing = "t" in topics and not times
        if racing:
            times.append(1)
            cluster.tool.submit([Delete(path)], lambda _: None)
        found = yield from real(self, topics, gone)
        if racing:
            assert "t" not in found
            cluster.tool.submit([Create(path, NODE)], lambda _: None)
        return found

    monkeypatch.setattr(ZkStore, "topic_nodes", topic_nodes)


def test_a_topic_re_created_between_two_reads_gets_its_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    made_again_when_read(cluster, monkeypatch)
    cluster.zk(Create(znodes.topic_path("t"), NODE))
    cluster.settle()
    assert cluster.state("t-0") == "1/0 isr [1, 2] ce 1 v0"


def test_a_topic_re_created_during_a_failover_gets_its_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.zk(Create(znodes.topic_path("t"), NODE))
    made_again_when_read(cluster, monkeypatch)
    cluster.start_controller(CONTROLLER_ID)
    assert cluster.state("t-0") == "1/0 isr [1, 2] ce 1 v0"


@pytest.mark.parametrize("steps", range(20))
def test_a_re_created_topic_is_not_deleted_by_the_deletion_of_the_earlier_one(steps: int) -> None:
    """An operator may remove the nodes of a deletion that waits, and re-create the topic."""
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("t", assignments=((1, 2),)))
    cluster.brokers.silent.add(1)
    cluster.delete("t", timeout_ms=100)
    cluster.brokers.release(1)
    passed = itertools.count()
    cluster.time.run_until(lambda: next(passed) == steps, max_ms=0, must_hold=False)
    path, state = znodes.topic_path("t"), znodes.partition_state_path(tp("t-0"))
    tree = [state, znodes.partition_path(tp("t-0")), znodes.topic_partitions_path("t"), path]
    by_hand: list[Request] = [*map(Delete, tree), Delete(znodes.delete_topic_path("t")), Create(path, NODE)]
    cluster.tool.submit(by_hand, lambda _: None)
    cluster.settle()
    assert cluster.data(path)["topic_id"] == "t" * 22
    assert cluster.state("t-0").startswith("1/0")


def without_id(cluster: Cluster) -> None:
    """Rewrite the topic's node as Kafka's tools before 2.8 do."""
    cluster.zk(SetData(znodes.topic_path("t"), b'{"version":1,"partitions":{"0":[1,2]}}'))


def test_an_id_that_a_tool_drops_is_written_back_from_the_controllers_memory() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("t", assignments=((1, 2),)))
    cluster.settle()
    topic_id = cluster.data(znodes.topic_path("t"))["topic_id"]
    without_id(cluster)
    cluster.settle()
    assert cluster.data(znodes.topic_path("t"))["topic_id"] == topic_id
    assert cluster.controller.describe_topics(["t"])[0].topic_id == topic_id
    assert cluster.state("t-0") == "1/0 isr [1, 2] ce 1 v0", "nothing else has changed"


@pytest.mark.parametrize("stands_by", [True, False])
def test_an_id_that_was_dropped_before_a_failover_is_restored_and_not_replaced(stands_by: bool) -> None:
    """A new id would make brokers set all logs aside. A standby has the id; brokers return it to a cold controller."""
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("t", assignments=((1, 2),)))
    cluster.settle()
    topic_id = cluster.data(znodes.topic_path("t"))["topic_id"]
    if stands_by:
        assert cluster.start_controller(CONTROLLER_ID + 1).is_warm
    client, node = cluster.controller_clients[CONTROLLER_ID], cluster.controllers.pop(CONTROLLER_ID)
    session_id = client.session_id
    client.crash()
    node.stop()
    without_id(cluster)
    cluster.server.expire(session_id)
    cluster.settle()
    if not stands_by:
        cluster.start_controller(CONTROLLER_ID + 1)
        cluster.settle()
    assert cluster.data(znodes.topic_path("t")).get("topic_id") == topic_id
    assert cluster.controllers[CONTROLLER_ID + 1].describe_topics(["t"])[0].topic_id == topic_id
    assert cluster.state("t-0").startswith("1/0")
    shown = [request for _, request in cluster.brokers.received if isinstance(request, UpdateMetadataRequest)]
    assert shown[-1].partitions[0].topic_id == topic_id, "brokers receive the restored id"


def cold_controller(cluster: Cluster) -> ControllerNode:
    """Remove the id of ``t`` and start a controller that has never read it."""
    node = cluster.controllers.pop(CONTROLLER_ID)
    client = cluster.controller_clients[CONTROLLER_ID]
    session_id = client.session_id
    client.crash()
    node.stop()
    without_id(cluster)
    cluster.server.expire(session_id)
    return cluster.start_controller(CONTROLLER_ID + 1)


def test_an_id_is_restored_when_every_isr_member_has_answered() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("t", assignments=((1, 2, 3),)))
    cluster.change_isr("t-0", [1, 2])
    cluster.settle()
    topic_id = cluster.data(znodes.topic_path("t"))["topic_id"]
    cluster.brokers.silent.update({2, 3})
    standing = cold_controller(cluster)
    assert cluster.data(znodes.topic_path("t")).get("topic_id") is None, "the answer of the leader alone is not enough"
    cluster.brokers.release(2)
    cluster.settle()
    assert cluster.data(znodes.topic_path("t"))["topic_id"] == topic_id, "broker 3 is not in the ISR"
    assert standing.describe_topics(["t"])[0].topic_id == topic_id


def test_an_id_is_not_restored_when_isr_members_return_different_ids(caplog: pytest.LogCaptureFixture) -> None:
    """A broker with the other id would set its log aside, which may have records that the leader lacks."""
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("t", assignments=((1, 2),)))
    cluster.settle()
    cluster.brokers.topic_ids[2][tp("t-0")] = "x" * 22
    cold_controller(cluster)
    assert cluster.data(znodes.topic_path("t")).get("topic_id") is None
    assert "logs disagree" in caplog.text


def test_a_restored_id_reaches_the_standby() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("t", assignments=((1, 2),)))
    cluster.settle()
    topic_id = cluster.data(znodes.topic_path("t"))["topic_id"]
    cluster.brokers.silent.add(1)
    cold_controller(cluster)
    standby = cluster.start_controller(CONTROLLER_ID + 2)
    cluster.brokers.release(1)
    cluster.settle()
    assert cluster.data(znodes.topic_path("t"))["topic_id"] == topic_id
    assert standby.is_warm
    mirror = standby._event_handler._standby.mirror
    assert mirror is not None
    assert mirror.topics["t"].topic_id == topic_id
    assert mirror.topics["t"].states, "the standby has its states under the restored id"


def test_a_topic_without_states_gets_a_new_id() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.zk(Create(znodes.topic_path("t"), b'{"version":1,"partitions":{"0":[1,2]}}'))
    cluster.settle()
    assert len(cluster.data(znodes.topic_path("t"))["topic_id"]) == 22
