"""Controllers die before and after each write of a job: the next controller completes it, and all brokers learn of it.

The controller dies at each of its writes in turn; the write is either lost or applied without an answer. All answers of
brokers and of ZooKeeper in flight are lost with the process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from paceline.controller.admin.admin_requests import CreateTopics, DeleteTopics
from paceline.controller.standby.takeover import TakeoverKind
from paceline.coordination import znodes
from paceline.coordination.interface import Create, Delete, Request, Response
from paceline.model.admin import NewTopic
from paceline.model.control import LeaderAndIsrRequest, UpdateMetadataRequest
from paceline.model.identifiers import TopicPartition
from paceline.model.settings import ControllerConfig
from tests.support.reassignments import running_reassignments, start_reassignments
from tests.support.slow import slow_but_every
from tests.support.zookeeper.client import MemoryZooKeeper
from tests.support.zookeeper.link import is_write
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp
from tests.unit.controller.test_random_histories import STATE_PATH, check_writes

BROKERS = (1, 2, 3, 4, 5, 6)
CONFIG = ControllerConfig(CONTROLLER_ID, auto_leader_rebalance_enable=False)


class Mortal:
    """A controller that dies at its ``nth`` write, which is applied or not; with ``nth`` None it only counts."""

    def __init__(self, cluster: Cluster, controller_id: int, nth: int | None, applied: bool) -> None:
        self.cluster = cluster
        self.controller_id = controller_id
        self.nth = nth
        self.applied = applied
        self.writes = 0
        self.dead = False
        self.client: MemoryZooKeeper = cluster.controller_clients[controller_id]
        self._submit = self.client.submit
        self.client.submit = self.submit  # type: ignore[method-assign]

    def submit(self, requests: Sequence[Request], on_done: Callable[[list[Response]], None]) -> None:
        """Pass requests on, up to the write at which the controller dies."""
        for index, request in enumerate(requests):
            if self.dead or not is_write(request):
                continue
            self.writes += 1
            if self.writes == self.nth:
                self._submit(requests[: index + self.applied], lambda _: None)
                self.die()
                return
        self._submit(requests, on_done)

    def die(self) -> None:
        """End the process; requests it has sent arrive, answers to it are lost."""
        if self.dead:
            return
        self.dead = True
        session_id = self.client.session_id
        self.client.crash()
        self.cluster.controllers.pop(self.controller_id).stop()
        # By then the write at which it died has arrived.
        self.cluster.time.call_later(1, lambda: self.cluster.server.expire(session_id))


@dataclass(frozen=True)
class Job:
    """A change that a controller carries out."""

    name: str
    prepare: Callable[[Cluster], None]
    begin: Callable[[Cluster], None]
    """Send the request; the controller may be dead already."""
    finish: Callable[[Cluster], None]
    """Run concurrent operations and the caller's second attempt; a controller is active."""
    check: Callable[[Cluster], None]
    least_writes: int
    config: ControllerConfig = CONFIG


def perform(job: Job, nths: Sequence[int | None], applied: bool, stands_by: bool = False) -> list[Mortal]:
    """Carry a job out under controllers that die one after the other, then under one that survives.

    With ``stands_by`` the surviving controller has followed the first one from the beginning.
    """
    cluster = Cluster(job.config)
    cluster.start_broker(*BROKERS)
    cluster.start_controller()
    if stands_by:
        cluster.start_controller(CONTROLLER_ID + len(nths))
    job.prepare(cluster)
    cluster.settle()
    mortals = [Mortal(cluster, CONTROLLER_ID, nths[0], applied)]
    job.begin(cluster)
    cluster.time.run_for(5)
    if cluster.controllers:
        job.finish(cluster)
        cluster.time.run_for(5)
    for number, nth in enumerate(nths[1:], start=1):
        mortals[-1].die()
        cluster.time.run_for(5)
        cluster.start_controller(CONTROLLER_ID + number, settle=False)
        mortals.append(Mortal(cluster, CONTROLLER_ID + number, nth, applied))
        cluster.time.run_for(5)
        if cluster.controllers:
            job.finish(cluster)
            cluster.time.run_for(5)
    if nths != [None]:
        mortals[-1].die()
        cluster.time.run_for(5)
        if not stands_by:
            cluster.start_controller(CONTROLLER_ID + len(nths), settle=False)
    for _ in range(3):
        cluster.time.run_for(5)
        job.finish(cluster)
    cluster.time.run_for(500)
    assert cluster.controller.is_idle
    check_writes(cluster.writes)
    job.check(cluster)
    check_brokers_know(cluster)
    return mortals


def check_brokers_know(cluster: Cluster) -> None:
    """Check that each broker's newest LeaderAndIsr and newest metadata equal the states in ZooKeeper."""
    orders: dict[tuple[int, TopicPartition], tuple[int, int]] = {}
    metadata: dict[tuple[int, TopicPartition], tuple[int, int, tuple[int, ...]]] = {}
    for broker_id, request in cluster.brokers.received:
        if isinstance(request, LeaderAndIsrRequest):
            orders.update(((broker_id, p.topic_partition), (p.leader, p.leader_epoch)) for p in request.partitions)
        elif isinstance(request, UpdateMetadataRequest):
            for m in request.partitions:
                metadata[broker_id, m.topic_partition] = (m.leader, m.leader_epoch, m.isr)
    live = sorted(cluster.broker_sessions)
    for path in cluster.server.tree.paths():
        if (match := STATE_PATH.fullmatch(path)) is None:
            continue
        partition = TopicPartition(match[1], int(match[2]))
        state = cluster.data(path)
        replicas = cluster.data(znodes.topic_path(partition.topic))["partitions"][match[2]]
        for broker_id in live:
            expected = (state["leader"], state["leader_epoch"], tuple(state["isr"]))
            assert metadata[broker_id, partition] == expected, (broker_id, partition)
        for broker_id in replicas:
            if broker_id in live:
                assert orders[broker_id, partition] == expected[:2], (broker_id, partition)


def nothing(_: Cluster) -> None:
    pass


def tree(cluster: Cluster, topic: str) -> set[str]:
    """Return every node with the topic's name in its path."""
    return {path for path in cluster.server.tree.paths() if topic in path.split("/")}


def ask(cluster: Cluster, call: Callable[[Any], None]) -> None:
    """Call the active controller, if any, without waiting for the answer."""
    for node in list(cluster.controllers.values()):
        if node.is_active:
            call(node)


# creation


def create(cluster: Cluster) -> None:
    topic = NewTopic("a", assignments=((1, 2), (2, 3), (3, 1)), configs={"retention.ms": "1000"})
    ask(cluster, lambda node: node.ask(CreateTopics((topic,), 1_000, False, reply=lambda _: None)))


def create_by_node(cluster: Cluster) -> None:
    cluster.create_topic_node("a", [[1, 2], [2, 3], [3, 1]], topic_id=None)


def created(cluster: Cluster) -> None:
    states = [f"/brokers/topics/a/partitions/{p}{end}" for p in range(3) for end in ("", "/state")]
    expected = {"/brokers/topics/a", "/brokers/topics/a/partitions", *states}
    assert tree(cluster, "a") - {"/config/topics/a"} == expected
    assert cluster.data("/brokers/topics/a")["partitions"] == {"0": [1, 2], "1": [2, 3], "2": [3, 1]}
    assert cluster.data("/brokers/topics/a")["topic_id"]
    for partition, replicas in enumerate(((1, 2), (2, 3), (3, 1))):
        state = cluster.data(f"/brokers/topics/a/partitions/{partition}/state")
        assert (state["leader"], state["leader_epoch"], tuple(state["isr"])) == (replicas[0], 0, replicas)


# deletion


def three_partitions(cluster: Cluster) -> None:
    cluster.create(NewTopic("a", assignments=((1, 2), (2, 3), (3, 1))), NewTopic("b", assignments=((1, 2),)))


def delete(cluster: Cluster) -> None:
    ask(cluster, lambda node: node.ask(DeleteTopics(("a",), 1_000, reply=lambda _: None)))


def delete_by_marker(cluster: Cluster) -> None:
    cluster.zk(Create(znodes.delete_topic_path("a")), must_succeed=False)


def deleted(cluster: Cluster) -> None:
    assert tree(cluster, "a") == set() and cluster.children(znodes.DELETE_TOPICS) == ()
    for broker_id in (1, 2, 3):
        left = [partition for partition in cluster.brokers.epochs[broker_id] if partition.topic == "a"]
        assert left == [], f"broker {broker_id} still has its replica"
    assert cluster.state("b-0").startswith("1/0 isr [1, 2]"), "the other topic is unchanged"


# reassignment


def one_partition(cluster: Cluster) -> None:
    cluster.create(NewTopic("a", assignments=((1, 2, 3),)))


def reassign(cluster: Cluster) -> None:
    ask(cluster, lambda node: start_reassignments(node, {tp("a-0"): (4, 5, 6)}, lambda _: None))


def reassign_by_node(cluster: Cluster) -> None:
    data = znodes.encode_reassignment({tp("a-0"): (4, 5, 6)})
    cluster.zk(Create(znodes.REASSIGN_PARTITIONS, data), must_succeed=False)


def everybody_joins(cluster: Cluster) -> None:
    """Repeat lost calls, and let the leader add every replica to its ISR."""
    assignment = cluster.data(znodes.topic_path("a"))["partitions"]["0"]
    if assignment == [1, 2, 3]:
        reassign(cluster)
        cluster.time.run_for(5)
    state = cluster.data(znodes.partition_state_path(tp("a-0")))
    replicas = cluster.data(znodes.topic_path("a"))["partitions"]["0"]
    if state["leader"] in replicas and set(replicas) != set(state["isr"]):
        cluster.change_isr("a-0", [*dict.fromkeys([*state["isr"], *replicas])])


def reassigned(cluster: Cluster) -> None:
    node = cluster.data(znodes.topic_path("a"))
    assert (node["partitions"], node["adding_replicas"], node["removing_replicas"]) == ({"0": [4, 5, 6]}, {}, {})
    state = cluster.data(znodes.partition_state_path(tp("a-0")))
    assert state["leader"] == 4 and sorted(state["isr"]) == [4, 5, 6]
    assert not cluster.exists(znodes.REASSIGN_PARTITIONS)
    assert running_reassignments(cluster.controller) == {}
    for broker_id in (1, 2, 3):
        assert tp("a-0") not in cluster.brokers.epochs[broker_id], f"broker {broker_id} still has its replica"


def moving_with_one_in_sync(cluster: Cluster) -> None:
    one_partition(cluster)
    reassign(cluster)
    cluster.settle()
    cluster.change_isr("a-0", [1, 2, 3, 4])


def take_back(cluster: Cluster) -> None:
    ask(cluster, lambda node: start_reassignments(node, {tp("a-0"): None}, lambda _: None))


def taken_back(cluster: Cluster) -> None:
    node = cluster.data(znodes.topic_path("a"))
    assert (node["partitions"], node["adding_replicas"], node["removing_replicas"]) == ({"0": [1, 2, 3]}, {}, {})
    state = cluster.data(znodes.partition_state_path(tp("a-0")))
    assert (state["leader"], state["isr"]) == (1, [1, 2, 3])
    for broker_id in (4, 5, 6):
        assert tp("a-0") not in cluster.brokers.epochs[broker_id], f"broker {broker_id} still has its replica"


# election


def led_by_one(cluster: Cluster) -> None:
    results = cluster.create(
        NewTopic("a", assignments=((1, 2), (1, 3), (2, 1), (3, 1))),
        NewTopic("b", assignments=((1, 2, 3),)),
        NewTopic("c", assignments=((1,),)),
    )
    assert all(result.error is None for result in results), results


def one_dies(cluster: Cluster) -> None:
    cluster.kill_broker(1)


def elected(cluster: Cluster) -> None:
    partitions = ("a-0", "a-1", "a-2", "a-3", "b-0", "c-0")
    found = [cluster.data(znodes.partition_state_path(tp(partition))) for partition in partitions]
    leaders = [(state["leader"], state["isr"]) for state in found]
    assert leaders == [(2, [2]), (3, [3]), (2, [2]), (3, [3]), (2, [2, 3]), (-1, [1])]


def away_from_home(cluster: Cluster) -> None:
    cluster.create(NewTopic("a", assignments=((1, 2), (1, 3), (1, 4))))
    cluster.kill_broker(1)
    cluster.settle()
    cluster.start_broker(1)
    cluster.settle()
    for partition, isr in enumerate(([2, 1], [3, 1], [4, 1])):
        cluster.change_isr(f"a-{partition}", isr)
    cluster.settle()


def prefer(cluster: Cluster) -> None:
    asked = znodes.encode_partition_set([tp(f"a-{p}") for p in range(3)])
    cluster.zk(Create(znodes.PREFERRED_REPLICA_ELECTION, asked), must_succeed=False)


def at_home(cluster: Cluster) -> None:
    assert {cluster.data(f"/brokers/topics/a/partitions/{p}/state")["leader"] for p in range(3)} == {1}
    assert not cluster.exists(znodes.PREFERRED_REPLICA_ELECTION)


ONE_BY_ONE = replace(CONFIG, zookeeper_multi_max_operations=2)
"""One state per multi, so that the controller can be killed between any two partitions."""

JOBS = [
    Job("creation", nothing, create, create, created, 2),
    Job("creation, one write per state", nothing, create, create, created, 4, ONE_BY_ONE),
    Job("creation by its node", nothing, create_by_node, nothing, created, 4, ONE_BY_ONE),
    Job("deletion", three_partitions, delete, delete, deleted, 7),
    Job("deletion by marker", three_partitions, delete_by_marker, delete_by_marker, deleted, 15, ONE_BY_ONE),
    Job("reassignment", one_partition, reassign, everybody_joins, reassigned, 7),
    Job("reassignment by its node", one_partition, reassign_by_node, everybody_joins, reassigned, 8),
    Job("reassignment taken back", moving_with_one_in_sync, take_back, take_back, taken_back, 3),
    Job("election", led_by_one, one_dies, nothing, elected, 2),
    Job("election, one write per state", led_by_one, one_dies, nothing, elected, 6, ONE_BY_ONE),
    Job("preferred election", away_from_home, prefer, nothing, at_home, 4, ONE_BY_ONE),
]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_cold_successor_completes_the_job_of_a_controller_that_dies_at_any_write(job: Job) -> None:
    (undisturbed,) = perform(job, [None], applied=False)
    assert undisturbed.writes >= job.least_writes, "too few writes for this test"
    for nth in range(1, undisturbed.writes + 1):
        for applied in (False, True):
            try:
                perform(job, [nth], applied)
            except AssertionError as error:
                raise AssertionError(f"{job.name}: write {nth}, {'applied' if applied else 'lost'}: {error}") from error


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_warm_standby_completes_the_job_of_a_controller_that_dies_at_any_write(job: Job) -> None:
    (undisturbed,) = perform(job, [None], applied=False, stands_by=True)
    kinds: set[TakeoverKind] = set()
    for nth in range(1, undisturbed.writes + 1):
        for applied in (False, True):
            try:
                (mortal,) = perform(job, [nth], applied, stands_by=True)
            except AssertionError as error:
                raise AssertionError(f"{job.name}: write {nth}, {'applied' if applied else 'lost'}: {error}") from error
            kinds.add(mortal.cluster.takeovers[-1].states.kind)
    assert TakeoverKind.WARM in kinds and TakeoverKind.COLD not in kinds


@pytest.mark.parametrize("job", slow_but_every(3, JOBS), ids=lambda job: job.name)
def test_a_successor_that_dies_at_any_write_is_succeeded_as_well(job: Job) -> None:
    (undisturbed,) = perform(job, [None], applied=False)
    first_dies_at = (undisturbed.writes + 1) // 2
    _, second = perform(job, [first_dies_at, None], applied=True)
    assert second.writes >= 2, "the successor was at least elected"
    for nth in range(1, second.writes + 1):
        for applied in (False, True):
            try:
                perform(job, [first_dies_at, nth], applied)
            except AssertionError as error:
                raise AssertionError(f"{job.name}: write {nth}, {'applied' if applied else 'lost'}: {error}") from error


def test_a_controller_dies_once_and_its_last_write_is_lost_or_applied() -> None:
    for applied in (False, True):
        cluster = Cluster()
        cluster.start_broker(1)
        cluster.start_controller()
        mortal = Mortal(cluster, CONTROLLER_ID, 1, applied)
        create_by_node(cluster)
        cluster.time.run_for(5)
        assert mortal.dead and cluster.controllers == {}
        # Its first write gives the topic an id.
        assert ("topic_id" in cluster.data("/brokers/topics/a")) is applied
        assert not cluster.exists(znodes.CONTROLLER)
        cluster.zk(Delete("/brokers/topics/a"))
