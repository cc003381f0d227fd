"""Serve CreateTopics and DeleteTopics: write the nodes, and answer when the brokers have applied the change.

Source: docs/protocol/controller.md#answer-after-acknowledgement; docs/protocol/zookeeper.md#creating-a-topic.
"""

import random
from collections.abc import Callable, Iterable, Sequence

from paceline.controller.context import ControllerContext
from paceline.controller.errors import UnexpectedResponseError
from paceline.controller.events import CreateTopics, DeleteTopics
from paceline.controller.topics.topic_validation import CreateTopicResult, DeleteTopicResult, NewTopic, TopicValidator
from paceline.controller.zk_store import Storage, first_failure, send
from paceline.coordination import znodes
from paceline.coordination.flow import Flow
from paceline.coordination.interface import Create, Exists, Multi, SetData, ZkCode
from paceline.model.assignment import ReplicaAssignment
from paceline.model.errors import (
    InvalidPartitionsError,
    PacelineError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    TopicDeletionDisabledError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition, new_id
from paceline.model.scheduler import Scheduler
from paceline.model.settings import ControllerConfig

MAX_TOPIC_NODE_BYTES = 1_000_000
"""Maximum size of a topic's node, below ZooKeeper's ``jute.maxbuffer`` of 1 MiB."""

CREATE_ATTEMPTS = 3
DEFAULT_TIMEOUT_MS = 30_000


class _Waiting:
    """A request with topics that are not complete; answers once, at the latest at its deadline."""

    def __init__(self, names: Sequence[str], answer: Callable[["_Waiting"], None]) -> None:
        self.names = names
        self.errors: dict[str, PacelineError] = {}
        self.open = set(names)
        self.answered = False
        self._answer = answer

    def done(self, name: str, error: PacelineError | None = None) -> None:
        """Store the result of one topic."""
        if name not in self.open:
            return
        self.open.discard(name)
        if error is not None:
            self.errors[name] = error
        self.finish_if_done()

    def give_up(self, error: PacelineError) -> None:
        """Set an error as result of all other topics."""
        for name in sorted(self.open):
            self.errors[name] = error
        self.open.clear()
        self.finish_if_done()

    def finish_if_done(self) -> None:
        """Answer when all topics have a result."""
        if not self.open and not self.answered:
            self.answered = True
            self._answer(self)


class TopicRequests:
    """Serves the requests and tracks those that wait."""

    def __init__(
        self,
        config: ControllerConfig,
        context: ControllerContext,
        storage: Storage,
        scheduler: Scheduler,
        rng: random.Random,
    ) -> None:
        self._config = config
        self._context = context
        self._storage = storage
        self._scheduler = scheduler
        self._rng = rng
        self._validator = TopicValidator(config, context, rng)
        self._unacknowledged: dict[str, set[int]] = {}
        """Partitions whose leader has not acknowledged, by topic with a waiting request."""
        self._creations: dict[str, list[_Waiting]] = {}
        self._deletions: dict[str, list[_Waiting]] = {}
        self._unheard: list[str] = []
        """Topics written since the list of topics was last read: a later request for a colliding name is refused."""

    # creation

    def create(self, event: CreateTopics) -> Flow[None]:
        """Validate, and write topic and configuration nodes; the topic watch triggers the remaining steps."""
        placed = self._validator.place_all(event.topics, self._unheard)
        by_name = {topic.name: topic for topic in event.topics}
        created: dict[str, tuple[str, dict[int, ReplicaAssignment]]] = {}
        errors: dict[str, PacelineError] = {}
        for name, outcome in placed.items():
            if isinstance(outcome, PacelineError):
                errors[name] = outcome
            else:
                created[name] = ("" if event.validate_only else new_id(self._rng), outcome)
        if not event.validate_only:
            yield from self._write(created, by_name, errors)
            self._unheard.extend(sorted(set(created) - set(errors)))

        def answer(waiting: _Waiting) -> None:
            results = []
            for topic in event.topics:
                if topic.name in errors:
                    results.append(CreateTopicResult(topic.name, errors[topic.name]))
                    continue
                topic_id, assignments = created[topic.name]
                rows = tuple(assignments[partition].replicas for partition in sorted(assignments))
                results.append(CreateTopicResult(topic.name, waiting.errors.get(topic.name), topic_id, rows))
            event.reply(results)

        names = [] if event.validate_only else sorted(set(created) - set(errors))
        waiting = _Waiting(names, answer)
        for name in names:
            self._unacknowledged[name] = set(created[name][1])
            self._creations.setdefault(name, []).append(waiting)
        self._wait(waiting, event.timeout_ms, "not every leader has acknowledged yet; the creation continues")

    def _write(
        self,
        created: dict[str, tuple[str, dict[int, ReplicaAssignment]]],
        by_name: dict[str, NewTopic],
        errors: dict[str, PacelineError],
    ) -> Flow[None]:
        nodes: dict[str, bytes] = {}
        for name, (topic_id, assignments) in created.items():
            data = znodes.encode_topic_assignment(znodes.TopicAssignment(assignments, topic_id))
            if len(data) > MAX_TOPIC_NODE_BYTES:
                errors[name] = InvalidPartitionsError(f"{len(assignments)} partitions do not fit into one topic node")
            else:
                nodes[name] = data
        remaining = list(nodes)
        for _ in range(CREATE_ATTEMPTS):
            if not remaining:
                return
            paths = [znodes.topic_config_path(name) for name in remaining]
            present = yield from send([Exists(path) for path in paths])
            multis = [
                self._creation(name, nodes[name], by_name[name], found.ok)
                for name, found in zip(remaining, present, strict=True)
            ]
            responses = yield from self._storage.send_fenced(multis)
            conflicted = []
            for name, response in zip(remaining, responses, strict=True):
                if response.ok:
                    continue
                index, code = first_failure(response)
                if index == 2 and code is ZkCode.NODE_EXISTS:
                    mine = yield from self._is_stored(name, nodes[name])
                    if not mine:
                        errors[name] = TopicAlreadyExistsError(f"topic {name!r} exists")
                elif index == 1 and code in (ZkCode.NODE_EXISTS, ZkCode.NO_NODE):
                    conflicted.append(name)
                else:
                    raise UnexpectedResponseError(code, f"create topic {name}")
            remaining = conflicted
        for name in remaining:
            errors[name] = RequestTimedOutError(f"the configuration of topic {name!r} keeps changing")

    def _is_stored(self, name: str, data: bytes) -> Flow[bool]:
        """Whether the node was written by an earlier attempt whose answer was lost."""
        (response,) = yield from self._storage.read_all([znodes.topic_path(name)])
        return bool(response.ok and response.data == data)

    def _creation(self, name: str, data: bytes, topic: NewTopic, config_exists: bool) -> Multi:
        path = znodes.topic_config_path(name)
        config = znodes.encode_config(topic.configs)
        first = SetData(path, config) if config_exists else Create(path, config)
        return self._storage.fenced(first, Create(znodes.topic_path(name), data))

    def topics_listed(self) -> None:
        """Forget the recently written topics: the list of topics was read and includes them."""
        self._unheard.clear()

    def leader_acknowledged(self, topic_partition: TopicPartition) -> None:
        """Record that a leader has answered its LeaderAndIsr request."""
        open_partitions = self._unacknowledged.get(topic_partition.topic)
        if open_partitions is None:
            return
        open_partitions.discard(topic_partition.partition)
        if not open_partitions:
            del self._unacknowledged[topic_partition.topic]
            for waiting in self._creations.pop(topic_partition.topic, []):
                waiting.done(topic_partition.topic)

    # deletion

    def delete(self, event: DeleteTopics) -> Flow[None]:
        """Write deletion markers; the marker watch triggers the remaining steps."""
        names = list(dict.fromkeys(event.topics))
        errors: dict[str, PacelineError] = {}
        for name in names:
            if name not in self._context.topics:
                errors[name] = UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
            elif not self._config.delete_topic_enable:
                errors[name] = TopicDeletionDisabledError("delete.topic.enable is false")
        wanted = [name for name in names if name not in errors]
        markers = [self._storage.fenced(Create(znodes.delete_topic_path(name))) for name in wanted]
        responses = yield from self._storage.send_fenced(markers)
        for name, response in zip(wanted, responses, strict=True):
            if not response.ok and first_failure(response)[1] is not ZkCode.NODE_EXISTS:
                raise UnexpectedResponseError(first_failure(response)[1], f"mark topic {name} for deletion")

        def answer(waiting: _Waiting) -> None:
            found = {**waiting.errors, **errors}
            event.reply([DeleteTopicResult(name, found.get(name)) for name in event.topics])

        waiting = _Waiting(wanted, answer)
        for name in wanted:
            self._deletions.setdefault(name, []).append(waiting)
        self._wait(waiting, event.timeout_ms, "the deletion continues")

    def topic_gone(self, topic: str) -> None:
        """Complete the requests for a topic that was deleted, or whose node disappeared."""
        for waiting in self._deletions.pop(topic, []):
            waiting.done(topic)
        self._unacknowledged.pop(topic, None)
        for waiting in self._creations.pop(topic, []):
            waiting.done(topic, UnknownTopicOrPartitionError(f"topic {topic!r} was deleted meanwhile"))

    # waiting

    def resigned(self) -> None:
        """Answer all waiting requests: they are stored in ZooKeeper, and the next controller continues them."""
        error = RequestTimedOutError("the controller resigned; the next controller continues the request")
        waiting = [*self._all(self._creations.values()), *self._all(self._deletions.values())]
        self._creations.clear()
        self._deletions.clear()
        self._unacknowledged.clear()
        self._unheard.clear()
        for request in waiting:
            request.give_up(error)

    @staticmethod
    def _all(lists: Iterable[list[_Waiting]]) -> list[_Waiting]:
        return [waiting for requests in lists for waiting in requests]

    def _wait(self, waiting: _Waiting, timeout_ms: int, reason: str) -> None:
        waiting.finish_if_done()
        if waiting.answered:
            return

        def timed_out() -> None:
            if waiting.answered:
                return
            for waiters in (self._creations, self._deletions):
                for name in sorted(waiting.open):
                    remaining = [other for other in waiters.get(name, []) if other is not waiting]
                    if remaining:
                        waiters[name] = remaining
                    elif waiters.pop(name, None) is not None and waiters is self._creations:
                        self._unacknowledged.pop(name, None)
            waiting.give_up(RequestTimedOutError(reason))

        self._scheduler.call_later(timeout_ms or DEFAULT_TIMEOUT_MS, timed_out)
