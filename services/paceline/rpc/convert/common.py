"""Checks of hostile values, error codes and epochs, for all conversions.

Every value from the wire is checked before it becomes a model value, so the cores never receive a negative broker id or
the same partition twice (docs/protocol/limits.md#checked-values).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from paceline.model.errors import ErrorCode, InvalidRequestError
from paceline.model.identifiers import TopicPartition, validate_topic_name
from paceline.model.replica_fetch import EpochEnd
from paceline.v1 import log_service_pb2

MAX_CLIENT_PARTITIONS: Final = 10_000
"""Partitions one client request may name."""
MAX_INTERNAL_PARTITIONS: Final = 200_000
"""Partitions one request between our own processes may name."""
MAX_RECORDS: Final = 200_000
"""Structured records one produce request may carry."""
MAX_REPLICAS: Final = 1_000
MAX_BROKERS: Final = 100_000
TOPIC_ID_LENGTH: Final = 22

_KNOWN_TOPICS_LIMIT: Final = 100_000
_valid_topics: dict[str, str] = {}
"""Names that have been checked; everything that is parsed later shares the text."""
_KNOWN_IDS_LIMIT: Final = 10_000
_KNOWN_IDS_LENGTH: Final = 16
_valid_ids: dict[tuple[int, ...], tuple[int, ...]] = {}
"""Replica lists that have been checked: thousands of partitions have the same few, which are shared as well."""

_CODE_BY_NUMBER: Final[dict[int, ErrorCode]] = {int(code): code for code in ErrorCode}

P = TypeVar("P")


def bounded(items: Sequence[P], limit: int, what: str) -> Sequence[P]:
    """Return the items; more of them than ``limit`` is an error, found without walking them.

    Raises:
        InvalidRequestError: there are too many.
    """
    if len(items) > limit:
        raise InvalidRequestError(f"{len(items)} {what} in one request, the limit is {limit}")
    return items


def partition_of(message: Any) -> TopicPartition:
    """Return the checked (topic, partition) of any message that has these two fields.

    Raises:
        InvalidTopicError: the name is not legal.
        InvalidRequestError: the index is negative.
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
    """Check that no partition is named twice.

    Raises:
        InvalidRequestError: one is; the message names it.
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
        InvalidRequestError: it does not have the form of a topic id.
    """
    if not text:
        return None
    if len(text) != TOPIC_ID_LENGTH:
        raise InvalidRequestError(f"a topic id has {TOPIC_ID_LENGTH} characters, not {len(text)}")
    return text


def at_least(value: int, least: int, what: str) -> int:
    """Return the value.

    Raises:
        InvalidRequestError: it is below ``least``.
    """
    if value < least:
        raise InvalidRequestError(f"{what} is {value}, the minimum is {least}")
    return value


def broker_ids(ids: Sequence[int], what: str) -> tuple[int, ...]:
    """Return distinct broker ids.

    Raises:
        InvalidRequestError: an id is negative or listed twice, or there are far too many.
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
    """Return the code of a message's ``optional ErrorCode error``: NONE when absent, UNKNOWN_SERVER_ERROR when the
    number is not known here (a newer peer) or is the unspecified one."""
    if not message.HasField("error"):
        return ErrorCode.NONE
    return known_code(message.error)


def known_code(number: int) -> ErrorCode:
    """Return the code of a number on the wire that says "failed"; never NONE."""
    return _CODE_BY_NUMBER.get(number, ErrorCode.UNKNOWN_SERVER_ERROR) or ErrorCode.UNKNOWN_SERVER_ERROR


def code_to_proto(code: ErrorCode) -> Any:
    """Return the value for an ``optional ErrorCode`` field of a constructor: None, which leaves it absent, for NONE."""
    return int(code) or None


def epoch_end_to_proto(end: EpochEnd | None) -> log_service_pb2.EpochEndOffset | None:
    """Return the message, None when there is no epoch."""
    return None if end is None else log_service_pb2.EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)


def epoch_end_from_proto(message: Any, field: str) -> EpochEnd | None:
    """Return an optional epoch end of a message, None when absent."""
    if not message.HasField(field):
        return None
    value = getattr(message, field)
    return EpochEnd(value.epoch, value.end_offset)


def forgotten_to_proto(partitions: Iterable[TopicPartition]) -> list[log_service_pb2.ForgottenPartition]:
    """Return the partitions a fetch session drops."""
    return [log_service_pb2.ForgottenPartition(topic=topic, partition=partition) for topic, partition in partitions]
