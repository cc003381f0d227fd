"""Parse the options for the start and end of a read: earliest, latest, offsets in JSON, or timestamps.

Source: Spark's Kafka source (JsonUtils, KafkaOffsetRangeLimit); docs/spark.md#options.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from paceline.model.identifiers import TopicPartition
from paceline.pipeline.errors import InvalidOptionError
from paceline.pipeline.given_options import MAX_INT64

EARLIEST_MARK: Final = -2
"""Offset in JSON that means earliest."""
LATEST_MARK: Final = -1
"""Offset in JSON that means latest."""
TOPIC_ID_KEY: Final = "topicId"
"""Key of the topic id in the offsets of a streaming query; skipped here, so those offsets are valid option values."""
_PARTITION_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first offset in the log of each partition."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the committed records of each partition, exclusive."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset per partition, `EARLIEST_MARK` and `LATEST_MARK` included; every partition must be named."""

    option: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """In every partition, the first record at or after the same timestamp in milliseconds."""

    option: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """The first record at or after a timestamp in milliseconds per partition; every partition must be named."""

    option: str
    timestamps_ms: Mapping[TopicPartition, int]


OffsetSpec = Earliest | Latest | AtOffsets | AtTimestamp | AtTimestamps


def parse_offsets(option: str, text: str, refused: str | None, refused_mark: int) -> OffsetSpec:
    """Parse ``startingOffsets`` or ``endingOffsets``.

    Args:
        option: name of the option, for messages.
        text: ``earliest``, ``latest`` or ``{"topic": {"0": 23, "1": -2}}``.
        refused: the word that a batch query may not use here; None in a streaming query, which may use both words.
        refused_mark: the JSON number with the meaning of ``refused``.

    Raises:
        InvalidOptionError: ``text`` has none of these forms, or it contains the refused word or number.
    """
    word = text.strip().lower()
    if word == refused:
        raise InvalidOptionError(f"{option} may not be {refused!r} in a batch query: it would read nothing")
    if word == "earliest":
        return Earliest()
    if word == "latest":
        return Latest()
    offsets = _parse_partitions(option, text, lowest=EARLIEST_MARK)
    for tp, offset in offsets.items():
        if refused is not None and offset == refused_mark:
            raise InvalidOptionError(f"{option} for {tp} may not be {offset} ({refused}) in a batch query")
    return AtOffsets(option, offsets)


def parse_timestamp(option: str, text: str) -> AtTimestamp:
    """Parse ``startingTimestamp`` or ``endingTimestamp``, milliseconds since the Unix epoch.

    Raises:
        InvalidOptionError: ``text`` is not a number, negative, or larger than a signed 64-bit number.
    """
    try:
        timestamp_ms = int(text.strip())
    except ValueError:
        timestamp_ms = -1
    if not 0 <= timestamp_ms <= MAX_INT64:
        raise InvalidOptionError(f"{option} must be milliseconds since the Unix epoch, not {text!r}")
    return AtTimestamp(option, timestamp_ms)


def parse_timestamps(option: str, text: str) -> AtTimestamps:
    """Parse ``startingOffsetsByTimestamp`` or ``endingOffsetsByTimestamp``: ``{"topic": {"0": 1700000000000}}``.

    Raises:
        InvalidOptionError: ``text`` is not JSON of this form.
    """
    return AtTimestamps(option, _parse_partitions(option, text, lowest=0))


def parse_assignment(option: str, text: str) -> tuple[TopicPartition, ...]:
    """Return the partitions of ``assign``, sorted: ``{"topic": [0, 1]}``.

    Raises:
        InvalidOptionError: ``text`` is not JSON of this form, or it names no partition.
    """
    example = '{"topic-a": [0, 1], "topic-b": [2]}'
    found: set[TopicPartition] = set()
    for topic, partitions in _parse_object(option, text, example).items():
        if not isinstance(partitions, list) or not all(_is_partition(number) for number in partitions):
            raise InvalidOptionError(f"{option} needs a list of partition numbers for {topic!r}, like {example}")
        found.update(TopicPartition(topic, number) for number in partitions)
    if not found:
        raise InvalidOptionError(f"{option} names no partition; write it like {example}")
    return tuple(sorted(found))


def _parse_partitions(option: str, text: str, lowest: int) -> dict[TopicPartition, int]:
    example = '{"topic-a": {"0": 23, "1": 345}}'
    found: dict[TopicPartition, int] = {}
    for topic, by_partition in _parse_object(option, text, example).items():
        if not isinstance(by_partition, dict):
            raise InvalidOptionError(f"{option} needs an object of partitions for {topic!r}, like {example}")
        for number, value in by_partition.items():
            if number == TOPIC_ID_KEY and isinstance(value, str):
                continue
            is_number = isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= MAX_INT64
            is_index = number.isascii() and number.isdigit() and len(number) <= _PARTITION_DIGITS
            if not (is_index and is_number):
                raise InvalidOptionError(f"{option}: {topic!r}, {number!r}: {value!r} is not a partition and its value")
            tp = TopicPartition(topic, int(number))
            if tp in found:
                raise InvalidOptionError(f"{option}: {tp} is named twice")
            found[tp] = value
    return dict(sorted(found.items()))


def _parse_object(option: str, text: str, example: str) -> dict[str, Any]:
    def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise InvalidOptionError(f"{option}: {name!r} is named twice")
            found[name] = value
        return found

    try:
        parsed = json.loads(text, object_pairs_hook=once_each)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidOptionError(f"{option} is not JSON of the form {example}: {text!r}")
    return parsed


def _is_partition(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0
