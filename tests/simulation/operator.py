"""An operator with a ZooKeeper shell: writes the nodes that Kafka's old tools wrote.

It requests reassignments, elections, topics and settings over its own session, which has no faults.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.coordination import znodes
from paceline.coordination.interface import Create, Delete, Request, Response, SessionEvent, SessionState, SetData
from paceline.model.assignment import ReplicaAssignment
from paceline.model.broker_dynamic_config import ALTER_LOG_DIRS_RATE, REPLICATION_RATES
from paceline.model.identifiers import TopicPartition
from tests.simulation.world import NodeScheduler, Skew
from tests.support.zookeeper.client import MemoryZooKeeper

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster

FOREIGN = (
    b"",
    b"{",
    b"[]",
    b'"partitions"',
    b'{"version":1}',
    b'{"version":99,"partitions":{"0":[1]}}',
    b'{"version":1,"partitions":{"0":"1"}}',
    b'{"version":1,"partitions":{"-1":[1]}}',
    b'{"version":1,"partitions":{"0":[]}}',
    b'{"version":1,"partitions":[{"topic":"../..","partition":0,"replicas":[1]}]}',
    b"\xff\xfe\x00",
)
"""Data that no reader of Kafka's nodes can parse."""


class Operator:
    """A shell that stays connected during the run."""

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self.cluster = cluster
        self._scheduler = NodeScheduler(
            cluster.world, Skew(), lambda error: cluster.checks.unexpected("operator", error), "operator"
        )
        self._zookeeper = MemoryZooKeeper(cluster.server, self._scheduler, session_timeout_ms=20_000)
        self._started = False
        self._throttled: dict[int, dict[str, str]] = {}

    def exists(self, path: str) -> bool:
        """Whether a node exists now."""
        return self.cluster.server.tree.get(path) is not None

    def move(self, targets: dict[TopicPartition, tuple[int, ...]]) -> None:
        """Request reassignments as the old kafka-reassign-partitions did."""
        self._write(Create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(targets)))

    def elect_preferred(self, topic_partitions: list[TopicPartition]) -> None:
        """Request elections as the old kafka-preferred-replica-election did."""
        self._write(Create(znodes.PREFERRED_REPLICA_ELECTION, znodes.encode_partition_set(topic_partitions)))

    def create_topic(self, topic: str, placement: dict[int, tuple[int, ...]], topic_id: str | None) -> None:
        """Write a topic's node, with or without a topic id."""
        partitions = {number: ReplicaAssignment(replicas) for number, replicas in placement.items()}
        node = znodes.TopicAssignment(partitions, topic_id, 3 if topic_id else 1)
        self._write(Create(znodes.topic_path(topic), znodes.encode_topic_assignment(node)))

    def mark_for_deletion(self, topic: str) -> None:
        """Mark a topic for deletion."""
        self._write(Create(znodes.delete_topic_path(topic), None))

    def configure(self, topic: str, overrides: dict[str, str]) -> None:
        """Replace a topic's settings and write the notification, in two steps as Kafka's tool does."""
        path, data = znodes.topic_config_path(topic), znodes.encode_config(overrides)
        self._write(Create(path, data))
        self._write(SetData(path, data))
        self._write(Create(znodes.CONFIG_CHANGE_PREFIX, _changed(f"topics/{topic}"), sequential=True))

    def throttle(self, broker_id: int, bytes_per_second: int | None) -> None:
        """Set a broker's replication throttles; None removes them."""
        self._throttle(broker_id, REPLICATION_RATES, bytes_per_second)

    def throttle_moves(self, broker_id: int, bytes_per_second: int) -> None:
        """Set the throttle of a broker for moves between its log directories."""
        self._throttle(broker_id, (ALTER_LOG_DIRS_RATE,), bytes_per_second)

    def _throttle(self, broker_id: int, keys: tuple[str, ...], bytes_per_second: int | None) -> None:
        overrides = self._throttled.setdefault(broker_id, {})
        if bytes_per_second is None:
            overrides.clear()
        else:
            overrides.update(dict.fromkeys(keys, str(bytes_per_second)))
        path, data = znodes.broker_config_path(broker_id), znodes.encode_config(overrides)
        self._write(Create(path, data))
        self._write(SetData(path, data))
        self._write(Create(znodes.CONFIG_CHANGE_PREFIX, _changed(f"brokers/{broker_id}"), sequential=True))

    def lift_throttles(self) -> None:
        """Remove all throttles."""
        for broker_id in self._throttled:
            self.throttle(broker_id, None)

    def spoil(self, path: str, data: bytes, sequential: bool = False) -> None:
        """Write data to a node, which is created if it does not exist."""
        self._write(Create(path, data, sequential=sequential))
        if not sequential:
            self._write(SetData(path, data))

    def evict_controller(self) -> None:
        """Delete ``/controller``, with which Kafka's operators force the election of another controller."""
        self._write(Delete(znodes.CONTROLLER))

    def _write(self, request: Request) -> None:
        if not self._started:
            self._started = True
            self._zookeeper.start(self._session_changed, lambda _event: None)
        self._zookeeper.submit([request], self._told(request))

    def _told(self, request: Request) -> Callable[[list[Response]], None]:
        def told(responses: list[Response]) -> None:
            self.cluster.note("operator", f"{request}: {responses[0].code.name}"[:200])

        return told

    def _session_changed(self, event: SessionEvent) -> None:
        if event.state is SessionState.CONNECTED:
            self.cluster.checks.zookeeper.operators[event.session_id] = None


def _changed(entity: str) -> bytes:
    return znodes.encode_config_change(entity)
