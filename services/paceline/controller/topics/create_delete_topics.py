"""Serve CreateTopics and DeleteTopics: write the nodes, and answer when the brokers have applied the change.

Source: docs/protocol/controller.md#answer-after-acknowledgement; docs/protocol/zookeeper.md#creating-a-topic.
"""

import random
from collections.abc import Mapping

from paceline.controller.admin.admin_requests import CreateTopics, DeleteTopics
from paceline.controller.channel.leader_ack_waiters import Key, LeaderAckWaiters, topic_of
from paceline.controller.context import ControllerContext
from paceline.controller.topics.topic_validation import TopicValidator
from paceline.controller.zk_store import ZkStore, first_failure, send
from paceline.coordination import znodes
from paceline.coordination.flow import Flow
from paceline.coordination.interface import Create, Exists, Multi, SetData, ZkCode
from paceline.model.admin import NewTopic, TopicResult
from paceline.model.assignment import ReplicaAssignment
from paceline.model.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    PacelineError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    TopicDeletionDisabledError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition, new_id
from paceline.model.settings import ControllerConfig

MAX_TOPIC_NODE_BYTES = 1_000_000
"""Maximum size of a topic's node, and of a new topic's node and configuration, which are written together; below
ZooKeeper's ``jute.maxbuffer`` of 1 MiB."""

CREATE_ATTEMPTS = 3
DEFAULT_TIMEOUT_MS = 30_000
RESIGNED = "the next controller continues the request"


class TopicRequests:
    """Serves CreateTopics and DeleteTopics."""

    def __init__(
        self,
        config: ControllerConfig,
        context: ControllerContext,
        store: ZkStore,
        waits: LeaderAckWaiters,
        rng: random.Random,
    ) -> None:
        self._config = config
        self._context = context
        self._store = store
        self._waits = waits
        self._rng = rng
        self._validator = TopicValidator(config, context, rng)

    # creation

    def create(self, event: CreateTopics) -> Flow[None]:
        """Validate the topics and write their nodes and configurations; the topic watch triggers the other steps."""
        placed = self._validator.place_all(event.topics, event.internal, self._context.unlisted_topics)
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
            self._context.unlisted_topics.extend(sorted(set(created) - set(errors)))

        def answer(late: Mapping[Key, PacelineError]) -> None:
            late_topics = {topic_of(key): error for key, error in late.items()}
            results = []
            for topic in event.topics:
                if topic.name in errors:
                    results.append(TopicResult(topic.name, errors[topic.name]))
                    continue
                topic_id, assignments = created[topic.name]
                rows = tuple(assignments[partition].replicas for partition in sorted(assignments))
                results.append(TopicResult(topic.name, late_topics.get(topic.name), topic_id, rows))
            event.reply(results)

        names = [] if event.validate_only else sorted(set(created) - set(errors))
        partitions = {TopicPartition(name, partition): 0 for name in names for partition in created[name][1]}
        late = "not every leader has acknowledged yet; the creation continues"
        self._waits.wait(partitions, event.timeout_ms or DEFAULT_TIMEOUT_MS, late, answer, RESIGNED)

    def _write(
        self,
        created: dict[str, tuple[str, dict[int, ReplicaAssignment]]],
        by_name: dict[str, NewTopic],
        errors: dict[str, PacelineError],
    ) -> Flow[None]:
        nodes: dict[str, bytes] = {}
        for name, (topic_id, assignments) in created.items():
            data = znodes.encode_topic_assignment(znodes.TopicAssignment(assignments, topic_id))
            config_bytes = len(znodes.encode_config(by_name[name].configs))
            if len(data) > MAX_TOPIC_NODE_BYTES:
                errors[name] = InvalidPartitionsError(f"{len(assignments)} partitions do not fit into one topic node")
            elif len(data) + config_bytes > MAX_TOPIC_NODE_BYTES:
                errors[name] = InvalidConfigError(
                    f"the configuration takes {config_bytes} bytes, the topic node {len(data)}: together at most "
                    f"{MAX_TOPIC_NODE_BYTES} are allowed"
                )
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
            responses = yield from self._store.send_fenced(multis)
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
                    errors[name] = UnknownServerError(f"ZooKeeper refused to create topic {name!r}: {code.name}")
            remaining = conflicted
        for name in remaining:
            errors[name] = RequestTimedOutError(f"the configuration of topic {name!r} keeps changing")

    def _is_stored(self, name: str, data: bytes) -> Flow[bool]:
        """Whether the node was written by an earlier attempt whose answer was lost."""
        (response,) = yield from self._store.read_all([znodes.topic_path(name)])
        return bool(response.ok and response.data == data)

    def _creation(self, name: str, data: bytes, topic: NewTopic, config_exists: bool) -> Multi:
        path = znodes.topic_config_path(name)
        config = znodes.encode_config(topic.configs)
        first = SetData(path, config) if config_exists else Create(path, config)
        return self._store.fenced(first, Create(znodes.topic_path(name), data))

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
        markers = [self._store.fenced(Create(znodes.delete_topic_path(name))) for name in wanted]
        responses = yield from self._store.send_fenced(markers)
        for name, response in zip(wanted, responses, strict=True):
            code = first_failure(response)[1]
            if not response.ok and code is not ZkCode.NODE_EXISTS:
                errors[name] = UnknownServerError(f"ZooKeeper refused to mark topic {name!r} for deletion: {code.name}")
        marked = [name for name in wanted if name not in errors]

        def answer(late: Mapping[Key, PacelineError]) -> None:
            event.reply([TopicResult(name, errors.get(name) or late.get(name)) for name in event.topics])

        timeout_ms = event.timeout_ms or DEFAULT_TIMEOUT_MS
        self._waits.wait(dict.fromkeys(marked, 0), timeout_ms, "the deletion continues", answer, RESIGNED)
