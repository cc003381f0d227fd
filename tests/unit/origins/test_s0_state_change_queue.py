"""Rows S0-1 to S0-5 and S1-15: orders to a broker, then through a durable queue, now through channel and resend."""

import logging

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Create
from paceline.model.admin import NewTopic
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition
from tests.origins.state_change_queue import (
    ADMIN_EPOCH,
    DEFAULT_QUEUE_SIZE,
    FollowerStateChangeQueueFullError,
    IllegalStateChangeError,
    Order,
    Outcome,
    QueuedChange,
    StateChange,
    StateChangeQueue,
    StateChangeReceiver,
    kept_when_full,
)
from tests.support.broker_cluster import TP, BrokerCluster
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, short, tp
from tests.unit.origins.queue_nodes import ZooKeeperNodes
from tests.unit.origins.whole_cluster import WholeCluster

BROKER = 3


def start(partition: str, epoch: int) -> StateChange:
    return StateChange(Order.START_REPLICA, tp(partition), epoch)


def close(partition: str, epoch: int) -> StateChange:
    return StateChange(Order.CLOSE_REPLICA, tp(partition), epoch)


class Replicas:
    """A broker's replicas, and everything it was asked to do."""

    def __init__(self) -> None:
        self.present: set[TopicPartition] = set()
        self.calls: list[str] = []

    def start_replica(self, topic_partition: TopicPartition) -> None:
        self.calls.append(f"start {short(topic_partition)}")
        self.present.add(topic_partition)

    def close_replica(self, topic_partition: TopicPartition) -> None:
        self.calls.append(f"close {short(topic_partition)}")
        self.present.discard(topic_partition)


class Setup:
    """A queue in the in-memory ZooKeeper and a broker that works it off."""

    def __init__(self, size: int = DEFAULT_QUEUE_SIZE, leader_epoch: int | None = 5) -> None:
        self.cluster = Cluster()
        self.size = size
        self.leader_epoch = leader_epoch
        self.replicas = Replicas()
        self.queue = self.reopened()

    def reopened(self) -> StateChangeQueue:
        """The queue as another process sees it."""
        return StateChangeQueue(ZooKeeperNodes(self.cluster, BROKER), self.size)

    def receiver(self) -> StateChangeReceiver:
        """A receiver as a broker has it after each start."""
        return StateChangeReceiver(self.reopened(), lambda _: self.leader_epoch, self.replicas)

    def pending(self) -> list[StateChange]:
        return [entry.change for entry in self.queue.pending()]


# S0-1


@pytest.mark.origin("S0-1")
def test_orders_arrive_in_order_and_survive_a_receiver() -> None:
    setup = Setup()
    orders = [start("a-0", 5), close("b-1", 2), start("a-2", 5), close("a-0", 4)]
    for order in orders[:3]:
        setup.queue.put(order)
    first = setup.receiver()
    assert first.handle_next() is Outcome.STARTED
    # The broker goes down; its queue still grows, and a new process continues at the old position.
    setup.queue.put(orders[3])
    assert setup.pending() == orders[1:]
    assert setup.receiver().handle_all() == [Outcome.CLOSED, Outcome.STARTED, Outcome.CLOSED]
    assert setup.replicas.calls == ["start a-0", "close b-1", "start a-2", "close a-0"]
    assert setup.pending() == []


@pytest.mark.origin("S0-1")
def test_ten_thousand_children_are_still_in_the_order_of_their_numbers() -> None:
    class Names:
        def __init__(self) -> None:
            self.orders = {f"{n:010d}": start(f"a-{n}", 5).encode() for n in (9, 10, 9_999, 10_000)}

        def append(self, data: bytes) -> str:
            raise AssertionError("nothing is appended here")

        def names(self) -> list[str]:
            return sorted(self.orders, reverse=True)

        def read(self, name: str) -> bytes | None:
            return self.orders[name]

        def delete(self, name: str) -> None:
            del self.orders[name]

    queue = StateChangeQueue(Names())
    assert [entry.change.topic_partition.partition for entry in queue.pending()] == [9, 10, 9_999, 10_000]


@pytest.mark.origin("S0-1", "S1-15")
def test_today_the_queue_ends_with_its_controller_and_the_next_one_sends_all_states() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.start_controller(CONTROLLER_ID + 1)
    # Broker 2 does not answer, so all but the first request for it wait in the controller's memory.
    cluster.brokers.silent.add(2)
    cluster.create_topic_node("a", [[1, 2]])
    cluster.create_topic_node("b", [[2, 1]])
    cluster.settle()
    assert cluster.controller.gauges()["controller_request_queue_size"] > 0
    in_zookeeper = [path for path in cluster.server.tree.paths() if path.startswith("/brokers/state")]
    assert in_zookeeper == [], "nothing is queued in ZooKeeper"
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.brokers.release(2)
    cluster.told()
    cluster.settle()
    everything = "UM {a-0 1/0 [1, 2], b-0 2/0 [2, 1]}"
    assert cluster.told()[2] == ["UM {}", "LAI a-0 1/0 [1, 2], b-0 2/0 [2, 1]", everything]


# S0-2


@pytest.mark.origin("S0-2")
def test_a_full_queue_keeps_the_newest_close_of_each_partition_and_no_start() -> None:
    setup = Setup(size=6)
    queued = [close("a-0", 1), start("a-0", 2), close("b-0", 7), close("a-0", 3), start("c-0", 9), close("b-0", 6)]
    for order in queued:
        setup.queue.put(order)
    setup.queue.put(close("d-0", 1))
    # b-0: the close with the highest epoch stays, although another was queued after it.
    assert setup.pending() == [close("b-0", 7), close("a-0", 3), close("d-0", 1)]


@pytest.mark.origin("S0-2")
def test_between_closes_of_one_epoch_the_one_sent_last_stays() -> None:
    queued = [QueuedChange(f"{n:010d}", close("a-0", 4)) for n in range(3)]
    assert kept_when_full(queued) == [queued[2]]


@pytest.mark.origin("S0-2")
def test_a_queue_full_of_distinct_closes_refuses_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup(size=4)
    orders = [close(f"a-{n}", n) for n in range(4)]
    for order in orders:
        setup.queue.put(order)
    with caplog.at_level(logging.ERROR), pytest.raises(FollowerStateChangeQueueFullError):
        setup.queue.put(start("b-0", 5))
    assert setup.pending() == orders
    assert "refused" in caplog.text
    assert setup.receiver().handle_next() is Outcome.CLOSED
    setup.queue.put(start("b-0", 5))


@pytest.mark.origin("S0-2")
def test_the_default_size_is_a_thousand() -> None:
    assert DEFAULT_QUEUE_SIZE == 1_000
    entries = [QueuedChange(f"{n:010d}", close(f"a-{n % 500}", n)) for n in range(1_000)]
    assert [entry.change.epoch for entry in kept_when_full(entries)] == list(range(500, 1_000))


@pytest.mark.origin("S0-2", "S1-10")
def test_today_a_broker_that_was_down_deletes_its_replica_when_it_returns() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    cluster.kill_broker(2)
    cluster.settle()
    cluster.zk(Create(znodes.delete_topic_path("a")))
    cluster.settle()
    assert cluster.children(znodes.DELETE_TOPICS) == ("a",), "the intent waits in a separate node"
    cluster.told()
    cluster.start_broker(2)
    cluster.settle()
    assert "SR a-0 -2 delete" in cluster.told()[2]
    assert cluster.children(znodes.DELETE_TOPICS) == () and not cluster.exists(znodes.topic_path("a"))


@pytest.mark.origin("S0-2")
def test_today_the_replica_is_deleted_on_disk_when_its_broker_returns() -> None:
    cluster = WholeCluster((1, 2), controllers=1)
    cluster.create("orders", (1, 2))
    cluster.write(TP, b"a")
    cluster.until_in_sync(1, 2)
    path = cluster[2].log().path
    cluster.kill(2)
    cluster.zk(Create(znodes.delete_topic_path("orders")))
    cluster.time.run_until(lambda: cluster[1].logs.get(TP) is None, 10_000)
    cluster.time.run_for(5_000)
    assert cluster[2].files.exists(path) and znodes.topic_path("orders") in cluster.paths()
    cluster.boot(2, cluster[2].files)
    cluster.time.run_until(lambda: znodes.delete_topic_path("orders") not in cluster.paths(), 20_000)
    assert cluster[2].logs.get(TP) is None and not cluster[2].files.exists(path)
    assert TP not in cluster[2].node.replica_manager.hosted.online
    assert znodes.topic_path("orders") not in cluster.paths()


# S0-3 and S0-4


@pytest.mark.origin("S0-3")
@pytest.mark.parametrize(
    ("epoch", "outcome"),
    [(5, Outcome.STARTED), (4, Outcome.IGNORED), (0, Outcome.IGNORED), (ADMIN_EPOCH, Outcome.STARTED)],
)
def test_a_start_counts_in_the_current_epoch_or_as_an_administrators(epoch: int, outcome: Outcome) -> None:
    setup = Setup(leader_epoch=5)
    setup.queue.put(start("a-0", epoch))
    assert setup.receiver().handle_all() == [outcome]
    assert (tp("a-0") in setup.replicas.present) is (outcome is Outcome.STARTED)


@pytest.mark.origin("S0-3")
def test_a_start_ahead_of_the_leader_is_an_illegal_state_and_stays_queued() -> None:
    setup = Setup(leader_epoch=5)
    setup.queue.put(start("a-0", 6))
    for _ in range(2):
        with pytest.raises(IllegalStateChangeError):
            setup.receiver().handle_next()
    assert setup.replicas.calls == [] and setup.pending() == [start("a-0", 6)]


@pytest.mark.origin("S0-3")
def test_without_a_leader_only_an_administrators_start_counts() -> None:
    setup = Setup(leader_epoch=None)
    setup.queue.put(start("a-0", 3))
    setup.queue.put(start("a-1", ADMIN_EPOCH))
    assert setup.receiver().handle_all() == [Outcome.IGNORED, Outcome.STARTED]


@pytest.mark.origin("S0-3")
def test_a_repeated_start_changes_nothing() -> None:
    setup = Setup()
    for _ in range(2):
        setup.queue.put(start("a-0", 5))
    assert setup.receiver().handle_all() == [Outcome.STARTED, Outcome.STARTED]
    assert setup.replicas.present == {tp("a-0")}


@pytest.mark.origin("S0-3")
def test_today_a_new_replica_is_created_in_the_current_epoch_only() -> None:
    cluster = BrokerCluster((1, 2))
    decision = cluster.decide(1, 4, (1,), (1, 2), to=[1], is_new=True)
    cluster.set_controller_epoch(2)
    assert cluster.send(2, cluster.partition(1, 4, (1,), (1, 2), is_new=True)).partition_errors[TP] is ErrorCode.NONE
    assert cluster[2].logs.get(TP) is not None
    for stale in (3, 4):
        again = cluster.send(2, cluster.partition(1, stale, (1,), (1, 2), is_new=True))
        assert again.partition_errors[TP] is ErrorCode.STALE_CONTROLLER_EPOCH
    assert cluster[2].node.replica_manager.hosted.online[TP].leader_epoch == decision.leader_epoch


@pytest.mark.origin("S0-4")
@pytest.mark.parametrize("epoch", [ADMIN_EPOCH, 0, 4, 5, 6, 1_000])
@pytest.mark.parametrize("leader_epoch", [None, 5])
def test_a_close_counts_at_any_epoch(epoch: int, leader_epoch: int | None) -> None:
    setup = Setup(leader_epoch=leader_epoch)
    setup.replicas.present.add(tp("a-0"))
    setup.queue.put(close("a-0", epoch))
    assert setup.receiver().handle_all() == [Outcome.CLOSED]
    assert setup.replicas.present == set()


@pytest.mark.origin("S0-4")
def test_today_a_deleted_topics_replica_is_closed_at_any_epoch_and_its_directory_renamed() -> None:
    cluster = BrokerCluster((1,))
    cluster.decide(1, 9, (1,), is_new=True)
    path = cluster[1].log().path
    assert cluster.stop_replica(1, 8, delete=True).partition_errors[TP] is ErrorCode.FENCED_LEADER_EPOCH
    assert cluster.stop_replica(1, -2, delete=True).partition_errors[TP] is ErrorCode.NONE
    assert cluster[1].logs.get(TP) is None and not cluster[1].files.exists(path)
    assert [name for name in cluster[1].files.directories if name.endswith("-delete")]


# S0-5


@pytest.mark.origin("S0-5")
def test_a_crash_between_handling_and_removal_repeats_the_order_without_harm() -> None:
    setup = Setup()
    for order in (start("a-0", 5), close("b-0", 1)):
        setup.queue.put(order)
    removed: list[str] = []

    class CrashError(Exception):
        pass

    class Dying(StateChangeQueue):
        def remove(self, name: str) -> None:
            removed.append(name)
            raise CrashError

    dying = StateChangeReceiver(Dying(ZooKeeperNodes(setup.cluster, BROKER)), lambda _: 5, setup.replicas)
    with pytest.raises(CrashError):
        dying.handle_next()
    assert setup.replicas.calls == ["start a-0"] and len(removed) == 1
    assert setup.pending() == [start("a-0", 5), close("b-0", 1)]
    assert setup.receiver().handle_all() == [Outcome.STARTED, Outcome.CLOSED]
    assert setup.replicas.calls == ["start a-0", "start a-0", "close b-0"]
    assert setup.replicas.present == {tp("a-0")}


@pytest.mark.origin("S0-5")
@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"state":"open-replica","topic":"a","partition":"0","epoch":"1"}']
)
def test_malformed_data_does_not_stop_the_queue(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    setup.cluster.zk(Create(f"/brokers/state/{BROKER}/", data, sequential=True))
    setup.queue.put(start("a-0", 5))
    assert setup.receiver().handle_all() == [Outcome.STARTED]
    assert "is dropped" in caplog.text and setup.pending() == []


@pytest.mark.origin("S0-5")
def test_today_the_next_request_waits_for_the_answer_and_an_unanswered_one_is_sent_again() -> None:
    cluster = Cluster()
    cluster.start_broker(1)
    cluster.start_controller()
    cluster.brokers.unreachable.add(1)
    for topic in ("a", "b"):
        cluster.create_topic_node(topic, [[1]])
        cluster.time.run_for(500)
    cluster.told()
    cluster.brokers.unreachable.clear()
    cluster.brokers.silent.add(1)
    cluster.time.run_for(1_200)
    assert cluster.told() == {1: ["LAI a-0 1/0 [1] new"]}, "a single request is in flight"
    cluster.brokers.release(1)
    cluster.settle()
    told = cluster.told()[1]
    assert [text for text in told if text.startswith("LAI")] == ["LAI b-0 1/0 [1] new"]
