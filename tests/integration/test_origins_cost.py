"""Row S1-13: requests and events on a real ZooKeeper after the death of a broker, without and with a controller."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

from paceline.controller.node import ControllerNode
from paceline.coordination import znodes
from paceline.coordination.interface import (
    Create,
    Exists,
    GetData,
    Request,
    Response,
    SessionEvent,
    SetData,
    WatchEvent,
    WatchType,
)
from paceline.coordination.kazoo.client import KazooZooKeeper
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.model.assignment import ReplicaAssignment
from paceline.model.control import Endpoint, LeaderAndIsrRequest
from paceline.model.identifiers import TopicPartition
from paceline.model.settings import ControllerConfig
from paceline.runtime.embedded_zookeeper import EmbeddedZooKeeper
from tests.integration.real_time import PumpedScheduler
from tests.origins.leader_election import LeaderNode, may_lead
from tests.support.no_standbys import NoStandbyTransport
from tests.unit.controller.cluster import CONTROLLER_ID, FakeBrokers

pytestmark = pytest.mark.zookeeper

PARTITIONS = 50
ASSIGNED = (1, 2, 3)
SESSION_TIMEOUT_MS = 30_000


class CountedZooKeeper(KazooZooKeeper):
    """A ZooKeeper client that counts its requests and the watch events that it receives."""

    def __init__(self, address: str, scheduler: PumpedScheduler) -> None:
        super().__init__(address, SESSION_TIMEOUT_MS, scheduler.post)
        self.requests: Counter[str] = Counter()
        self.events = 0

    def start(self, on_session: Callable[[SessionEvent], None], on_watch: Callable[[WatchEvent], None]) -> None:
        def counted(event: WatchEvent) -> None:
            self.events += 1
            on_watch(event)

        super().start(on_session, counted)

    def submit(self, requests: Sequence[Request], on_done: Callable[[list[Response]], None]) -> None:
        for request in requests:
            self.requests[type(request).__name__] += 1
        super().submit(requests, on_done)

    def reset(self) -> None:
        """Restart the counts at zero."""
        self.requests.clear()
        self.events = 0


class Ensemble:
    """A real server, a client for the test itself, and clients with counters for the brokers and the controller."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.time = PumpedScheduler()
        self._clients: list[CountedZooKeeper] = []
        self.tool = self.started()

    def client(self) -> CountedZooKeeper:
        """Return a client that has not connected yet."""
        client = CountedZooKeeper(self._address, self.time)
        self._clients.append(client)
        return client

    def started(self, on_watch: Callable[[WatchEvent], None] = lambda _event: None) -> CountedZooKeeper:
        """Return a connected client."""
        client = self.client()
        client.start(lambda _event: None, on_watch)
        self.time.run_until(lambda: client.connected)
        return client

    def ask(self, client: CountedZooKeeper, *requests: Request) -> list[Response]:
        """Send requests with the test's client and return the responses."""
        answers: list[Response] = []
        client.submit(requests, answers.extend)
        self.time.run_until(lambda: len(answers) == len(requests))
        return answers

    def create(self, *paths: str) -> None:
        """Create nodes and their missing parents."""
        steps = [step for path in paths for step in (*znodes.parent_paths(path), path)]
        self.ask(self.tool, *(Create(step) for step in dict.fromkeys(steps)))

    def close(self) -> None:
        """End every session."""
        for client in self._clients:
            client.close()


@pytest.fixture
def ensemble(zookeeper_server: EmbeddedZooKeeper, zookeeper_chroot: str) -> Iterator[Ensemble]:
    made = Ensemble(zookeeper_chroot)
    yield made
    made.close()


class SelfElectingReplica:
    """A broker of the leader-driven design: it watches every leader node and re-creates a deleted one."""

    def __init__(self, ensemble: Ensemble, broker_id: int) -> None:
        self.broker_id = broker_id
        self.zookeeper = ensemble.started(self._vacant)
        self.leads: set[str] = set()
        self.follows: set[str] = set()

    def _vacant(self, event: WatchEvent) -> None:
        if event.type is WatchType.DELETED:
            partition = event.path.removesuffix("/leader")
            self.zookeeper.submit([GetData(f"{partition}/ISR")], lambda answers: self._stand(partition, answers))

    def _stand(self, partition: str, answers: list[Response]) -> None:
        isr = tuple(int(member) for member in (answers[0].data or b"").split(b","))
        if may_lead(self.broker_id, ASSIGNED, isr, (2, 3)):
            leader = Create(f"{partition}/leader", LeaderNode(self.broker_id, 1).encode(), ephemeral=True)
            self.zookeeper.submit([leader], lambda answers: self._won_or_lost(partition, answers[0].ok))

    def _won_or_lost(self, partition: str, won: bool) -> None:
        if won:
            self.zookeeper.submit([GetData(f"{partition}/ISR")], lambda answers: self._shrink(partition, answers))
        else:
            watch = Exists(f"{partition}/leader", watch=True)
            self.zookeeper.submit([watch], lambda _answers: self.follows.add(partition))

    def _shrink(self, partition: str, answers: list[Response]) -> None:
        members = [member for member in (answers[0].data or b"").split(b",") if member != b"1"]
        isr = SetData(f"{partition}/ISR", b",".join(members))
        self.zookeeper.submit([isr], lambda _answers: self.leads.add(partition))


@pytest.mark.origin("S1-13")
def test_the_leader_driven_design_pays_seven_requests_and_two_events_for_each_partition(
    ensemble: Ensemble, record_property: Callable[[str, object], None]
) -> None:
    partitions = [f"/p{number}" for number in range(PARTITIONS)]
    dead = ensemble.started()
    ensemble.ask(ensemble.tool, *(Create(partition) for partition in partitions))
    ensemble.ask(ensemble.tool, *(Create(f"{partition}/ISR", b"1,2,3") for partition in partitions))
    ensemble.ask(dead, *(Create(f"{p}/leader", LeaderNode(1, 0).encode(), ephemeral=True) for p in partitions))
    replicas = [SelfElectingReplica(ensemble, broker_id) for broker_id in (2, 3)]
    for replica in replicas:
        ensemble.ask(replica.zookeeper, *(Exists(f"{partition}/leader", watch=True) for partition in partitions))
        replica.zookeeper.reset()
    dead.close()
    ensemble.time.run_until(lambda: all(len(r.leads | r.follows) == PARTITIONS for r in replicas))
    assert sorted(p for replica in replicas for p in replica.leads) == sorted(partitions), (
        "each partition has one leader"
    )
    # Read the result from the server: the nodes that exist, and the number of writes of each.
    isrs = ensemble.ask(ensemble.tool, *(GetData(f"{partition}/ISR") for partition in partitions))
    assert {(node.data, node.stat.version if node.stat else None) for node in isrs} == {(b"2,3", 1)}
    sent = replicas[0].zookeeper.requests + replicas[1].zookeeper.requests
    assert sent == {
        "GetData": 3 * PARTITIONS,
        "Create": 2 * PARTITIONS,
        "SetData": PARTITIONS,
        "Exists": PARTITIONS,
    }
    events = sum(replica.zookeeper.events for replica in replicas)
    assert events == 2 * PARTITIONS, "both live brokers receive an event for each deleted node"
    record_property(f"leader-driven, {PARTITIONS} partitions: ZooKeeper requests", sent.total())
    record_property(f"leader-driven, {PARTITIONS} partitions: watch events", events)


@pytest.mark.origin("S1-13")
def test_the_controller_pays_the_same_few_requests_for_all_partitions_together(
    ensemble: Ensemble, record_property: Callable[[str, object], None]
) -> None:
    ensemble.create(*znodes.PERSISTENT_NODES)
    registered = {}
    for broker_id in ASSIGNED:
        registered[broker_id] = ensemble.started()
        endpoint = Endpoint("CONTROL", f"b{broker_id}", 9094)
        registration = znodes.BrokerRegistration(broker_id, (endpoint,), ensemble.time.wall_ms(), None, False)
        node = Create(znodes.broker_path(broker_id), znodes.encode_broker(registration), ephemeral=True)
        (created,) = ensemble.ask(registered[broker_id], node)
        assert created.ok
    assignment = {number: ReplicaAssignment(ASSIGNED) for number in range(PARTITIONS)}
    topic = znodes.encode_topic_assignment(znodes.TopicAssignment(assignment, f"{'a':_<22}"))
    ensemble.ask(ensemble.tool, Create(znodes.topic_path("a"), topic))
    zookeeper = ensemble.client()
    brokers = FakeBrokers(ensemble.time)
    controller = ControllerNode(
        ControllerConfig(CONTROLLER_ID, auto_leader_rebalance_enable=False, controller_broker_lease_ms=0),
        [Endpoint("CLIENT", "c", 9082), Endpoint("CONTROL", "c", 9084)],
        ensemble.time,
        PatientZooKeeper(zookeeper),
        brokers,
        random.Random(1),
        lambda _change: None,
        standby_transport=NoStandbyTransport(),
    )
    controller.start()
    told_by = 0

    def all_led(leader: int) -> bool:
        """Whether the live followers were sent this leader for every partition, and no request is in flight."""
        led: dict[int, set[TopicPartition]] = {2: set(), 3: set()}
        for broker_id, request in brokers.received[told_by:]:
            if broker_id in led and isinstance(request, LeaderAndIsrRequest):
                led[broker_id].update(p.topic_partition for p in request.partitions if p.leader == leader)
        return all(len(found) == PARTITIONS for found in led.values()) and controller.is_idle

    ensemble.time.run_until(lambda: all_led(1))
    ensemble.time.run_for(500)  # What follows the start, such as the first metadata, is not part of the count.
    zookeeper.reset()
    told_by = len(brokers.received)
    registered[1].close()
    ensemble.time.run_until(lambda: all_led(2))
    ensemble.time.run_for(500)
    paths = [znodes.partition_state_path(TopicPartition("a", number)) for number in range(PARTITIONS)]
    for path, node in zip(paths, ensemble.ask(ensemble.tool, *(GetData(path) for path in paths)), strict=True):
        assert node.stat is not None and node.stat.version == 1, "each state was written once"
        state = znodes.decode_partition_state(path, node.data, 1).leader_and_isr
        assert (state.leader, state.isr) == (2, (2, 3))
    messages = Counter(broker_id for broker_id, _ in brokers.received[told_by:])
    assert zookeeper.events == 2, "one for the registration of broker 1, one for the list of registrations"
    assert zookeeper.requests["Multi"] == 1, "one multi has all elections"
    assert zookeeper.requests.total() <= 8
    assert messages.keys() == {2, 3} and max(messages.values()) <= 4, "a few LeaderAndIsr and UpdateMetadata per broker"
    record_property(f"controller, {PARTITIONS} partitions: ZooKeeper requests", zookeeper.requests.total())
    record_property(f"controller, {PARTITIONS} partitions: watch events", zookeeper.events)
    record_property(f"controller, {PARTITIONS} partitions: messages to brokers", messages.total())
    controller.stop()
