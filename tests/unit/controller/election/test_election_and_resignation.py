"""Election and resignation of controllers; sessions that end or are in doubt; lost replies."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.controller import event_handler as event_handler
from paceline.controller.admin.admin_requests import CreateTopics, DeleteTopics
from paceline.controller.election.controller_election import ControllerElection
from paceline.coordination import znodes
from paceline.coordination.interface import (
    Create,
    Delete,
    Exists,
    GetData,
    Multi,
    Response,
    SetData,
    Stat,
    ZkCode,
    ZooKeeper,
)
from paceline.model.admin import NewTopic
from paceline.model.errors import NotControllerError, RequestTimedOutError
from paceline.model.state_change import StateChangeKind
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import Link
from tests.unit.controller.cluster import CONTROLLER_ID, SESSION_TIMEOUT_MS, Cluster

A, B = CONTROLLER_ID, CONTROLLER_ID + 1


@pytest.fixture
def cluster() -> Cluster:
    """Two brokers, controller A active, B a standby, and a topic on both brokers."""
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller(A)
    cluster.start_controller(B)
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    return cluster


def is_election(request: object) -> bool:
    return isinstance(request, Multi) and any(
        isinstance(operation, Create) and operation.path == znodes.CONTROLLER for operation in request.operations
    )


def controller_id(cluster: Cluster) -> int:
    return int(cluster.data(znodes.CONTROLLER)["brokerid"])


def test_the_first_controller_has_epoch_1_and_publishes_its_address(cluster: Cluster) -> None:
    assert (cluster.data(znodes.CONTROLLER_EPOCH), controller_id(cluster)) == (1, A)
    assert cluster.children(znodes.CONTROLLER_IDS) == (str(A), str(B))
    known = cluster.controllers[B].active_controller
    assert known is not None
    assert (known.controller_id, [e.host for e in known.endpoints]) == (A, [f"c{A}", f"c{A}"])


def test_an_address_is_published_although_the_earlier_node_is_deleted_between_two_reads() -> None:
    """Without the address brokers could send no heartbeat; a watch on a deleted node does not fire."""
    zookeeper, path = SimpleNamespace(session_id=7), znodes.controller_path(A)
    election: Any = ControllerElection(A, (), cast(ZooKeeper, zookeeper), VirtualTime())
    flow = election.publish_address()
    asked = []
    answer: list[Response] | None = None
    for response in (
        Response(ZkCode.NODE_EXISTS),
        Response(ZkCode.NO_NODE),
        Response(ZkCode.OK, path=path),
        Response(ZkCode.OK, stat=Stat(9, 0, ephemeral_owner=7)),
    ):
        asked.append(type(flow.send(answer).requests[0]))
        answer = [response]
    with pytest.raises(StopIteration) as ended:
        flow.send(answer)
    assert ended.value.value is True
    assert asked == [Create, Exists, Create, Exists]


def test_an_election_whose_reply_was_lost_is_resolved_by_reading_both_nodes() -> None:
    cluster = Cluster()
    link = Link()
    link.lose_next_reply(is_election)
    node = cluster.start_controller(A, link=link)
    assert not node.is_active
    cluster.time.run_until(lambda: node.is_active, max_ms=2_000)
    assert node.controller_epoch == 1
    assert cluster.data(znodes.CONTROLLER_EPOCH) == 1
    cluster.start_broker(1)
    cluster.settle()
    assert cluster.create(NewTopic("t", assignments=((1,),)))[0].error is None, "its fence matches /controller_epoch"


def test_a_standby_is_elected_at_once_when_the_active_controller_stops(cluster: Cluster) -> None:
    cluster.controllers[A].stop()
    cluster.settle()
    assert cluster.controllers[B].is_active
    assert cluster.data(znodes.CONTROLLER_EPOCH) == 2


def test_a_controller_whose_epoch_fence_fails_resigns_and_is_a_candidate_again(cluster: Cluster) -> None:
    cluster.zk(SetData(znodes.CONTROLLER_EPOCH, b"1"))
    cluster.kill_broker(1)
    cluster.settle()
    # The failover after the next election completes the aborted event.
    assert cluster.state("a-0").startswith("2/")
    assert cluster.data(znodes.CONTROLLER_EPOCH) == 2
    active = cluster.controller
    assert active.controller_epoch == 2
    kinds = [change.kind for change in cluster.state_changes]
    assert kinds.count(StateChangeKind.CONTROLLER_RESIGNED) == 1
    assert cluster.create(NewTopic("b", assignments=((2,),)))[0].error is None


def test_a_fenced_controller_does_not_delete_its_successors_node(cluster: Cluster) -> None:
    a = cluster.controllers[A]
    # A receives no reply, but its requests arrive.
    cluster.controller_clients[A].link.cut(requests=False, replies=True)
    cluster.zk(Delete(znodes.CONTROLLER))
    cluster.settle()
    assert cluster.controllers[B].is_active
    assert a.is_active, "the controller cannot know yet"
    answers: list[Any] = []
    a.ask(CreateTopics((NewTopic("late", assignments=((1,),)),), 5_000, False, reply=answers.append))
    cluster.settle()
    cluster.controller_clients[A].link.heal()
    cluster.settle()
    assert not a.is_active
    assert isinstance(answers[0], NotControllerError)
    assert controller_id(cluster) == B
    assert not cluster.exists(znodes.topic_path("late"))
    assert cluster.data(znodes.CONTROLLER_EPOCH) == 2


def test_a_paused_controller_whose_session_expired_writes_nothing(cluster: Cluster) -> None:
    a_session = cluster.controller_clients[A].session_id
    cluster.controller_clients[A].link.cut()
    cluster.kill_broker(1)
    cluster.server.expire(a_session)
    cluster.settle()
    assert cluster.controllers[B].is_active
    state, first_write = cluster.state("a-0"), len(cluster.writes)
    cluster.brokers.received.clear()
    cluster.controller_clients[A].link.heal()
    cluster.settle()
    cluster.time.run_until(lambda: cluster.controller_clients[A].connected, max_ms=5_000)
    cluster.settle()
    assert not cluster.controllers[A].is_active
    assert cluster.state("a-0") == state
    changed = {write.change.path for write in cluster.writes[first_write:]}
    assert changed == {znodes.controller_path(A)}, "it only publishes its address again"
    assert cluster.brokers.received == []
    known = cluster.controllers[A].active_controller
    assert known is not None
    assert known.controller_id == B


def test_a_disconnected_controller_resigns_by_its_own_clock(cluster: Cluster) -> None:
    a = cluster.controllers[A]
    answers: list[Any] = []
    cluster.brokers.silent.update((1, 2))
    a.ask(CreateTopics((NewTopic("late", assignments=((1,),)),), 60_000, False, reply=answers.append))
    cluster.settle()
    cluster.controller_clients[A].link.cut()
    cluster.time.run_until(lambda: not a.is_active, max_ms=2 * SESSION_TIMEOUT_MS)
    assert answers, "no caller waits for a controller that has resigned"
    assert a.active_controller is None
    cluster.time.run_until(lambda: cluster.controllers[B].is_active, max_ms=2 * SESSION_TIMEOUT_MS)


def test_a_controller_that_resigned_in_a_surviving_session_is_elected_again() -> None:
    cluster = Cluster()
    cluster.start_broker(1)
    a = cluster.start_controller(A)
    cluster.server.stop()
    cluster.time.run_until(lambda: not a.is_active, max_ms=2 * SESSION_TIMEOUT_MS)
    session = cluster.controller_clients[A].session_id
    cluster.server.start()
    cluster.time.run_until(lambda: a.is_active, max_ms=5_000)
    assert cluster.controller_clients[A].session_id == session, "the session has survived"
    assert a.controller_epoch == 2
    assert cluster.data(znodes.CONTROLLER_EPOCH) == 2


def test_a_creation_interrupted_by_the_end_of_the_session_has_an_unknown_outcome(cluster: Cluster) -> None:
    a = cluster.controllers[A]
    answers: list[Any] = []
    # The requests arrive but no reply does, so the topic is created and the controller does not know it.
    cluster.controller_clients[A].link.cut(requests=False, replies=True)
    a.ask(CreateTopics((NewTopic("doubtful", assignments=((2,),)),), 60_000, False, reply=answers.append))
    cluster.time.run_until(lambda: not a.is_active, max_ms=2 * SESSION_TIMEOUT_MS)
    assert isinstance(answers[0], RequestTimedOutError)
    assert not answers[0].definite


def test_changes_during_a_short_disconnect_are_noticed_after_it(cluster: Cluster) -> None:
    a = cluster.controllers[A]
    cluster.controller_clients[A].disconnect()
    cluster.create_topic_node("b", [[2, 1]])
    cluster.zk(Create(znodes.delete_topic_path("a")))
    cluster.kill_broker(1)
    cluster.time.run_until(lambda: cluster.controller_clients[A].connected, max_ms=1_000)
    cluster.settle()
    assert a.is_active
    assert a.controller_epoch == 1
    assert cluster.state("b-0") == "2/0 isr [2] ce 1 v0"
    assert [broker.broker_id for broker in a.describe_cluster().brokers] == [2]
    assert a.describe_topics(["a"])[0].error is not None, "its deletion has begun and waits for broker 1"
    # And the watches are armed again.
    cluster.create_topic_node("c", [[2]])
    cluster.start_broker(1)
    cluster.settle()
    assert cluster.state("c-0") == "2/0 isr [2] ce 1 v0"
    assert cluster.children(znodes.TOPICS) == ("b", "c")


def test_a_controller_whose_node_was_deleted_while_it_was_disconnected_is_elected_again() -> None:
    """Its watch ended with the connection, and a new watch on a deleted node does not fire."""
    cluster = Cluster()
    node = cluster.start_controller(A)
    cluster.controller_clients[A].disconnect()
    cluster.zk(Delete(znodes.CONTROLLER))
    cluster.time.run_until(lambda: cluster.controller_clients[A].connected, max_ms=1_000)
    cluster.settle()
    assert node.is_active
    assert (node.controller_epoch, controller_id(cluster)) == (2, A)
    cluster.start_broker(1)
    cluster.settle()
    assert [broker.broker_id for broker in node.describe_cluster().brokers] == [1], "the new election has set watches"


@pytest.mark.parametrize("with_address", [False, True])
def test_a_controller_whose_node_is_deleted_during_its_failover_is_elected_again(with_address: bool) -> None:
    """The watch that was set before the node existed fired at its creation."""
    cluster = Cluster()
    node = cluster.start_controller(A, settle=False)
    cluster.time.run_until(lambda: node.is_active, max_ms=1_000)
    if with_address:
        cluster.zk(Delete(znodes.controller_path(A)))
    cluster.zk(Delete(znodes.CONTROLLER))
    cluster.settle()
    assert node.is_active
    assert (node.controller_epoch, controller_id(cluster)) == (2, A)


def test_calls_to_a_standby_are_answered_not_controller(cluster: Cluster) -> None:
    answers: list[Any] = []
    standby = cluster.controllers[B]
    standby.ask(CreateTopics((NewTopic("x"),), 1_000, False, reply=answers.append))
    standby.ask(DeleteTopics(("a",), 1_000, reply=answers.append))
    assert [type(answer) for answer in answers] == [NotControllerError] * 2
    with pytest.raises(NotControllerError):
        standby.describe_topics([])


def test_a_controller_whose_failover_fails_resigns(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise ValueError("cannot load")
        yield

    good = event_handler.on_failover
    monkeypatch.setattr(event_handler, "on_failover", broken)
    cluster.controllers[A].stop()
    cluster.settle()
    assert not cluster.controllers[B].is_active
    assert not cluster.zk(GetData(znodes.CONTROLLER), must_succeed=False).ok
    monkeypatch.setattr(event_handler, "on_failover", good)
    cluster.time.run_until(lambda: cluster.controllers[B].is_active, max_ms=3_000)
    assert cluster.controllers[B].controller_epoch == 3


def test_a_controller_that_may_not_delete_its_node_after_a_failed_failover_tries_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Any:
        cluster.server.tree.read_only.add(znodes.CONTROLLER)
        raise ValueError("cannot load")
        yield

    good = event_handler.on_failover
    monkeypatch.setattr(event_handler, "on_failover", broken)
    cluster.controllers[A].stop()
    cluster.settle()
    monkeypatch.setattr(event_handler, "on_failover", good)
    cluster.time.run_for(20_000)
    assert not cluster.controllers[B].is_active and controller_id(cluster) == B, "every attempt was refused"
    cluster.server.tree.read_only.clear()
    cluster.time.run_until(lambda: cluster.controllers[B].is_active, max_ms=70_000)
    assert cluster.controllers[B].controller_epoch == 3


def test_a_controller_whose_failover_failed_deletes_its_node_although_it_may_not_read_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of a live session, with a controller that is not active, would keep every controller from election."""

    def broken(*_: object) -> Any:
        cluster.server.tree.unreadable.add(znodes.CONTROLLER)
        raise ValueError("cannot load")
        yield

    good = event_handler.on_failover
    monkeypatch.setattr(event_handler, "on_failover", broken)
    cluster.controllers[A].stop()
    cluster.settle()
    monkeypatch.setattr(event_handler, "on_failover", good)
    cluster.server.tree.unreadable.clear()
    cluster.time.run_until(lambda: cluster.controllers[B].is_active, max_ms=120_000)
    assert cluster.controllers[B].controller_epoch == 3


def test_a_controller_that_may_not_read_its_node_stays_active(cluster: Cluster) -> None:
    cluster.server.tree.unreadable.add(znodes.CONTROLLER)
    cluster.controller_clients[A].disconnect()
    cluster.time.run_until(lambda: cluster.controller_clients[A].connected, max_ms=1_000)
    cluster.settle()
    assert cluster.controllers[A].is_active and cluster.controllers[A].controller_epoch == 1


def test_a_restarted_controller_waits_for_the_end_of_its_earlier_session() -> None:
    cluster = Cluster()
    cluster.start_controller(A)
    # The process dies and is started again before its session has ended.
    cluster.controller_clients[A].crash()
    cluster.controllers[A].stop()
    again = cluster.start_controller(A)
    assert not again.is_active, "the id in /controller is its own, the session is not"
    cluster.time.run_until(lambda: again.is_active, max_ms=2 * SESSION_TIMEOUT_MS)
    assert again.controller_epoch == 2
    cluster.settle()
    assert cluster.children(znodes.CONTROLLER_IDS) == (str(A),)


def test_a_controller_retries_requests_until_the_broker_is_unregistered(cluster: Cluster) -> None:
    cluster.brokers.unreachable.add(2)
    cluster.kill_broker(1)
    cluster.settle()
    cluster.time.run_for(1_000)
    assert cluster.controller.gauges()["controller_request_queue_size"] > 0
    cluster.brokers.unreachable.clear()
    cluster.brokers.received.clear()
    cluster.time.run_for(1_200)
    assert cluster.told()[2][0] == "LAI a-0 2/1 [2]"
    assert cluster.controller.gauges()["controller_request_queue_size"] == 0


def test_no_request_is_sent_after_resignation(cluster: Cluster) -> None:
    cluster.brokers.unreachable.add(2)
    cluster.kill_broker(1)
    cluster.settle()
    cluster.brokers.received.clear()
    cluster.controllers[B].stop()
    cluster.controllers[A].stop()
    cluster.brokers.unreachable.clear()
    cluster.time.run_for(5_000)
    assert cluster.brokers.received == []
