"""Notifications of brokers and requests in admin nodes: exactly those that were read are handled and deleted."""

from typing import Any

import pytest

from paceline.controller.brokers.isr_notifications import IsrNotifications
from paceline.controller.election.preferred_election import PreferredElections
from paceline.controller.zk_store import ZkStore
from paceline.coordination import znodes
from paceline.coordination.flow import Flow
from paceline.coordination.interface import Create, Delete, GetData, SetData
from paceline.model.admin import NewTopic
from paceline.model.identifiers import TopicPartition
from tests.support.reassignments import running_reassignments
from tests.unit.controller.cluster import Cluster, tp


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2), (2, 1))))
    cluster.told()
    return cluster


def notices(cluster: Cluster) -> tuple[str, ...]:
    return cluster.children(znodes.ISR_CHANGE_NOTIFICATION)


@pytest.mark.origin("S4-11")
def test_an_isr_change_is_sent_to_all_brokers_and_its_notification_deleted(cluster: Cluster) -> None:
    cluster.change_isr("a-0", [1])
    cluster.settle()
    assert cluster.told() == {broker_id: ["UM {a-0 1/0 [1]}"] for broker_id in (1, 2, 3)}
    assert notices(cluster) == ()
    assert cluster.controller.describe_topics(["a"])[0].partitions[0].isr == (1,)


def test_several_notifications_become_one_update(cluster: Cluster) -> None:
    for partition, isr in (("a-0", [1]), ("a-1", [2])):
        cluster.change_isr(partition, isr, notify=False)
    # Written in one step, so the controller sees them together.
    cluster.tool.submit(
        [
            Create(znodes.ISR_CHANGE_PREFIX, znodes.encode_partition_set([tp(name)]), sequential=True)
            for name in ("a-0", "a-1", "a-0")
        ],
        lambda _: None,
    )
    cluster.settle()
    assert cluster.told()[3] == ["UM {a-0 1/0 [1], a-1 2/0 [2]}"]
    assert notices(cluster) == ()


@pytest.mark.origin("S4-11")
def test_notifications_are_deleted_even_when_handling_them_failed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(components: object, partitions: object) -> None:
        raise ValueError("cannot refresh")

    monkeypatch.setattr(IsrNotifications, "_refresh", broken)
    cluster.change_isr("a-0", [1])
    cluster.settle()
    assert notices(cluster) == ()
    monkeypatch.undo()
    cluster.change_isr("a-0", [1, 2])
    cluster.settle()
    assert cluster.told()[3] == ["UM {a-0 1/0 [1, 2]}"], "the next notification is handled"


@pytest.mark.parametrize("data", [b"", b"nonsense", b'{"version":1,"partitions":[{"topic":"../x","partition":0}]}'])
def test_a_malformed_notification_is_deleted(cluster: Cluster, data: bytes) -> None:
    cluster.zk(Create(znodes.ISR_CHANGE_PREFIX, data, sequential=True))
    cluster.zk(Create(znodes.LOG_DIR_EVENT_PREFIX, data, sequential=True))
    cluster.settle()
    assert notices(cluster) == ()
    assert cluster.children(znodes.LOG_DIR_EVENT_NOTIFICATION) == ()
    assert cluster.controller.is_active


def test_a_notification_about_an_unknown_partition_changes_nothing(cluster: Cluster) -> None:
    cluster.zk(Create(znodes.ISR_CHANGE_PREFIX, znodes.encode_partition_set([tp("x-0")]), sequential=True))
    cluster.settle()
    assert cluster.told() == {broker_id: ["UM {}"] for broker_id in (1, 2, 3)}


@pytest.mark.origin("S4-12")
def test_the_node_of_a_preferred_election_is_removed_and_watched_again(cluster: Cluster) -> None:
    cluster.kill_broker(1)
    cluster.settle()
    cluster.start_broker(1)
    cluster.settle()
    cluster.change_isr("a-0", [2, 1])
    cluster.settle()
    cluster.told()
    for _ in range(2):
        asked = znodes.encode_partition_set([tp("a-0"), tp("x-9")])
        cluster.zk(Create(znodes.PREFERRED_REPLICA_ELECTION, asked))
        cluster.settle()
        assert not cluster.exists(znodes.PREFERRED_REPLICA_ELECTION)
    assert cluster.state("a-0") == "1/2 isr [2, 1] ce 1 v3", "elected once; the second request needed no election"
    picture = "UM {a-0 1/2 [2, 1]}"
    assert cluster.told() == {1: ["LAI a-0 1/2 [2, 1]", picture], 2: ["LAI a-0 1/2 [2, 1]", picture], 3: [picture]}


@pytest.mark.origin("S4-12")
def test_a_preferred_replica_that_is_dead_or_out_of_sync_is_not_elected_and_the_node_is_removed(
    cluster: Cluster,
) -> None:
    asked = znodes.encode_partition_set([tp("a-0")])
    cluster.kill_broker(1)
    cluster.settle()
    before = cluster.state("a-0")
    assert before.startswith("2/1 isr [2]")
    cluster.zk(Create(znodes.PREFERRED_REPLICA_ELECTION, asked))
    cluster.settle()
    assert not cluster.exists(znodes.PREFERRED_REPLICA_ELECTION) and cluster.state("a-0") == before
    cluster.start_broker(1)
    cluster.settle()
    cluster.zk(Create(znodes.PREFERRED_REPLICA_ELECTION, asked))
    cluster.settle()
    assert not cluster.exists(znodes.PREFERRED_REPLICA_ELECTION) and cluster.state("a-0") == before
    # The watch was set again each time: the next request is executed.
    cluster.change_isr("a-0", [2, 1])
    cluster.settle()
    cluster.zk(Create(znodes.PREFERRED_REPLICA_ELECTION, asked))
    cluster.settle()
    assert cluster.state("a-0").startswith("1/2 isr [2, 1]")


@pytest.mark.origin("S4-12")
def test_a_pending_preferred_election_is_executed_by_the_next_controller(cluster: Cluster) -> None:
    cluster.kill_broker(1)
    cluster.settle()
    cluster.start_broker(1)
    cluster.settle()
    cluster.change_isr("a-0", [2, 1])
    cluster.settle()
    (number,) = cluster.controllers
    cluster.controllers.pop(number).stop()
    cluster.controller_clients.pop(number).close()
    cluster.settle()
    cluster.zk(Create(znodes.PREFERRED_REPLICA_ELECTION, znodes.encode_partition_set([tp("a-0")])))
    cluster.settle()
    assert cluster.exists(znodes.PREFERRED_REPLICA_ELECTION)
    cluster.start_controller(number + 1)
    assert not cluster.exists(znodes.PREFERRED_REPLICA_ELECTION)
    assert cluster.state("a-0").startswith("1/2 isr [2, 1]")


@pytest.mark.origin("S4-12")
def test_the_node_is_removed_and_watched_again_after_an_election_that_failed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(components: object, topic_partitions: object) -> None:
        raise ValueError("cannot elect")

    cluster.kill_broker(1)
    cluster.settle()
    cluster.start_broker(1)
    cluster.settle()
    cluster.change_isr("a-0", [2, 1])
    cluster.settle()
    asked = Create(znodes.PREFERRED_REPLICA_ELECTION, znodes.encode_partition_set([tp("a-0")]))
    with monkeypatch.context() as patches:
        patches.setattr(PreferredElections, "elect_preferred_leaders", broken)
        cluster.zk(asked)
        cluster.settle()
    assert not cluster.exists(znodes.PREFERRED_REPLICA_ELECTION)
    assert cluster.state("a-0").startswith("2/1 isr [2, 1]")
    cluster.zk(asked)
    cluster.settle()
    assert not cluster.exists(znodes.PREFERRED_REPLICA_ELECTION)
    assert cluster.state("a-0").startswith("1/2 isr [2, 1]")


def test_a_malformed_admin_node_is_removed(cluster: Cluster) -> None:
    cluster.zk(Create(znodes.PREFERRED_REPLICA_ELECTION, b"{"))
    cluster.zk(Create(znodes.REASSIGN_PARTITIONS, b"{"))
    cluster.settle()
    assert not cluster.exists(znodes.PREFERRED_REPLICA_ELECTION)
    assert not cluster.exists(znodes.REASSIGN_PARTITIONS)


def asked_for(cluster: Cluster) -> dict[TopicPartition, tuple[int, ...]]:
    """The reassignments in the admin node."""
    path = znodes.REASSIGN_PARTITIONS
    return znodes.decode_reassignment(path, cluster.zk(GetData(path)).data or b"")


def targets_of(cluster: Cluster) -> dict[TopicPartition, tuple[int, ...]]:
    """The targets of the running reassignments."""
    return {partition: move.target for partition, move in running_reassignments(cluster.controller).items()}


@pytest.mark.origin("S4-15")
@pytest.mark.parametrize("read_again", ["after a reconnection", "by the next controller"])
def test_rewriting_the_admin_node_starts_no_reassignment(cluster: Cluster, read_again: str) -> None:
    cluster.create(NewTopic("b", assignments=((1, 2),)))
    running, added = {tp("a-0"): (3, 2), tp("a-1"): (2, 3)}, {tp("b-0"): (2, 3)}
    cluster.zk(Create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(running)))
    cluster.settle()
    other = cluster.state("a-1"), cluster.state("b-0")
    cluster.told()
    # A tool adds a partition and changes the target of another one while both reassignments run.
    by_tool = {**running, tp("a-1"): (2, 1), **added}
    cluster.zk(SetData(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(by_tool)))
    cluster.settle()
    assert targets_of(cluster) == running
    assert cluster.told() == {} and asked_for(cluster) == by_tool
    # The controller rewrites the node itself when a reassignment completes; the event of that write starts none either.
    cluster.change_isr("a-0", [1, 2, 3], notify=False)
    cluster.settle()
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [3, 2], "1": [2, 3, 1]}
    assert asked_for(cluster) == {tp("a-1"): (2, 1), **added}
    assert (cluster.state("a-1"), cluster.state("b-0")) == other
    assert cluster.data(znodes.topic_path("b"))["partitions"] == {"0": [1, 2]}
    # A controller that may have missed the node's creation starts all its entries.
    (number,) = cluster.controllers
    if read_again == "after a reconnection":
        cluster.controller_clients[number].disconnect()
        cluster.time.run_for(1_000)
    else:
        cluster.controllers.pop(number).stop()
        cluster.controller_clients.pop(number).close()
        cluster.start_controller(number + 1)
    assert targets_of(cluster) == added
    assert cluster.data(znodes.topic_path("a"))["partitions"]["1"] == [2, 1]


@pytest.mark.parametrize("writer", ["the controller", "a tool"])
def test_a_reassignment_is_started_after_the_earlier_admin_node_was_changed_and_deleted(
    cluster: Cluster, writer: str
) -> None:
    targets = {tp("a-0"): (3, 2), tp("a-1"): (2, 3)}
    cluster.zk(Create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(targets)))
    cluster.settle()
    if writer == "the controller":
        cluster.change_isr("a-0", [1, 2, 3], notify=False)
    else:
        cluster.zk(SetData(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({tp("a-1"): (2, 3)})))
    cluster.settle()
    cluster.zk(Delete(znodes.REASSIGN_PARTITIONS))
    cluster.settle()
    cluster.zk(Create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({tp("a-1"): (2, 1)})))
    cluster.settle()
    assert cluster.data(znodes.topic_path("a"))["partitions"]["1"] == [2, 1], "the move to broker 3 was replaced"


def test_a_reassignment_is_started_from_a_node_that_replaced_a_changed_node_within_one_event(cluster: Cluster) -> None:
    path = znodes.REASSIGN_PARTITIONS
    first, second = ({tp("a-1"): target} for target in ((2, 3), (2, 1)))
    cluster.zk(Create(path, znodes.encode_reassignment(first)))
    cluster.settle()
    requests = [SetData(path, b"{}"), Delete(path), Create(path, znodes.encode_reassignment(second))]
    cluster.tool.submit(requests, lambda _: None)
    cluster.settle()
    assert cluster.data(znodes.topic_path("a"))["partitions"]["1"] == [2, 1], "the move to broker 3 was replaced"


def test_a_preferred_election_requested_while_a_new_controller_removes_another_is_executed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    asked = znodes.encode_partition_set([tp("a-0")])
    cluster.zk(Create(znodes.PREFERRED_REPLICA_ELECTION, asked))
    real, again = ZkStore.delete_fenced, [Create(znodes.PREFERRED_REPLICA_ELECTION, asked)]

    def delete_fenced(self: ZkStore, paths: Any) -> Flow[Any]:
        result = yield from real(self, paths)
        if znodes.PREFERRED_REPLICA_ELECTION in paths and again:
            cluster.tool.submit([again.pop()], lambda _: None)
        return result

    monkeypatch.setattr(ZkStore, "delete_fenced", delete_fenced)
    cluster.start_controller()
    cluster.settle()
    assert not again
    assert not cluster.exists(znodes.PREFERRED_REPLICA_ELECTION)
