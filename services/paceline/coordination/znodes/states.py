"""Encode and decode the JSON of topic, partition state, reassignment, configuration and other znodes.

`encode_*` returns a node's data. `decode_*` raises `MalformedZnodeError`, and no other error, for data that does not
match the schema; the path is only used in its message.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from paceline.coordination.errors import MalformedZnodeError as MalformedZnodeError
from paceline.coordination.znodes.json_codec import (
    MAX_INT32,
    MAX_INT64,
    JsonObject,
    JsonValue,
    decode_object,
    encode_json,
)
from paceline.coordination.znodes.paths import CONFIG_ENTITY_TYPES
from paceline.model.assignment import ReplicaAssignment
from paceline.model.errors import InvalidTopicError
from paceline.model.identifiers import NO_LEADER, TopicPartition, validate_topic_name
from paceline.model.leader_and_isr import LeaderAndIsr

PRODUCER_ID_BLOCK_SIZE = 1000
LOG_DIR_FAILURE = 1
"""The only kind of log directory event."""

MAX_LEADER_EPOCH = MAX_INT32 - 2**20
"""A state with a higher epoch is invalid: an epoch has 32 bits in requests, and each election raises it."""

_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_STATE_KEYS = frozenset({"version", "leader", "leader_epoch", "controller_epoch", "isr"})
_ADDING_SINCE = 2
_TOPIC_ID_SINCE = 3


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """Content of ``/brokers/topics/<topic>`` (docs/protocol/zookeeper.md#topic-node)."""

    partitions: Mapping[int, ReplicaAssignment]
    """Decoded assignments are sorted by partition number."""
    topic_id: str | None = None
    version: int = 3


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Content of a partition's state node (docs/protocol/zookeeper.md#partition-state-node)."""

    leader_and_isr: LeaderAndIsr
    extra: Mapping[str, JsonValue] = field(default_factory=dict)
    """Keys that are not in Kafka's schema; they are kept when the node is written again."""


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """Producer ids that a broker has claimed, bounds inclusive (docs/protocol/zookeeper.md#producer-id-blocks)."""

    broker_id: int
    first: int
    last: int


def encode_topic_assignment(assignment: TopicAssignment) -> bytes:
    """Return the data of a topic's node; version 1 has no adding and removing replicas, version 2 no topic id."""
    partitions = dict(sorted(assignment.partitions.items()))
    value: dict[str, JsonValue] = {
        "version": assignment.version,
        "partitions": {str(number): list(replicas.replicas) for number, replicas in partitions.items()},
    }
    if assignment.version >= _ADDING_SINCE:
        value["adding_replicas"] = {
            str(number): list(replicas.adding) for number, replicas in partitions.items() if replicas.adding
        }
        value["removing_replicas"] = {
            str(number): list(replicas.removing) for number, replicas in partitions.items() if replicas.removing
        }
    if assignment.version >= _TOPIC_ID_SINCE and assignment.topic_id is not None:
        value["topic_id"] = assignment.topic_id
    return encode_json(value)


def decode_topic_assignment(path: str, data: bytes | None) -> TopicAssignment:
    """Return a topic's assignment; accepts versions 1 to 3. Raises MalformedZnodeError."""
    node = decode_object(path, data)
    version = node.version(1, 2, 3)
    members = node.object("partitions")
    replicas = members.broker_ids_by_partition()
    for number, ids in replicas.items():
        if not ids:
            raise members.fail(str(number), "no replicas")
    adding: dict[int, tuple[int, ...]] = {}
    removing: dict[int, tuple[int, ...]] = {}
    if version >= _ADDING_SINCE:
        adding = _moving_replicas(node, "adding_replicas", replicas)
        removing = _moving_replicas(node, "removing_replicas", replicas)
    for number in adding:
        if set(adding[number]) & set(removing.get(number, ())):
            raise node.fail("removing_replicas", f"partition {number} adds and removes the same replica")
    topic_id = None
    if version >= _TOPIC_ID_SINCE and not node.is_absent("topic_id"):
        topic_id = node.string("topic_id")
        if not _TOPIC_ID.fullmatch(topic_id):
            raise node.fail("topic_id", "not a UUID in 22 characters of URL-safe base64")
    partitions = {
        number: ReplicaAssignment(ids, adding.get(number, ()), removing.get(number, ()))
        for number, ids in replicas.items()
    }
    return TopicAssignment(partitions, topic_id, version)


def _moving_replicas(node: JsonObject, key: str, replicas: Mapping[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    if node.is_absent(key):
        return {}
    members = node.object(key)
    moving = {}
    for number, member in members.partition_keys():
        ids = members.broker_ids(member)
        if not set(ids) <= set(replicas.get(number, ())):
            raise members.fail(member, "not among the partition's replicas")
        moving[number] = ids
    return moving


def encode_partition_state(state: LeaderAndIsr, extra: Mapping[str, JsonValue] | None = None) -> bytes:
    """Return the data of a partition's state node; ``extra`` adds keys but never replaces a key of the schema.

    Raises:
        ValueError: the ISR is empty (docs/protocol/zookeeper.md#never-an-empty-isr).
    """
    if not state.isr:
        raise ValueError("an empty ISR is never written")
    if not extra:
        # The death of a broker may change ten thousand states, and a JSON encoder takes several times as long.
        isr = ",".join(map(str, state.isr))
        return (
            f'{{"version":1,"leader":{state.leader},"leader_epoch":{state.leader_epoch},'
            f'"controller_epoch":{state.controller_epoch},"isr":[{isr}]}}'
        ).encode("ascii")
    value: dict[str, JsonValue] = dict(extra)
    value["version"] = 1
    value["leader"] = state.leader
    value["leader_epoch"] = state.leader_epoch
    value["controller_epoch"] = state.controller_epoch
    value["isr"] = list(state.isr)
    return encode_json(value)


def decode_partition_state(path: str, data: bytes | None, zk_version: int) -> PartitionState:
    """Return a partition's state; ``zk_version`` is the version of the read node. Raises MalformedZnodeError."""
    node = decode_object(path, data)
    node.version(1)
    leader_and_isr = LeaderAndIsr(
        leader=node.integer("leader", NO_LEADER),
        leader_epoch=node.integer("leader_epoch", 0, MAX_LEADER_EPOCH),
        isr=node.broker_ids("isr"),
        zk_version=zk_version,
        controller_epoch=node.integer("controller_epoch"),
    )
    if not leader_and_isr.isr:
        raise node.fail("isr", "empty, which is never written by a controller or leader")
    return PartitionState(leader_and_isr, node.extra(_STATE_KEYS))


def encode_reassignment(targets: Mapping[TopicPartition, Iterable[int]]) -> bytes:
    """Return the data of ``/admin/reassign_partitions``."""
    return encode_json(
        {
            "version": 1,
            "partitions": [
                {"topic": topic_partition.topic, "partition": topic_partition.partition, "replicas": list(replicas)}
                for topic_partition, replicas in targets.items()
            ],
        }
    )


def decode_reassignment(path: str, data: bytes | None) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the target replicas per partition. Raises MalformedZnodeError, which Kafka treats as an empty node."""
    node = decode_object(path, data)
    node.version(1)
    targets = {}
    for member in node.objects("partitions"):
        topic_partition = _topic_partition(member)
        if topic_partition in targets:
            raise member.fail("partition", f"{topic_partition} is listed twice")
        targets[topic_partition] = member.broker_ids("replicas")
    return targets


def encode_partition_set(partitions: Iterable[TopicPartition]) -> bytes:
    """Return the data of ``/admin/preferred_replica_election`` or of an ISR change notification."""
    return encode_json(
        {
            "version": 1,
            "partitions": [
                {"topic": topic_partition.topic, "partition": topic_partition.partition}
                for topic_partition in partitions
            ],
        }
    )


def decode_partition_set(path: str, data: bytes | None) -> tuple[TopicPartition, ...]:
    """Return the partitions in the order of the node, without duplicates. Raises MalformedZnodeError."""
    node = decode_object(path, data)
    node.version(1)
    return tuple(dict.fromkeys(_topic_partition(member) for member in node.objects("partitions")))


def _topic_partition(member: JsonObject) -> TopicPartition:
    topic = member.string("topic")
    try:
        validate_topic_name(topic)
    except InvalidTopicError as error:
        raise member.fail("topic", str(error)[:300]) from None
    return TopicPartition(topic, member.integer("partition"))


def encode_log_dir_event(broker_id: int) -> bytes:
    """Return the data of a log directory event: a directory of this broker has failed."""
    return encode_json({"version": 1, "broker": broker_id, "event": LOG_DIR_FAILURE})


def decode_log_dir_event(path: str, data: bytes | None) -> int:
    """Return the id of the broker with the failed directory. Raises MalformedZnodeError."""
    node = decode_object(path, data)
    node.version(1)
    node.integer("event", LOG_DIR_FAILURE, LOG_DIR_FAILURE)
    return node.integer("broker")


def encode_config(overrides: Mapping[str, str]) -> bytes:
    """Return the data of a config entity's node."""
    return encode_json({"version": 1, "config": dict(overrides)})


def decode_config(path: str, data: bytes | None) -> dict[str, str]:
    """Return an entity's overrides, none for a node without data. Raises MalformedZnodeError."""
    if data is None:
        return {}
    node = decode_object(path, data)
    node.version(1)
    return node.string_map("config")


def encode_config_change(entity_path: str) -> bytes:
    """Return the data of a config change notification: ``topics/t``, ``brokers/3``, ``brokers/<default>``."""
    return encode_json({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes | None) -> str:
    """Return the path, below ``/config``, of the entity that changed. Raises MalformedZnodeError."""
    node = decode_object(path, data)
    if node.version(1, 2) == 1:
        entity_type = node.string("entity_type")
        if entity_type not in ("topics", "clients"):
            raise node.fail("entity_type", "only topics and clients are allowed in version 1")
        entity_path = f"{entity_type}/{node.string('entity_name')}"
    else:
        entity_path = node.string("entity_path")
    names = entity_path.split("/")
    if len(names) not in (2, 4) or any(name in ("", ".", "..") for name in names):
        raise node.fail("entity_path", f"{entity_path[:80]!r} does not name an entity")
    if names[0] not in CONFIG_ENTITY_TYPES:
        raise node.fail("entity_path", f"{names[0][:40]!r} is not an entity type")
    return entity_path


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    """Return the data of ``/latest_producer_id_block``, which has the bounds as strings."""
    return encode_json(
        {
            "version": 1,
            "broker": block.broker_id,
            "block_start": str(block.first),
            "block_end": str(block.last),
        }
    )


def decode_producer_id_block(path: str, data: bytes | None) -> ProducerIdBlock:
    """Return the block that was claimed last. Raises MalformedZnodeError."""
    node = decode_object(path, data)
    node.version(1)
    block = ProducerIdBlock(
        node.integer("broker"), node.decimal("block_start", 0), node.decimal("block_end", 0, MAX_INT64)
    )
    if block.last < block.first:
        raise node.fail("block_end", "before block_start")
    return block
