"""An admin client: creates, deletes and reassigns topics, and retries until the cluster has the wanted state."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.controller.admin.admin_requests import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    IncrementalAlterConfigs,
)
from paceline.controller.admin.admin_values import (
    ConfigAlteration,
    ConfigKeyChange,
    ConfigOperation,
    ConfigResource,
    ElectionType,
    ResourceType,
)
from paceline.model.admin import NewPartitions, NewTopic
from paceline.model.client_io import (
    DeleteRecordsQuery,
    DeleteRecordsResult,
    FetchRequest,
    FetchResponse,
)
from paceline.model.errors import NotControllerError
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition
from paceline.model.log_dirs import ReplicaLogDir
from tests.simulation.clients import Client
from tests.support.reassignments import start_reassignments

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster
    from tests.simulation.machines import ControllerLife

_RETRY_MS = 250
_TIMEOUT_MS = 2_000


class Admin(Client):
    """The operator that administers topics through the API."""

    def __init__(self, cluster: "SimulatedCluster") -> None:
        super().__init__(cluster, "admin")
        self.wanted: dict[str, int] = {}
        """Topics that must exist, with their number of partitions."""
        self._doomed: dict[str, None] = {}
        """Ids of topics that must be deleted."""

    @property
    def is_done(self) -> bool:
        """Whether the cluster has the wanted topics."""
        topic_ids = self.cluster.checks.records.topic_ids
        return not self._doomed and all(topic in topic_ids for topic in self.wanted)

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic; retry until it exists."""
        self.wanted[topic] = partitions
        self._create(topic)

    def recreate(self, topic: str) -> None:
        """Delete a topic and create another topic with the same name."""
        topic_id = self.cluster.checks.records.topic_ids.get(topic)
        if topic_id is None or topic_id in self._doomed:
            return
        self._doomed[topic_id] = None
        self.wanted[topic] = max(1, self.cluster.checks.records.partitions_of(topic))
        self.cluster.checks.topic_doomed(topic)
        self._delete(topic, topic_id)

    def reassign(self, topic_partition: TopicPartition, replicas: tuple[int, ...] | None) -> None:
        """Send one request to reassign a partition; None cancels."""
        self._ask(
            lambda life, reply: start_reassignments(life.node, {topic_partition: replicas}, reply),
            self._told(f"moving {topic_partition} to {replicas}"),
        )

    def grow(self, topic: str, partitions: int) -> None:
        """Send one request to increase the number of partitions of a topic."""
        new = [NewPartitions(topic, partitions)]
        self._ask(
            lambda life, reply: life.node.ask(CreatePartitions(tuple(new), _TIMEOUT_MS, False, reply=reply)),
            self._told(f"growing {topic} to {partitions}"),
        )

    def elect(self, election: ElectionType, topic_partitions: list[TopicPartition] | None) -> None:
        """Send one request for elections; None means all partitions that need an election."""
        self._ask(
            lambda life, reply: life.node.ask(
                ElectLeaders(
                    election,
                    None if topic_partitions is None else tuple(topic_partitions),
                    _TIMEOUT_MS,
                    False,
                    reply=reply,
                )
            ),
            self._told(f"{election.name} election of {topic_partitions}"),
        )

    def configure(self, topic: str, overrides: dict[str, str]) -> None:
        """Send one request to change the settings of a topic."""
        changes = tuple(ConfigKeyChange(key, ConfigOperation.SET, value) for key, value in sorted(overrides.items()))
        alteration = ConfigAlteration(ConfigResource(ResourceType.TOPIC, topic), changes)
        self._ask(
            lambda life, reply: life.node.ask(IncrementalAlterConfigs((alteration,), False, reply=reply)),
            self._told(f"configuring {topic} {overrides}"),
        )

    def delete_records(self, query: DeleteRecordsQuery, broker_id: int) -> None:
        """Send one DeleteRecords request to a broker; after its success, fetch below the offset."""
        name = f"broker-{broker_id}"
        checks = self.cluster.checks

        def handle(reply: Callable[[list[DeleteRecordsResult]], None]) -> None:
            life = self.cluster.broker_named(name)
            if life is None:
                return
            offset = checks.deletion_asked(life, query)
            refused: list[bool] = []

            def answer(results: list[DeleteRecordsResult]) -> None:
                refused.append(results[0].failure is not None)
                if not refused[0]:
                    checks.deletion_taken(life, query, offset)
                checks.deletion_answered(life, query, offset, results[0])
                reply(results)

            # Without contact the leader deletes nothing before it can prove its leadership.
            is_handled_at_once = life.node.replica_manager.hosted.in_contact()
            life.node.proved_calls.delete_records([query], _TIMEOUT_MS, answer)
            if is_handled_at_once and True not in refused:
                checks.deletion_taken(life, query, offset)

        def answered(answer: Any) -> None:
            self.cluster.note(self.name, f"deleting records below {query.before_offset}: {answer}"[:240])
            if not isinstance(answer, Exception) and answer[0].low_watermark > 0:
                self._read(query, answer[0].low_watermark - 1, name)

        self.cluster.network.call(self.peer, name, handle, _TIMEOUT_MS + 500, answered)

    def move_replica(self, topic_partition: TopicPartition, broker_id: int, path: str) -> None:
        """Ask a broker to move its replica to a log directory."""
        name = f"broker-{broker_id}"

        def handle(reply: Callable[[object], None]) -> None:
            life = self.cluster.broker_named(name)
            if life is not None:
                reply(life.node.alter_replica_log_dirs([ReplicaLogDir(topic_partition, path)]))

        what = f"moving {topic_partition} on {name} to {path}"
        self.cluster.network.call(self.peer, name, handle, _TIMEOUT_MS, self._told(what))

    def _read(self, query: DeleteRecordsQuery, position: int, name: str) -> None:
        """Fetch at a deleted offset."""
        partitions = [FetchPosition(query.topic_partition, query.topic_id, position, 1_000)]
        request = FetchRequest(0, 1, 1_000, partitions)

        def handle(reply: Callable[[FetchResponse], None]) -> None:
            life = self.cluster.broker_named(name)
            if life is None:
                return

            def answer(response: FetchResponse) -> None:
                assert query.topic_id is not None
                for result in response.results:
                    self.cluster.checks.read_below_start(life, query.topic_id, position, result)
                reply(response)

            life.node.fetch(request, answer)

        self.cluster.network.call(self.peer, name, handle, _TIMEOUT_MS, lambda _answer: None)

    def _told(self, what: str) -> Callable[[object], None]:
        return lambda answer: self.cluster.note(self.name, f"{what}: {answer}"[:240])

    def _create(self, topic: str) -> None:
        if topic in self.cluster.checks.records.topic_ids:
            return
        profile = self.cluster.profile
        configs = {"cleanup.policy": "delete"} if profile.compacts_by_default else {}
        new = NewTopic(topic, self.wanted[topic], profile.replication_factor, configs=configs)

        def done(answer: object) -> None:
            self.cluster.note(self.name, f"creating {topic}: {answer!r}"[:160])
            self.scheduler.call_later(_RETRY_MS, lambda: self._create(topic))

        self._ask(lambda life, reply: life.node.ask(CreateTopics((new,), _TIMEOUT_MS, False, reply=reply)), done)

    def _delete(self, topic: str, topic_id: str) -> None:
        topic_ids = self.cluster.checks.records.topic_ids
        if topic_ids.get(topic) != topic_id:
            self._doomed.pop(topic_id, None)
            self._create(topic)
            return

        def done(answer: object) -> None:
            self.cluster.note(self.name, f"deleting {topic}: {answer!r}"[:160])
            self.scheduler.call_later(_RETRY_MS, lambda: self._delete(topic, topic_id))

        def ask(life: "ControllerLife", reply: Callable[[Any], None]) -> None:
            # The request has only the topic's name: a delayed copy deletes a later topic with that name.
            if topic not in topic_ids:
                # The controller could also keep the copy until that topic exists, and the admin would not know.
                reply("the topic does not exist any more")
                return
            if topic_ids[topic] != topic_id:
                self.recreate(topic)
            life.node.ask(DeleteTopics((topic,), _TIMEOUT_MS, reply=reply))

        self._ask(ask, done)

    def _ask(
        self,
        ask: "Callable[[ControllerLife, Callable[[Any], None]], None]",
        done: Callable[[Any], None],
    ) -> None:
        name = f"controller-{self.chance.choice(self.cluster.profile.controller_ids)}"

        def handle(reply: Callable[[Any], None]) -> None:
            life = self.cluster.controller_named(name)
            if life is not None:
                ask(life, reply)

        def answered(answer: Any) -> None:
            if isinstance(answer, NotControllerError):
                self.scheduler.call_later(20, lambda: self._ask(ask, done))
            else:
                done(answer)

        self.cluster.network.call(self.peer, name, handle, _TIMEOUT_MS + 500, answered)
