"""Flows on the in-memory ZooKeeper: registration, election, ids, the leader's ISR write, with replies lost or not."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from paceline.coordination import znodes
from paceline.coordination.errors import DuplicateBrokerIdError, MalformedZnodeError, SessionLostError
from paceline.coordination.flow import Flow, FlowRun, Zk
from paceline.coordination.interface import (
    Create,
    Delete,
    Exists,
    GetData,
    Multi,
    Request,
    Response,
    SetData,
    ZkCode,
)
from paceline.coordination.isr_write import Conflict, JoinerEpochStale, Written, write_isr
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.coordination.recipes import (
    Registered,
    claim_producer_id_block,
    ensure_paths,
    generate_broker_id,
    get_or_create_cluster_id,
    propagate_isr_change,
    register_broker,
)
from paceline.model.control import Endpoint
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import AppliedWrite, Link, MemoryZooKeeper, MemoryZooKeeperServer
from tests.support.zookeeper.recorder import Recorder

TP = TopicPartition("orders", 0)
STATE = znodes.partition_state_path(TP)


class Node:
    """One process with its client."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.link = Link(requests_per_message=1)
        self.client = MemoryZooKeeper(world.server, world.scheduler, session_timeout_ms=6_000, link=self.link)
        self.zookeeper = PatientZooKeeper(self.client)
        self.recorder = Recorder(self.zookeeper)
        world.scheduler.run_until(lambda: self.zookeeper.connected)

    @property
    def session_id(self) -> int:
        return self.zookeeper.session_id

    def begin(self, flow: Flow[Any]) -> list[Any]:
        """Start a flow and return the list that gets its result or error."""
        outcome: list[Any] = []
        FlowRun(flow, self.zookeeper, self.world.scheduler, outcome.append, outcome.append).start()
        return outcome

    def run(self, flow: Flow[Any]) -> Any:
        outcome = self.begin(flow)
        self.world.scheduler.run_until(lambda: bool(outcome))
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def ask(self, *requests: Request) -> list[Response]:
        answers = self.recorder.submit(*requests)
        self.world.scheduler.run_until(lambda: len(answers) == len(requests))
        return answers

    def expire(self) -> None:
        """Lose the session and get a new one."""
        old = self.session_id
        self.world.server.expire(old)
        self.world.scheduler.run_until(lambda: self.session_id not in (0, old))


class World:
    def __init__(self, seed: int) -> None:
        self.scheduler = VirtualTime(seed=seed)
        self.writes: list[AppliedWrite] = []
        self.server = MemoryZooKeeperServer(self.scheduler, on_write=self.writes.append)

    def node(self) -> Node:
        return Node(self)

    def data(self, path: str) -> bytes | None:
        node = self.server.tree.get(path)
        assert node is not None
        return node.data

    def version(self, path: str) -> int:
        node = self.server.tree.get(path)
        assert node is not None
        return node.version


@pytest.fixture(params=range(3))
def world(request: pytest.FixtureRequest) -> World:
    world = World(request.param)
    world.node().run(ensure_paths(znodes.PERSISTENT_NODES))
    return world


def broker(broker_id: int) -> znodes.BrokerRegistration:
    return znodes.BrokerRegistration(broker_id, (Endpoint("CLIENT", "h", 9092),), 1)


def is_multi(request: Request) -> bool:
    return isinstance(request, Multi)


def test_ensure_paths_creates_parents_with_null_data_and_may_be_repeated(world: World) -> None:
    node = world.node()
    before = world.server.tree.paths()
    node.run(ensure_paths(znodes.PERSISTENT_NODES))
    node.run(ensure_paths(["/x/y/z"]))
    assert world.server.tree.paths() == sorted([*before, "/x", "/x/y", "/x/y/z"])
    assert world.data("/brokers/ids") is None


def test_a_registration_gives_the_czxid_and_bumps_the_broker_epoch_node(world: World) -> None:
    node = world.node()
    registered = node.run(register_broker(broker(1), node.session_id))
    found = world.server.tree.get("/brokers/ids/1")
    assert found is not None
    assert registered == Registered(found.czxid)
    assert (found.version, found.ephemeral_owner) == (1, node.session_id)
    assert znodes.decode_broker("/brokers/ids/1", found.data, 1) == broker(1)
    assert world.version("/broker_epochs/1") == 1


def test_a_registration_whose_reply_was_lost_is_adopted(world: World) -> None:
    node = world.node()
    node.run(register_broker(broker(1), node.session_id))
    node.expire()
    node.link.lose_next_reply(to=is_multi)
    registered = node.run(register_broker(broker(1), node.session_id))
    found = world.server.tree.get("/brokers/ids/1")
    assert found is not None
    assert registered == Registered(found.czxid, adopted=True)
    assert world.version("/broker_epochs/1") == 2


def test_a_registration_of_an_earlier_session_of_this_process_is_replaced(world: World) -> None:
    earlier, node = world.node(), world.node()
    first = earlier.run(register_broker(broker(1), earlier.session_id))
    second = node.run(register_broker(broker(1), node.session_id, {earlier.session_id}))
    assert second.czxid > first.czxid
    found = world.server.tree.get("/brokers/ids/1")
    assert found is not None
    assert found.ephemeral_owner == node.session_id


def test_a_registration_that_another_process_creates_meanwhile_is_not_deleted(world: World) -> None:
    earlier, node, third = world.node(), world.node(), world.node()
    earlier.run(register_broker(broker(1), earlier.session_id))
    flow = register_broker(broker(1), node.session_id, {earlier.session_id})
    wanted = next(flow)
    with pytest.raises(DuplicateBrokerIdError) as caught:
        while True:
            assert isinstance(wanted, Zk)
            answers = node.ask(*wanted.requests)
            if any(isinstance(request, Exists) for request in wanted.requests):
                third.run(register_broker(broker(1), third.session_id, {earlier.session_id}))
            wanted = flow.send(answers)
    assert caught.value.owner_session_id == third.session_id
    found = world.server.tree.get("/brokers/ids/1")
    assert found is not None
    assert found.ephemeral_owner == third.session_id


def test_a_registration_of_a_foreign_session_is_a_duplicate_broker_id(world: World) -> None:
    other, node = world.node(), world.node()
    other.run(register_broker(broker(1), other.session_id))
    with pytest.raises(DuplicateBrokerIdError) as caught:
        node.run(register_broker(broker(1), node.session_id))
    assert caught.value.owner_session_id == other.session_id
    found = world.server.tree.get("/brokers/ids/1")
    assert found is not None
    assert found.ephemeral_owner == other.session_id
    assert world.version("/broker_epochs/1") == 1


def test_a_registration_does_not_outlive_its_session(world: World) -> None:
    node = world.node()
    session_id = node.session_id
    node.link.cut()
    outcome = node.begin(register_broker(broker(1), session_id))
    node.client.disconnect()
    world.server.expire(session_id)
    node.link.heal()
    world.scheduler.run_until(lambda: bool(outcome))
    assert isinstance(outcome[0], SessionLostError)
    assert world.server.tree.get("/brokers/ids/1") is None


def test_registration_works_on_an_empty_ensemble() -> None:
    world = World(0)
    node = world.node()
    node.run(register_broker(broker(7), node.session_id))
    assert znodes.decode_broker("/b", world.data("/brokers/ids/7"), 7).endpoints == broker(7).endpoints


def test_the_cluster_id_is_created_once(world: World) -> None:
    first = world.node().run(get_or_create_cluster_id(random.Random(1)))
    second = world.node().run(get_or_create_cluster_id(random.Random(2)))
    assert first == second
    assert len(first) == 22


def test_producer_id_blocks_never_overlap_even_when_replies_are_lost(world: World) -> None:
    node = world.node()
    blocks = [node.run(claim_producer_id_block(1))]
    node.link.lose_next_reply()
    blocks.append(node.run(claim_producer_id_block(1)))
    outcomes = [world.node().begin(claim_producer_id_block(broker_id)) for broker_id in range(2, 7)]
    world.scheduler.run_until(lambda: all(outcomes))
    blocks += [outcome[0] for outcome in outcomes]
    assert (blocks[0].first, blocks[0].last) == (0, 999)
    firsts = [block.first for block in blocks]
    assert len(set(firsts)) == len(blocks)
    assert all(block.first % 1000 == 0 and block.last == block.first + 999 for block in blocks)


def test_malformed_producer_id_blocks_are_reported_and_not_overwritten(world: World) -> None:
    node = world.node()
    node.ask(SetData(znodes.LATEST_PRODUCER_ID_BLOCK, b"{}"))
    with pytest.raises(MalformedZnodeError):
        node.run(claim_producer_id_block(1))
    assert world.data(znodes.LATEST_PRODUCER_ID_BLOCK) == b"{}"


def test_generated_broker_ids_start_above_the_reserved_ones_and_differ(world: World) -> None:
    node = world.node()
    assert [node.run(generate_broker_id()) for _ in range(3)] == [1001, 1002, 1003]
    node.ask(Delete(znodes.BROKER_SEQUENCE))
    assert node.run(generate_broker_id(5_000)) == 5001


def prepare_state(node: Node, data: bytes | None = None) -> LeaderAndIsr:
    state = LeaderAndIsr(leader=1, leader_epoch=3, isr=(1, 2), zk_version=0, controller_epoch=7)
    node.run(ensure_paths([znodes.partition_path(TP)]))
    node.ask(Create(STATE, data or znodes.encode_partition_state(state, {"elr": [3]})))
    return state


def wanted(state: LeaderAndIsr, *isr: int) -> LeaderAndIsr:
    return LeaderAndIsr(state.leader, state.leader_epoch, isr, state.zk_version, state.controller_epoch)


def test_an_isr_shrink_is_one_conditional_write_that_keeps_foreign_keys(world: World) -> None:
    node = world.node()
    state = prepare_state(node)
    assert node.run(write_isr(TP, wanted(state, 1))) == Written(1)
    read = znodes.decode_partition_state(STATE, world.data(STATE), 1)
    assert (read.leader_and_isr.isr, read.leader_and_isr.leader_epoch) == ((1,), 3)
    assert read.extra == {"elr": [3], "former_members": [2]}


def test_an_isr_write_whose_reply_was_lost_counts_as_written(world: World) -> None:
    node = world.node()
    state = prepare_state(node)
    node.link.lose_next_reply(to=lambda request: isinstance(request, SetData))
    assert node.run(write_isr(TP, wanted(state, 1))) == Written(1)
    assert world.version(STATE) == 1


def test_an_isr_write_against_a_newer_state_returns_that_state_as_conflict(world: World) -> None:
    node = world.node()
    state = prepare_state(node)
    newer = LeaderAndIsr(2, 4, (2,), 1, 8)
    node.ask(SetData(STATE, znodes.encode_partition_state(newer)))
    assert node.run(write_isr(TP, wanted(state, 1))) == Conflict(newer)
    node.ask(Delete(STATE))
    assert node.run(write_isr(TP, wanted(state, 1))) == Conflict(None)


@pytest.mark.parametrize("newer", [LeaderAndIsr(2, 4, (2,), 1, 8), None])
def test_a_change_between_the_read_and_the_write_of_an_isr_is_a_conflict(
    world: World, newer: LeaderAndIsr | None
) -> None:
    node = world.node()
    flow = write_isr(TP, wanted(prepare_state(node), 1))
    reads = node.ask(*next(flow).requests)  # type: ignore[union-attr]
    node.ask(Delete(STATE) if newer is None else SetData(STATE, znodes.encode_partition_state(newer)))
    step = flow.send(reads)
    (response,) = node.ask(*step.requests)  # type: ignore[union-attr]
    assert response.code is (ZkCode.NO_NODE if newer is None else ZkCode.BAD_VERSION)
    step = flow.send([response])
    with pytest.raises(StopIteration) as stop:
        flow.send(node.ask(*step.requests))  # type: ignore[union-attr]
    assert stop.value.value == Conflict(newer)


@pytest.mark.parametrize("exists", [True, False])
def test_an_outdated_read_from_a_lagging_server_is_no_conflict(world: World, exists: bool) -> None:
    node = world.node()
    node.run(ensure_paths([znodes.partition_path(TP)]))
    if exists:
        node.ask(Create(STATE, znodes.encode_partition_state(LeaderAndIsr(2, 2, (1, 2), 0, 7))))
    # The answer of a server that has not applied the leader's election yet.
    late = node.ask(GetData(STATE))
    elected = znodes.encode_partition_state(LeaderAndIsr(1, 3, (1,), 1, 7), {"former_members": [2]})
    if not exists:
        node.ask(Create(STATE, b"{}"))
    node.ask(SetData(STATE, elected))
    flow = write_isr(TP, LeaderAndIsr(1, 3, (1, 2), 1, 7), {})
    step = next(flow)
    assert step == Zk([GetData(STATE)])
    with pytest.raises(StopIteration) as stop:
        step = flow.send(late)
        while True:
            step = flow.send(node.ask(*step.requests))  # type: ignore[union-attr]
    assert stop.value.value == Written(2)
    read = znodes.decode_partition_state(STATE, world.data(STATE), 2)
    assert read.leader_and_isr.isr == (1, 2) and not read.extra


@pytest.mark.parametrize(("leader", "leader_epoch"), [(2, 3), (1, 0)])
def test_a_state_of_the_expected_version_with_another_leadership_is_a_conflict(
    world: World, leader: int, leader_epoch: int
) -> None:
    node = world.node()
    state = prepare_state(node)
    made_anew = LeaderAndIsr(leader, leader_epoch, (leader, 3), 0, 7)
    node.ask(Delete(STATE))
    node.ask(Create(STATE, znodes.encode_partition_state(made_anew)))
    assert node.run(write_isr(TP, wanted(state, 1))) == Conflict(made_anew)
    assert world.version(STATE) == 0


def test_a_registered_joiner_enters_the_isr_in_one_multi(world: World) -> None:
    leader, follower = world.node(), world.node()
    state = prepare_state(leader)
    epoch = follower.run(register_broker(broker(3), follower.session_id)).czxid
    assert leader.run(write_isr(TP, wanted(state, 1, 2, 3), {3: epoch})) == Written(1)


def test_a_joiner_with_another_broker_epoch_is_refused(world: World) -> None:
    leader, follower = world.node(), world.node()
    state = prepare_state(leader)
    epoch = follower.run(register_broker(broker(3), follower.session_id)).czxid
    assert leader.run(write_isr(TP, wanted(state, 1, 3, 4), {3: epoch, 4: 99})) == JoinerEpochStale((4,))
    follower.expire()
    assert leader.run(write_isr(TP, wanted(state, 1, 3), {3: epoch})) == JoinerEpochStale((3,))
    assert world.version(STATE) == 0


def test_a_joiner_that_restarts_between_the_reads_and_the_write_is_refused(world: World) -> None:
    leader, follower = world.node(), world.node()
    state = prepare_state(leader)
    epoch = follower.run(register_broker(broker(3), follower.session_id)).czxid
    flow = write_isr(TP, wanted(state, 1, 2, 3), {3: epoch})
    step = next(flow)
    reads = leader.ask(*step.requests)  # type: ignore[union-attr]
    old_session = follower.session_id
    follower.expire()
    follower.run(register_broker(broker(3), follower.session_id, {old_session}))
    step = flow.send(reads)
    (response,) = leader.ask(*step.requests)  # type: ignore[union-attr]
    assert response.code is ZkCode.BAD_VERSION
    with pytest.raises(StopIteration) as stop:
        flow.send([response])
    assert stop.value.value == JoinerEpochStale((3,))
    assert world.version(STATE) == 0


def test_an_expansion_in_doubt_counts_as_written_although_the_joiner_restarted_later(world: World) -> None:
    leader, follower = world.node(), world.node()
    state = prepare_state(leader)
    epoch = follower.run(register_broker(broker(3), follower.session_id)).czxid
    leader.link.lose_next_reply(to=is_multi)
    outcome = leader.begin(write_isr(TP, wanted(state, 1, 2, 3), {3: epoch}))
    world.scheduler.run_until(lambda: world.version(STATE) == 1)
    world.node().ask(SetData("/broker_epochs/3", b""))
    world.scheduler.run_until(lambda: bool(outcome))
    assert outcome == [Written(1)]


def test_isr_changes_are_propagated_in_few_sequential_nodes(world: World) -> None:
    node = world.node()
    node.run(propagate_isr_change([TP, TopicPartition("t", 3)]))
    node.run(propagate_isr_change(TopicPartition("t", number) for number in range(3_001)))
    children = world.server.tree.children(znodes.ISR_CHANGE_NOTIFICATION)
    assert children == tuple(f"isr_change_{number:010d}" for number in range(3))
    (read,) = node.ask(GetData(f"{znodes.ISR_CHANGE_NOTIFICATION}/{children[0]}"))
    assert znodes.decode_partition_set("/p", read.data) == (TP, TopicPartition("t", 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda node: register_broker(broker(1), node.session_id),
        lambda node: claim_producer_id_block(1),
        lambda node: generate_broker_id(),
        lambda node: get_or_create_cluster_id(random.Random(1)),
        lambda node: ensure_paths(["/a/b"]),
        lambda node: propagate_isr_change([TP]),
        lambda node: write_isr(TP, LeaderAndIsr(1, 1, (1,), 0, 1)),
    ],
)
def test_every_flow_fails_when_its_session_ends(world: World, make: Callable[[Node], Flow[Any]]) -> None:
    node = world.node()
    session_id = node.session_id
    node.link.cut()
    outcome = node.begin(make(node))
    world.server.expire(session_id)
    node.link.heal()
    world.scheduler.run_until(lambda: bool(outcome))
    assert isinstance(outcome[0], SessionLostError)
