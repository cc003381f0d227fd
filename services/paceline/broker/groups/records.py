"""Keys and values of the records in ``__consumer_offsets``, in Kafka's format.

OffsetCommitKey 1, GroupMetadataKey 2, OffsetCommitValue 3 and GroupMetadataValue 3 are written, as by Kafka 2.3 to 3.9;
value versions 0 to 3 are read. Source: Kafka's OffsetCommitValue.json and GroupMetadataValue.json.
"""

from dataclasses import dataclass
from typing import Final

from paceline.model.consumer_protocol import Reader, Writer
from paceline.model.errors import InvalidRequestError
from paceline.model.identifiers import TopicPartition

OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
VALUE_VERSION: Final = 3


class UnknownRecordVersionError(InvalidRequestError):
    """A record has a newer version; skipping it would lose it."""


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """Key of a committed offset."""

    group_id: str
    topic_partition: TopicPartition


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Key of a group's metadata."""

    group_id: str


@dataclass(frozen=True, slots=True)
class OffsetValue:
    """A committed offset."""

    offset: int
    leader_epoch: int
    """-1 when not known."""
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = -1
    """Present only in records of version 1."""


@dataclass(frozen=True, slots=True)
class MemberValue:
    """A member in its stored form."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A group's metadata in its stored form."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int
    members: tuple[MemberValue, ...]


def encode_offset_key(group_id: str, topic_partition: TopicPartition) -> bytes:
    """Return the key of a committed offset."""
    out = Writer()
    out.int16(OFFSET_KEY_VERSION)
    out.string(group_id)
    out.string(topic_partition.topic)
    out.int32(topic_partition.partition)
    return out.done()


def encode_group_key(group_id: str) -> bytes:
    """Return the key of a group's metadata."""
    out = Writer()
    out.int16(GROUP_KEY_VERSION)
    out.string(group_id)
    return out.done()


def decode_key(data: bytes) -> OffsetKey | GroupKey:
    """Return the key of a record.

    Raises:
        UnknownRecordVersionError: it has a newer version.
        InvalidRequestError: the bytes end too early.
    """
    source = Reader(data)
    version = source.int16()
    if version in (0, OFFSET_KEY_VERSION):
        return OffsetKey(source.string(), TopicPartition(source.string(), source.int32()))
    if version == GROUP_KEY_VERSION:
        return GroupKey(source.string())
    raise UnknownRecordVersionError(f"a record's key has version {version}")


def encode_offset_value(value: OffsetValue) -> bytes:
    """Return the value of a committed offset."""
    out = Writer()
    out.int16(VALUE_VERSION)
    out.int64(value.offset)
    out.int32(value.leader_epoch)
    out.string(value.metadata)
    out.int64(value.commit_timestamp)
    return out.done()


def decode_offset_value(data: bytes) -> OffsetValue:
    """Return a committed offset.

    Raises:
        UnknownRecordVersionError: it has a newer version.
        InvalidRequestError: the bytes end too early.
    """
    source = Reader(data)
    version = source.int16()
    if not 0 <= version <= VALUE_VERSION:
        raise UnknownRecordVersionError(f"a committed offset has version {version}")
    offset = source.int64()
    leader_epoch = source.int32() if version == VALUE_VERSION else -1
    metadata = source.string()
    committed = source.int64()
    return OffsetValue(offset, leader_epoch, metadata, committed, source.int64() if version == 1 else -1)


def encode_group_value(value: GroupValue) -> bytes:
    """Return the value of a group's metadata."""
    out = Writer()
    out.int16(VALUE_VERSION)
    out.string(value.protocol_type)
    out.int32(value.generation)
    out.string(value.protocol)
    out.string(value.leader)
    out.int64(value.current_state_timestamp)
    out.int32(len(value.members))
    for member in value.members:
        out.string(member.member_id)
        out.string(member.group_instance_id)
        out.string(member.client_id)
        out.string(member.client_host)
        out.int32(member.rebalance_timeout_ms)
        out.int32(member.session_timeout_ms)
        out.blob(member.subscription)
        out.blob(member.assignment)
    return out.done()


def decode_group_value(data: bytes) -> GroupValue:
    """Return a group's metadata.

    Raises:
        UnknownRecordVersionError: it has a newer version.
        InvalidRequestError: the bytes end too early.
    """
    source = Reader(data)
    version = source.int16()
    if not 0 <= version <= VALUE_VERSION:
        raise UnknownRecordVersionError(f"group metadata have version {version}")
    protocol_type, generation = source.string(), source.int32()
    protocol, leader = source.nullable_string(), source.nullable_string()
    state_timestamp = source.int64() if version >= 2 else -1
    members = tuple(_member(source, version) for _ in range(source.count()))
    return GroupValue(protocol_type, generation, protocol, leader, state_timestamp, members)


def _member(source: Reader, version: int) -> MemberValue:
    member_id = source.string()
    instance_id = source.nullable_string() if version >= 3 else None
    client_id, client_host = source.string(), source.string()
    # Version 0 has a single timeout for session and rebalance.
    rebalance_timeout_ms = source.int32() if version >= 1 else -1
    session_timeout_ms = source.int32()
    if version < 1:
        rebalance_timeout_ms = session_timeout_ms
    return MemberValue(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        source.blob(),
        source.blob(),
    )
