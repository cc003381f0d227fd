"""An operator with a ZooKeeper shell: requests reassignments, elections, topics and settings by writing nodes.

What Kafka's own tools did before there was an API for it. The session is a healthy one of its own.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.coordination import znodes
from paceline.coordination.interface import Create, Delete, Request, Response, SessionEvent, SessionState, SetData
from paceline.model.assignment import ReplicaAssignment
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
"""What nobody who reads Kafka's nodes can make sense of."""


class Operator:
    """One shell, connected as long as the run lasts."""

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self.cluster = cluster
        self._scheduler = NodeScheduler(
            cluster.world, Skew(), lambda error: cluster.checks.unexpected("operator", error), "operator"
        )
        self._zookeeper = MemoryZooKeeper(cluster.server, self._scheduler, session_timeout_ms=20_000)
        self._started = False
        self._throttled: dict[int, None] = {}

    def exists(self, path: str) -> bool:
        """Whether a node is there now."""
        return self.cluster.server.tree.get(path) is not None

    def move(self, targets: dict[TopicPartition, tuple[int, ...]]) -> None:
        """Ask for moves as kafka-reassign-partitions once did."""
        self._write(Create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(targets)))

    def elect_preferred(self, topic_partitions: list[TopicPartition]) -> None:
        """Ask for leaders to go home as kafka-preferred-replica-election did."""
        self._write(Create(znodes.PREFERRED_REPLICA_ELECTION, znodes.encode_partition_set(topic_partitions)))

    def create_topic(self, topic: str, placement: dict[int, tuple[int, ...]], topic_id: str | None) -> None:
        """Write a topic's node, with an id or as it was before topics had one."""
        partitions = {number: ReplicaAssignment(replicas) for number, replicas in placement.items()}
        node = znodes.TopicAssignment(partitions, topic_id, 3 if topic_id else 1)
        self._write(Create(znodes.topic_path(topic), znodes.encode_topic_assignment(node)))

    def mark_for_deletion(self, topic: str) -> None:
        """Ask for a topic to go."""
        self._write(Create(znodes.delete_topic_path(topic), None))

    def configure(self, topic: str, overrides: dict[str, str]) -> None:
        """Replace a topic's settings and announce it, in two steps as Kafka's tool does."""
        path, data = znodes.topic_config_path(topic), znodes.encode_config(overrides)
        self._write(Create(path, data))
        self._write(SetData(path, data))
        self._write(Create(znodes.CONFIG_CHANGE_PREFIX, _changed(f"topics/{topic}"), sequential=True))

    def throttle(self, broker_id: int, bytes_per_second: int | None) -> None:
        """Set a broker's replication throttles, or lift them with None."""
        self._throttled[broker_id] = None
        keys = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
        overrides = {} if bytes_per_second is None else dict.fromkeys(keys, str(bytes_per_second))
        path, data = znodes.broker_config_path(broker_id), znodes.encode_config(overrides)
        self._write(Create(path, data))
        self._write(SetData(path, data))
        self._write(Create(znodes.CONFIG_CHANGE_PREFIX, _changed(f"brokers/{broker_id}"), sequential=True))

    def lift_throttles(self) -> None:
        """Let replication run freely everywhere."""
        for broker_id in self._throttled:
            self.throttle(broker_id, None)

    def spoil(self, path: str, data: bytes, sequential: bool = False) -> None:
        """Leave foreign data in a node, there already or not."""
        self._write(Create(path, data, sequential=sequential))
        if not sequential:
            self._write(SetData(path, data))

    def evict_controller(self) -> None:
        """Have another controller elected, the way Kafka's operators do it."""
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
