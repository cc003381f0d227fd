"""The recipes on the real and the in-memory ZooKeeper, over connections that break before a reply arrives."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.controller.election.controller_election import ControllerElection, Owner, Term
from paceline.coordination import znodes
from paceline.coordination.errors import DuplicateBrokerIdError
from paceline.coordination.flow import Flow, FlowRun
from paceline.coordination.interface import Create, Exists, GetChildren, GetData, Multi, SetData
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
from tests.integration.zookeeper_backends import Backend, Client, MemoryBackend, RealBackend

TP = TopicPartition("orders", 0)
STATE = znodes.partition_state_path(TP)


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.zookeeper)])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made: Backend
    if request.param == "memory":
        made = MemoryBackend()
    else:
        made = RealBackend(request.getfixturevalue("zookeeper_server"), request.getfixturevalue("zookeeper_chroot"))
    run(made, made.client(), ensure_paths(znodes.PERSISTENT_NODES))
    yield made
    made.close()


def begin(backend: Backend, client: Client, flow: Flow[Any]) -> list[Any]:
    outcome: list[Any] = []
    FlowRun(flow, PatientZooKeeper(client.zookeeper), backend.time, outcome.append, outcome.append).start()
    return outcome


def run(backend: Backend, client: Client, flow: Flow[Any]) -> Any:
    outcome = begin(backend, client, flow)
    backend.time.run_until(lambda: bool(outcome))
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def run_and_lose_reply(backend: Backend, client: Client, flow: Flow[Any], path: str, version: int) -> Any:
    """Run a flow; when ``path`` has this version, reset the connection before the reply reaches the client."""
    client.cut(requests=False)
    outcome = begin(backend, client, flow)
    other = backend.clients[0]

    def applied() -> bool:
        stat = backend.ask(other, Exists(path))[0].stat
        return stat is not None and stat.version == version

    backend.time.run_until(applied)
    client.sever()
    client.heal()
    backend.time.run_until(lambda: bool(outcome))
    return outcome[0]


def rest_from(backend: Backend, client: Client, flow: Flow[Any], kind: type[Multi | SetData]) -> Flow[Any]:
    """Run a flow up to its first request of this kind; return the rest of the flow, which begins with this request.

    A flow needs the replies to its reads, so only the rest can run while replies are held back.
    """
    step = next(flow)
    while not any(isinstance(request, kind) for request in step.requests):  # type: ignore[union-attr]
        step = flow.send(backend.ask(client, *step.requests))  # type: ignore[union-attr]

    def rest() -> Flow[Any]:
        responses = yield step
        try:
            while True:
                following = flow.send(responses)
                responses = yield following
        except StopIteration as stop:
            return stop.value

    return rest()


def broker(broker_id: int) -> znodes.BrokerRegistration:
    return znodes.BrokerRegistration(broker_id, (Endpoint("CLIENT", "h", 9092),), 1)


def test_registration_whose_reply_is_lost_is_adopted_and_a_second_process_is_refused(backend: Backend) -> None:
    client, other = backend.client(), backend.client()
    run(backend, client, ensure_paths([znodes.broker_epoch_path(1)]))
    flow = register_broker(broker(1), client.zookeeper.session_id)
    registered = run_and_lose_reply(backend, client, flow, "/brokers/ids/1", 1)
    (node,) = backend.ask(other, GetData("/brokers/ids/1"))
    assert node.stat is not None
    assert registered == Registered(node.stat.czxid, adopted=True)
    with pytest.raises(DuplicateBrokerIdError):
        run(backend, other, register_broker(broker(1), other.zookeeper.session_id))
    (epoch,) = backend.ask(other, Exists("/broker_epochs/1"))
    assert epoch.stat is not None
    assert epoch.stat.version == 1


def election(backend: Backend, client: Client, controller_id: int) -> Flow[Term | Owner]:
    return ControllerElection(controller_id, (), PatientZooKeeper(client.zookeeper), backend.time).elect()


def test_of_two_candidates_one_wins_and_the_watch_of_the_other_fires_when_it_leaves(backend: Backend) -> None:
    first, second = backend.client(), backend.client()
    assert run(backend, first, election(backend, first, 1_000_000)) == Term(1, 1)
    assert run(backend, first, election(backend, first, 1_000_000)) == Owner(1_000_000, is_this_session=True)
    assert run(backend, second, election(backend, second, 1_000_001)) == Owner(1_000_000, is_this_session=False)
    first.expire()
    backend.time.run_until(lambda: bool(second.recorder.watch_events))
    assert run(backend, second, election(backend, second, 1_000_001)) == Term(2, 2)


def test_an_election_whose_reply_is_lost_is_won(backend: Backend) -> None:
    client = backend.client()
    backend.ask(client, Create("/controller_epoch", b"6"))
    rest = rest_from(backend, client, election(backend, client, 1_000_000), Multi)
    assert run_and_lose_reply(backend, client, rest, "/controller", 0) == Term(7, 1)


def test_an_isr_write_whose_reply_is_lost_counts_as_written(backend: Backend) -> None:
    client = backend.client()
    state = LeaderAndIsr(1, 3, (1, 2), 0, 7)
    run(backend, client, ensure_paths([znodes.partition_path(TP)]))
    backend.ask(client, Create(STATE, znodes.encode_partition_state(state)))
    shrunk = LeaderAndIsr(1, 3, (1,), 0, 7)
    rest = rest_from(backend, client, write_isr(TP, shrunk), SetData)
    assert run_and_lose_reply(backend, client, rest, STATE, 1) == Written(1)
    assert run(backend, client, write_isr(TP, LeaderAndIsr(1, 3, (2,), 0, 7))) == Conflict(
        LeaderAndIsr(1, 3, (1,), 1, 7)
    )


def test_a_joiner_that_registered_again_is_refused(backend: Backend) -> None:
    leader, follower = backend.client(), backend.client()
    run(backend, leader, ensure_paths([znodes.partition_path(TP)]))
    backend.ask(leader, Create(STATE, znodes.encode_partition_state(LeaderAndIsr(1, 3, (1,), 0, 7))))
    old_session = follower.zookeeper.session_id
    first = run(backend, follower, register_broker(broker(2), old_session)).czxid
    follower.expire()
    backend.time.run_until(lambda: follower.zookeeper.session_id not in (0, old_session))
    second = run(backend, follower, register_broker(broker(2), follower.zookeeper.session_id, {old_session})).czxid
    grown = LeaderAndIsr(1, 3, (1, 2), 0, 7)
    assert run(backend, leader, write_isr(TP, grown, {2: first})) == JoinerEpochStale((2,))
    assert run(backend, leader, write_isr(TP, grown, {2: second})) == Written(1)


def test_producer_id_blocks_are_assigned_once(backend: Backend) -> None:
    clients = [backend.client() for _ in range(3)]
    outcomes = [begin(backend, client, claim_producer_id_block(number)) for number, client in enumerate(clients)]
    backend.time.run_until(lambda: all(outcomes))
    assert sorted(outcome[0].first for outcome in outcomes) == [0, 1000, 2000]
    assert [run(backend, client, generate_broker_id()) for client in clients] == [1001, 1002, 1003]
    cluster_ids = {run(backend, client, get_or_create_cluster_id(random.Random(7))) for client in clients}
    assert len(cluster_ids) == 1


def test_isr_changes_become_one_sequential_node(backend: Backend) -> None:
    client = backend.client()
    run(backend, client, propagate_isr_change([TP]))
    run(backend, client, propagate_isr_change([TopicPartition("t", 1)]))
    (listed,) = backend.ask(client, GetChildren(znodes.ISR_CHANGE_NOTIFICATION))
    assert listed.children == ("isr_change_0000000000", "isr_change_0000000001")
