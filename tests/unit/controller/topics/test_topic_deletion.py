"""Deletion of topics: the conditions that halt and resume it, and its complete result."""

from dataclasses import replace

import pytest

from paceline.controller.context import ReplicaState
from paceline.controller.zk_store import ZkStore
from paceline.coordination import znodes
from paceline.coordination.flow import Flow
from paceline.coordination.interface import Create, Delete, Multi, Response, SetData, WatchType, ZkCode
from paceline.coordination.znodes.json_codec import encode_json
from paceline.model.admin import NewTopic
from paceline.model.assignment import ReplicaAssignment
from paceline.model.control import ControllerStamp, ControlResponse, StopReplicaRequest
from paceline.model.errors import ErrorCode
from paceline.model.settings import ControllerConfig
from tests.support.reassignments import running_reassignments
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp


def started(*topics: NewTopic) -> Cluster:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(*(topics or (NewTopic("a", assignments=((1, 2), (2, 3))),)))
    cluster.told()
    return cluster


def mark(cluster: Cluster, topic: str) -> None:
    cluster.zk(Create(znodes.delete_topic_path(topic)))
    cluster.settle()


def is_gone(cluster: Cluster, topic: str) -> bool:
    paths = (znodes.topic_path(topic), znodes.topic_config_path(topic), znodes.delete_topic_path(topic))
    return not any(cluster.exists(path) for path in paths)


@pytest.mark.origin("S4-6")
def test_a_marker_deletes_the_topic_and_all_its_nodes() -> None:
    cluster = started()
    mark(cluster, "a")
    assert is_gone(cluster, "a")
    assert cluster.controller.describe_topics([]) == []


@pytest.mark.origin("S4-6")
def test_a_marker_of_an_unknown_topic_is_removed() -> None:
    cluster = started()
    mark(cluster, "nosuch")
    assert cluster.children(znodes.DELETE_TOPICS) == ()
    assert cluster.told() == {}


def test_a_marker_of_a_topic_that_the_controller_has_not_read_yet_deletes_it() -> None:
    """The event of the marker may come before that of the topic, because an earlier marker has queued it."""
    cluster = started()
    link = cluster.controller_clients[CONTROLLER_ID].link
    link.cut(requests=False, replies=True)
    cluster.zk(Create(znodes.delete_topic_path("nosuch")))
    cluster.create_topic_node("new", [[1, 2]], topic_id="n" * 22)
    cluster.zk(Create(znodes.delete_topic_path("new")))
    link.heal()
    cluster.settle()
    assert is_gone(cluster, "new")
    assert cluster.children(znodes.DELETE_TOPICS) == ()
    assert [topic.name for topic in cluster.controller.describe_topics([])] == ["a"]


@pytest.mark.origin("S4-6")
def test_with_deletion_disabled_markers_are_removed_and_the_topic_stays() -> None:
    cluster = Cluster(ControllerConfig(CONTROLLER_ID, delete_topic_enable=False))
    cluster.start_broker(1)
    cluster.start_controller()
    cluster.create(NewTopic("a"))
    mark(cluster, "a")
    assert cluster.children(znodes.DELETE_TOPICS) == ()
    assert cluster.exists(znodes.topic_path("a"))


@pytest.mark.origin("S4-7")
def test_deletion_waits_for_a_broker_that_is_down_and_completes_when_it_returns() -> None:
    cluster = started()
    cluster.kill_broker(3)
    cluster.settle()
    mark(cluster, "a")
    assert cluster.exists(znodes.topic_path("a"))
    assert cluster.children(znodes.DELETE_TOPICS) == ("a",)
    assert cluster.controller.gauges()["topics_ineligible_to_delete"] == 1
    # Other deletions, which resume all that can continue, ask no replica of the halted topic.
    cluster.create(NewTopic("b", assignments=((1, 2),)))
    cluster.told()
    mark(cluster, "b")
    assert is_gone(cluster, "b") and cluster.exists(znodes.topic_path("a"))
    assert not any("a-0" in line for lines in cluster.told().values() for line in lines)
    cluster.start_broker(3)
    cluster.settle()
    assert is_gone(cluster, "a")


@pytest.mark.origin("S3-2")
def test_a_broker_that_dies_halts_the_deletion_and_its_other_partitions_are_elected() -> None:
    cluster = started(NewTopic("a", assignments=((1, 2),)), NewTopic("b", assignments=((1, 2),)))
    cluster.brokers.silent.add(1)
    mark(cluster, "a")
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.state("b-0") == "2/1 isr [2] ce 1 v1"
    assert cluster.exists(znodes.topic_path("a"))
    cluster.brokers.silent.clear()
    cluster.start_broker(1)
    cluster.settle()
    assert is_gone(cluster, "a")


@pytest.mark.origin("S4-7")
def test_a_late_answer_of_an_earlier_registration_does_not_halt_a_resumed_deletion() -> None:
    cluster = started(NewTopic("a", assignments=((2, 3),)))
    cluster.brokers.silent.add(3)
    stamp = stamp_of(cluster, 3)
    mark(cluster, "a")
    (asked,) = (r for to, r in cluster.brokers.received if to == 2 and isinstance(r, StopReplicaRequest) and deletes(r))
    cluster.kill_broker(3)
    cluster.settle()
    cluster.start_broker(3)
    cluster.settle()
    assert stamp_of(cluster, 3) != stamp
    # The answer was in time, but waited in the event queue while the broker registered again.
    cluster.controller._on_response(3, replace(asked, stamp=stamp), ControlResponse(ErrorCode.STALE_BROKER_EPOCH))
    cluster.settle()
    cluster.brokers.release(3)
    cluster.settle()
    assert is_gone(cluster, "a")


@pytest.mark.origin("S4-7")
def test_a_late_answer_to_an_earlier_controller_epoch_does_not_complete_a_deletion() -> None:
    cluster = started(NewTopic("a", assignments=((2, 3),)))
    cluster.brokers.silent.add(3)
    stamp = stamp_of(cluster, 3)
    mark(cluster, "a")
    (asked,) = (r for to, r in cluster.brokers.received if to == 2 and isinstance(r, StopReplicaRequest) and deletes(r))
    cluster.zk(Delete(znodes.CONTROLLER))
    cluster.settle()
    assert stamp_of(cluster, 3).controller_epoch == stamp.controller_epoch + 1, "elected again"
    # The answer waited in the event queue behind the event that resigned and elected this controller again.
    answer = ControlResponse(ErrorCode.NONE, {tp("a-0"): ErrorCode.NONE})
    cluster.controller._on_response(3, replace(asked, stamp=stamp), answer)
    cluster.settle()
    assert cluster.exists(znodes.topic_path("a")), "broker 3 still has to create the log again and then to delete it"
    cluster.brokers.release(3)
    cluster.settle()
    assert is_gone(cluster, "a")


@pytest.mark.origin("S4-7")
def test_a_deletion_halted_for_a_failed_replica_completes_when_the_broker_reports_it_deleted() -> None:
    cluster = started(NewTopic("a", assignments=((2, 3),)))
    cluster.brokers.failed_dirs[3].add(tp("a-0"))
    cluster.brokers.silent.add(3)
    cluster.zk(Create(znodes.LOG_DIR_EVENT_PREFIX, znodes.encode_log_dir_event(3), sequential=True))
    mark(cluster, "a")
    # One answer at a time: first the answer to LeaderAndIsr, when the deletion on broker 3 has already started.
    while not cluster.controller._components.context.deletion_ineligible:
        assert cluster.brokers.held
        cluster.brokers.release(3)
        cluster.brokers.silent.add(3)
        cluster.settle()
    assert cluster.exists(znodes.topic_path("a"))
    cluster.brokers.release(3)
    cluster.settle()
    assert is_gone(cluster, "a")
    assert cluster.controller._components.context.on_offline_dirs == {}


def stamp_of(cluster: Cluster, broker_id: int) -> ControllerStamp:
    """Return the stamp of the controller's requests to this registration."""
    context = cluster.controller._components.context
    return ControllerStamp(CONTROLLER_ID, context.epoch, context.brokers[broker_id].broker_epoch)


def deletes(request: StopReplicaRequest) -> bool:
    return all(partition.delete_partition for partition in request.partitions)


@pytest.mark.origin("S4-8")
def test_only_failed_deletions_of_replicas_are_retried() -> None:
    cluster = started(NewTopic("a", assignments=((1, 2), (2, 1))))
    cluster.brokers.undeletable[2].add(tp("a-1"))
    mark(cluster, "a")
    assert cluster.exists(znodes.topic_path("a"))
    assert "SR a-0 -2 delete, a-1 -2 delete" in cluster.told()[2]
    moved = {
        state: [(c.topic_partition, c.replica) for c in cluster.state_changes if c.to_state == state.value]
        for state in (ReplicaState.DELETION_SUCCESSFUL, ReplicaState.DELETION_INELIGIBLE)
    }
    assert sorted(moved[ReplicaState.DELETION_SUCCESSFUL]) == [(tp("a-0"), 1), (tp("a-0"), 2), (tp("a-1"), 1)]
    assert moved[ReplicaState.DELETION_INELIGIBLE] == [(tp("a-1"), 2)]
    assert cluster.controller.gauges()["topics_ineligible_to_delete"] == 1
    cluster.brokers.undeletable.clear()
    cluster.kill_broker(2)
    cluster.settle()
    cluster.start_broker(2)
    cluster.settle()
    assert is_gone(cluster, "a")
    told = cluster.told()
    assert [text for text in told.get(1, []) if text.startswith("SR")] == [], "broker 1 had deleted its replicas"
    assert [text for text in told[2] if text.endswith("delete")] == ["SR a-1 -2 delete"], (
        "broker 2 had deleted only one of its replicas"
    )


@pytest.mark.origin("S1-10")
def test_a_deletion_started_by_one_controller_is_completed_by_the_next() -> None:
    cluster = started()
    cluster.start_controller(CONTROLLER_ID + 1)
    cluster.brokers.silent.add(3)
    mark(cluster, "a")
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.settle()
    assert cluster.exists(znodes.topic_path("a"))
    cluster.brokers.release(3)
    cluster.settle()
    assert is_gone(cluster, "a")


@pytest.mark.origin("S4-5")
def test_partitions_added_to_a_topic_that_is_being_deleted_are_removed_again() -> None:
    cluster = started()
    cluster.kill_broker(3)
    cluster.settle()
    mark(cluster, "a")
    node = cluster.data(znodes.topic_path("a"))
    node["partitions"]["2"] = [1, 2]
    data = encode_json(node)
    cluster.zk(SetData(znodes.topic_path("a"), data))
    cluster.settle()
    assert set(cluster.data(znodes.topic_path("a"))["partitions"]) == {"0", "1"}
    cluster.start_broker(3)
    cluster.settle()
    assert is_gone(cluster, "a")


@pytest.mark.origin("S4-9")
def test_a_re_created_topic_is_a_new_topic() -> None:
    cluster = started()
    mark(cluster, "a")
    cluster.told()
    cluster.create_topic_node("a", [[2, 1]], topic_id="n" * 22)
    cluster.settle()
    assert cluster.state("a-0") == "2/0 isr [2, 1] ce 1 v0"
    assert cluster.told()[1][0] == "LAI a-0 2/0 [2, 1] new"


@pytest.mark.origin("S4-9")
def test_a_deletion_removes_the_settings_and_last_the_marker() -> None:
    cluster = started()
    settings = znodes.topic_config_path("a")
    cluster.zk(SetData(settings, znodes.encode_config({"retention.ms": "1"})))
    cluster.writes.clear()
    mark(cluster, "a")
    deleted = [write.change.path for write in cluster.writes if write.change.type is WatchType.DELETED]
    assert deleted[-3:] == [znodes.topic_path("a"), settings, znodes.delete_topic_path("a")]
    cluster.create_topic_node("a", [[2, 1]], topic_id="n" * 22)
    cluster.settle()
    assert not cluster.exists(settings), "the new topic has no settings of the old one"


def test_a_topic_deleted_and_re_created_between_two_reads_is_a_new_topic() -> None:
    cluster = started()
    cluster.controller_clients[CONTROLLER_ID].link.cut(requests=False, replies=True)
    paths = [path for path in cluster.server.tree.paths() if path.startswith("/brokers/topics/a")]
    for path in sorted(paths, reverse=True):
        cluster.zk(Delete(path))
    cluster.create_topic_node("a", [[3, 1]], topic_id="n" * 22)
    cluster.controller_clients[CONTROLLER_ID].link.heal()
    cluster.settle()
    (topic,) = cluster.controller.describe_topics(["a"])
    assert topic.topic_id == "n" * 22
    assert [partition.replicas for partition in topic.partitions] == [(3, 1)]
    assert cluster.state("a-0") == "3/0 isr [3, 1] ce 1 v0"


@pytest.mark.origin("S4-4")
def test_a_topic_whose_node_was_deleted_is_removed_from_memory() -> None:
    cluster = started()
    paths = [path for path in cluster.server.tree.paths() if path.startswith("/brokers/topics/a")]
    for path in sorted(paths, reverse=True):
        cluster.zk(Delete(path))
    cluster.settle()
    assert cluster.controller.describe_topics([]) == []
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.controller.is_active


def test_foreign_nodes_below_a_topic_are_deleted_with_it() -> None:
    cluster = started()
    cluster.zk(Create(f"{znodes.topic_path('a')}/partitions/0/foreign"))
    cluster.zk(Create(f"{znodes.topic_path('a')}/other"))
    mark(cluster, "a")
    assert is_gone(cluster, "a")


def test_many_partitions_are_deleted_in_several_multis() -> None:
    config = ControllerConfig(CONTROLLER_ID, zookeeper_multi_max_operations=10, auto_leader_rebalance_enable=False)
    cluster = Cluster(config)
    cluster.start_broker(1)
    cluster.start_controller()
    cluster.create(NewTopic("a", partitions=50))
    mark(cluster, "a")
    assert is_gone(cluster, "a")


@pytest.mark.origin("S4-7")
def test_a_topic_in_mid_reassignment_is_deleted_on_all_its_brokers() -> None:
    cluster = started(NewTopic("a", assignments=((1, 2),)))
    cluster.reassign({tp("a-0"): (3, 2)})
    cluster.settle()
    cluster.told()
    mark(cluster, "a")
    assert is_gone(cluster, "a")
    assert all("SR a-0 -2 delete" in texts for texts in cluster.told().values())
    assert running_reassignments(cluster.controller) == {}


def test_a_reassignment_in_the_admin_node_is_removed_with_its_topic() -> None:
    cluster = started(NewTopic("a", assignments=((1, 2),)))
    cluster.zk(Create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({tp("a-0"): (3, 2)})))
    cluster.settle()
    assert cluster.exists(znodes.REASSIGN_PARTITIONS)
    mark(cluster, "a")
    assert is_gone(cluster, "a")
    assert not cluster.exists(znodes.REASSIGN_PARTITIONS), "or later requests could never start"


def test_the_answer_to_a_cancelled_reassignment_completes_no_deletion() -> None:
    """The replica was added again by another reassignment, so it is created again and then deleted with its topic."""
    cluster = started(NewTopic("a", assignments=((1, 3),)))
    assert cluster.reassign({tp("a-0"): (1, 3, 2)})[0].error is None
    cluster.settle()
    cluster.brokers.silent.add(2)
    for target in (None, (1, 3, 2)):
        assert cluster.reassign({tp("a-0"): target})[0].error is None
    mark(cluster, "a")
    cluster.told()
    while cluster.exists(znodes.topic_path("a")):
        assert cluster.brokers.held
        cluster.brokers.release(2)
        cluster.brokers.silent.add(2)
        cluster.settle()
    answered = cluster.told()[2][: -len(cluster.brokers.held) or None]
    assert "SR a-0 -2 delete" in answered, "the request to broker 2 for the deletion"


@pytest.mark.parametrize("at_once", [True, False])
def test_the_marker_of_a_topic_whose_node_was_deleted_does_not_delete_a_re_created_topic(at_once: bool) -> None:
    """Operators do this when a deletion waits for a broker that never returns."""
    cluster = started(NewTopic("a", assignments=((1, 2),)))
    cluster.kill_broker(2)
    cluster.settle()
    mark(cluster, "a")
    paths = [path for path in cluster.server.tree.paths() if path.startswith("/brokers/topics/a")]
    assert paths, "it waits for broker 2"
    node = znodes.TopicAssignment({0: ReplicaAssignment((1, 3))}, "b" * 22)
    anew = Create(znodes.topic_path("a"), znodes.encode_topic_assignment(node))
    deletions = [Delete(path) for path in sorted(paths, reverse=True)]
    for requests in [[*deletions, anew]] if at_once else [deletions, [anew]]:
        cluster.tool.submit(requests, lambda _: None)
        cluster.settle()
    assert cluster.state("a-0").startswith("1/0 isr [1, 3]")
    assert not cluster.exists(znodes.delete_topic_path("a"))
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.start_controller(CONTROLLER_ID + 1)
    assert cluster.exists(znodes.topic_path("a"))


def test_a_topic_whose_nodes_cannot_be_deleted_delays_no_other_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client creates nodes below the topic faster than they are deleted."""
    cluster = started(*(NewTopic(name, assignments=((1, 2),)) for name in "abc"))
    send, refused = ZkStore.send_fenced, [True]

    def answer(store: ZkStore, multis: list[Multi]) -> Flow[list[Response]]:
        responses = yield from send(store, [multi for multi in multis if not protected(multi)])
        found = iter(responses)
        results = (Response(ZkCode.OK), Response(ZkCode.NOT_EMPTY))
        return [Response(ZkCode.NOT_EMPTY, results=results) if protected(multi) else next(found) for multi in multis]

    def protected(multi: Multi) -> bool:
        path = znodes.topic_path("a")
        return refused[0] and any(isinstance(one, Delete) and one.path.startswith(path) for one in multi.operations)

    monkeypatch.setattr(ZkStore, "send_fenced", answer)
    mark(cluster, "a")
    mark(cluster, "b")
    assert not is_gone(cluster, "a") and is_gone(cluster, "b")
    cluster.start_broker(4)
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.data(znodes.partition_state_path(tp("c-0")))["leader"] == 2
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.start_controller(CONTROLLER_ID + 1)
    assert cluster.controller.is_active, "the failover succeeds nevertheless"
    refused[0] = False
    cluster.start_broker(1)
    cluster.settle()
    assert is_gone(cluster, "a")
