"""Checks of received values, and conversions of error codes and epochs, for the other modules of this package.

Every value of a request is checked before it becomes a model value, so brokers and controllers never process a negative
broker id or the same partition twice (docs/protocol/limits.md#checked-values).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from paceline.model.errors import ErrorCode, InvalidRequestError, PacelineError
from paceline.model.identifiers import TopicPartition, validate_topic_name
from paceline.model.replica_fetch import EpochEnd
from paceline.rpc.errors import MAX_MESSAGE_CHARACTERS
from paceline.v1 import log_service_pb2

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_CLIENT_PARTITIONS: Final = 10_000
"""Maximum number of partitions in a client's request."""
MAX_INTERNAL_PARTITIONS: Final = 200_000
"""Maximum number of partitions in a request between brokers and controllers."""
MAX_RECORDS: Final = 200_000
"""Maximum number of structured records in a produce request."""
MAX_REPLICAS: Final = 1_000
MAX_BROKERS: Final = 100_000
TOPIC_ID_LENGTH: Final = 22

_KNOWN_TOPICS_LIMIT: Final = 100_000
_valid_topics: dict[str, str] = {}
"""Valid topic names; all later model values share these strings."""
_KNOWN_IDS_LIMIT: Final = 10_000
_KNOWN_IDS_LENGTH: Final = 16
_valid_ids: dict[tuple[int, ...], tuple[int, ...]] = {}
"""Valid replica lists; thousands of partitions have the same few lists, so model values share these tuples."""

_CODE_BY_NUMBER: Final[dict[int, ErrorCode]] = {int(code): code for code in ErrorCode}

P = TypeVar("P")
M = TypeVar("M")
V = TypeVar("V", bound="DataclassInstance")


def message_of(kind: Callable[..., M], value: Any, **others: Any) -> M:
    """Return a message whose fields have the values of the attributes with the same names, or those of ``others``.

    An attribute ``topic_partition`` gives the fields ``topic`` and ``partition``. None leaves a field unset.
    """
    names, values = _fields(kind, value.__class__, *others)
    return kind(**others, **dict(zip(names, values(value), strict=True)))


@functools.cache
def _fields(kind: Any, source: Any, *given: str) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """Return the names of the fields to copy, and a function that returns their values."""
    names = [field.name for field in kind.DESCRIPTOR.fields if field.name not in given]
    if hasattr(source, "topic_partition") and "topic" in names:
        names = [name for name in names if name not in ("topic", "partition")]
        get = _getter(names)
        return ("topic", "partition", *names), lambda value: (*value.topic_partition, *get(value))
    return tuple(names), _getter(names)


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    # With fewer than two names an attrgetter returns no tuple.
    get = attrgetter("__class__", "__class__", *names)
    return lambda value: get(value)[2:]


def value_of(kind: type[V], message: Any, **others: Any) -> V:
    """Return a dataclass instance with the values of the message's fields with the same names, or those of ``others``.

    The message's ``topic`` and ``partition`` also give a field ``topic_partition``. An unset optional field gives None,
    a repeated field a tuple; the message's enums and messages must be in ``others``.
    """
    names = {field.name for field in dataclasses.fields(kind)} - others.keys()
    for field in message.DESCRIPTOR.fields:
        if field.name in names:
            value = getattr(message, field.name)
            unset = field.has_presence and not message.HasField(field.name)
            others[field.name] = None if unset else value if isinstance(value, int | str | bytes) else tuple(value)
    if "topic_partition" in names:
        others["topic_partition"] = TopicPartition(message.topic, message.partition)
    return kind(**others)


def error_to_proto(kind: Callable[..., M], error: PacelineError | None) -> M | None:
    """Return an error as a message with the fields ``code`` and ``message``; None for None."""
    if error is None:
        return None
    return kind(code=int(error.code), message=str(error)[:MAX_MESSAGE_CHARACTERS])


def bounded(items: Sequence[P], limit: int, what: str) -> Sequence[P]:
    """Return ``items`` after a check of their number.

    Raises:
        InvalidRequestError: there are more than ``limit`` items.
    """
    if len(items) > limit:
        raise InvalidRequestError(f"{len(items)} {what} in one request, the limit is {limit}")
    return items


def partition_of(message: Any) -> TopicPartition:
    """Return the checked (topic, partition) of a message with these two fields.

    Raises:
        InvalidTopicError: the topic name is invalid.
        InvalidRequestError: the partition index is negative.
    """
    name: str = message.topic
    topic = _valid_topics.get(name)
    if topic is None:
        validate_topic_name(name)
        topic = name
        if len(_valid_topics) < _KNOWN_TOPICS_LIMIT:
            _valid_topics[name] = name
    partition: int = message.partition
    if partition < 0:
        raise InvalidRequestError(f"partition {partition} of topic {topic!r} is negative")
    return TopicPartition(topic, partition)


def refuse_duplicates(partitions: Sequence[TopicPartition]) -> None:
    """Check that no partition is listed twice.

    Raises:
        InvalidRequestError: a partition is listed twice; the message names the partition.
    """
    if len(partitions) < 2 or len(set(partitions)) == len(partitions):
        return
    seen: set[TopicPartition] = set()
    for topic_partition in partitions:
        if topic_partition in seen:
            raise InvalidRequestError(f"{topic_partition} is in the request twice")
        seen.add(topic_partition)


def topic_id_of(text: str) -> str | None:
    """Return a topic id, None for the empty string.

    Raises:
        InvalidRequestError: ``text`` does not have the length of a topic id.
    """
    if not text:
        return None
    if len(text) != TOPIC_ID_LENGTH:
        raise InvalidRequestError(f"a topic id has {TOPIC_ID_LENGTH} characters, not {len(text)}")
    return text


def at_least(value: int, least: int, what: str) -> int:
    """Return ``value`` after a check of its lower bound.

    Raises:
        InvalidRequestError: ``value`` is below ``least``.
    """
    if value < least:
        raise InvalidRequestError(f"{what} is {value}, the minimum is {least}")
    return value


def broker_ids(ids: Sequence[int], what: str) -> tuple[int, ...]:
    """Return broker ids after a check that they are valid and distinct.

    Raises:
        InvalidRequestError: an id is negative or listed twice, or there are more than `MAX_REPLICAS` ids.
    """
    found = tuple(bounded(ids, MAX_REPLICAS, what))
    known = _valid_ids.get(found)
    if known is not None:
        return known
    if found and min(found) < 0:
        raise InvalidRequestError(f"{what} has the negative broker id {min(found)}")
    if len(set(found)) != len(found):
        raise InvalidRequestError(f"{what} lists a broker twice: {list(found)}")
    if len(found) <= _KNOWN_IDS_LENGTH and len(_valid_ids) < _KNOWN_IDS_LIMIT:
        _valid_ids[found] = found
    return found


def error_code_of(message: Any) -> ErrorCode:
    """Return the code of a message's ``optional ErrorCode error``, NONE when the field is absent.

    An unspecified number, or an unknown number from a newer peer, becomes UNKNOWN_SERVER_ERROR.
    """
    if not message.HasField("error"):
        return ErrorCode.NONE
    return known_code(message.error)


def known_code(number: int) -> ErrorCode:
    """Return the error code with this number; an unknown number, or NONE, becomes UNKNOWN_SERVER_ERROR."""
    return _CODE_BY_NUMBER.get(number, ErrorCode.UNKNOWN_SERVER_ERROR) or ErrorCode.UNKNOWN_SERVER_ERROR


def code_to_proto(code: ErrorCode) -> Any:
    """Return the value of an ``optional ErrorCode`` field for a message's constructor; None (no field) for NONE."""
    return int(code) or None


def epoch_end_to_proto(end: EpochEnd | None) -> log_service_pb2.EpochEndOffset | None:
    """Encode the end offset of an epoch; return None for None."""
    return None if end is None else log_service_pb2.EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)


def epoch_end_from_proto(message: Any, field: str) -> EpochEnd | None:
    """Decode an optional ``EpochEndOffset`` field of a message; return None when it is absent."""
    if not message.HasField(field):
        return None
    value = getattr(message, field)
    return EpochEnd(value.epoch, value.end_offset)


def forgotten_to_proto(partitions: Iterable[TopicPartition]) -> list[log_service_pb2.ForgottenPartition]:
    """Encode the partitions that a fetch removes from its session."""
    return [log_service_pb2.ForgottenPartition(topic=topic, partition=partition) for topic, partition in partitions]
