"""Real controllers over real broker cores, in one thread: what one side decides, the other carries out."""

import random
from collections.abc import Callable, Iterable

from paceline.broker.control.request_fence import ControlRequestDeferredError
from paceline.controller.admin.admin_requests import CreateTopics
from paceline.controller.node import ControllerNode
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.model.admin import NewTopic, PartitionDescription
from paceline.model.client_io import RequiredAcks
from paceline.model.control import ControlRequest, ControlResponse, Endpoint, LiveBroker
from paceline.model.errors import PacelineError, error_for
from paceline.model.identifiers import TopicPartition
from paceline.model.settings import ControllerConfig
from paceline.model.state_change import StateChange
from tests.support.broker_cluster import CONTROLLER_ID, BrokerCluster, BrokerUnderTest
from tests.support.no_standbys import NoStandbyTransport
from tests.support.reassignments import start_reassignments
from tests.support.zookeeper.client import Link, MemoryZooKeeper

SESSION_TIMEOUT_MS = 6_000


class DirectControl:
    """Delivers control requests from one controller to broker cores that are up and not hidden."""

    def __init__(self, cluster: "WholeCluster") -> None:
        self._cluster = cluster
        self.sent: list[tuple[int, ControlRequest]] = []
        self.answers: list[tuple[int, ControlRequest, ControlResponse]] = []
        self.hidden: set[int] = set()

    def send(
        self,
        broker: LiveBroker,
        request: ControlRequest,
        timeout_ms: int,
        on_done: Callable[[ControlResponse | Exception], None],
    ) -> None:
        time = self._cluster.time

        def arrive(may_wait: bool = True) -> None:
            known = self._cluster.brokers.get(broker.broker_id)
            if known is None or not known.up or broker.broker_id in self.hidden:
                time.call_later(timeout_ms, lambda: on_done(ConnectionError("nobody answers")))
                return
            if may_wait:
                self.sent.append((broker.broker_id, request))
            try:
                response = known.node.handle_control(request)
            except PacelineError as error:
                if may_wait and isinstance(error, ControlRequestDeferredError):
                    known.node.when_epochs_read(lambda: arrive(may_wait=False))
                    return
                refusal = error
                time.call_later(1, lambda: on_done(refusal))
                return
            self.answers.append((broker.broker_id, request, response))
            time.call_later(1, lambda: on_done(response))

        time.call_later(1, arrive)

    def close(self, broker_id: int) -> None:
        pass


class WholeCluster(BrokerCluster):
    """Brokers, and controllers that govern them; the first is active when the constructor returns."""

    def __init__(self, broker_ids: Iterable[int] = (1, 2, 3), controllers: int = 1, **config: object) -> None:
        super().__init__(broker_ids, None, zookeeper_session_timeout_ms=SESSION_TIMEOUT_MS, **config)
        self.controllers: list[ControllerNode] = []
        self.controls: list[DirectControl] = []
        self.controller_clients: list[MemoryZooKeeper] = []
        self.state_changes: list[StateChange] = []
        self._controllers_started = 0
        for _ in range(controllers):
            self.start_controller()

    def start_controller(self, link: Link | None = None) -> ControllerNode:
        """Start one more controller and wait until a controller is active."""
        controller_id = CONTROLLER_ID + self._controllers_started
        self._controllers_started += 1
        client = MemoryZooKeeper(self.server, self.time, session_timeout_ms=SESSION_TIMEOUT_MS, link=link)
        control = DirectControl(self)
        node = ControllerNode(
            ControllerConfig(controller_id, auto_leader_rebalance_enable=False),
            [Endpoint("CONTROL", f"c{controller_id}", 9084)],
            self.time,
            PatientZooKeeper(client),
            control,
            random.Random(controller_id),
            self.state_changes.append,
            standby_transport=NoStandbyTransport(),
        )
        self.controllers.append(node)
        self.controls.append(control)
        self.controller_clients.append(client)
        node.start()
        self.time.run_until(lambda: any(one.is_active and one.is_idle for one in self.controllers), 20_000)
        return node

    @property
    def controller(self) -> ControllerNode:
        """The active controller."""
        (active,) = [node for node in self.controllers if node.is_active]
        return active

    def kill_controller(self, index: int) -> None:
        """Let a controller die with its process; its session ends by its timeout."""
        self.controller_clients[index].crash()
        self.controllers.pop(index).stop()
        self.controls.pop(index)
        self.controller_clients.pop(index)

    def kill(self, broker_id: int, at_once: bool = True) -> None:
        """Crash a broker; ``at_once`` ends its session too."""
        session_id = self.brokers[broker_id].zookeeper.session_id
        self.brokers[broker_id].crash()
        if at_once:
            self.server.expire(session_id)

    def create(self, topic: str, *assignments: tuple[int, ...]) -> None:
        """Create a topic and wait until its leaders lead."""
        answers: list[object] = []
        self.controller.ask(
            CreateTopics((NewTopic(topic, assignments=assignments),), 5_000, False, reply=answers.append)
        )
        self.time.run_until(lambda: bool(answers), 6_000)
        (results,) = answers
        assert isinstance(results, list) and results[0].error is None, results

    def reassign(self, tp: TopicPartition, *target: int) -> None:
        """Submit a reassignment."""
        answers: list[object] = []
        start_reassignments(self.controller, {tp: target}, answers.append)
        self.time.run_until(lambda: bool(answers), 2_000)
        (results,) = answers
        assert isinstance(results, list) and results[0].error is None, results

    def partition_of(self, tp: TopicPartition) -> PartitionDescription:
        """The partition as the controller knows it."""
        (topic,) = self.controller.describe_topics([tp.topic])
        return topic.partitions[tp.partition]

    def leader(self, tp: TopicPartition) -> BrokerUnderTest | None:
        """The broker that leads according to the controller, if it is up."""
        leader = self.partition_of(tp).leader
        broker = self.brokers.get(-1 if leader is None else leader)
        return broker if broker is not None and broker.up else None

    def write(self, tp: TopicPartition, value: bytes, max_ms: int = 20_000) -> None:
        """Write one record with acks=all as a client would: to the leader, with retries after retriable errors."""
        deadline_ms = self.time.now_ms() + max_ms
        while self.time.now_ms() < deadline_ms:
            leader = self.leader(tp)
            if leader is not None:
                answer = leader.produce(value, tp=tp, acks=RequiredAcks.ALL, timeout_ms=2_000)
                self.time.run_until(lambda got=answer: bool(got), 3_000)  # type: ignore[misc]
                failure = answer[0].failure
                if failure is None:
                    return
                assert error_for(failure.code, failure.message).retriable, failure
            self.time.run_for(20)
        raise AssertionError(f"{value!r} was not taken within {max_ms} ms")
