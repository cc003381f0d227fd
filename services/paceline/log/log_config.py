"""The settings of one log: topic keys with Kafka's names and defaults.

Source: docs/protocol/log-format.md#topic-settings; Kafka 2.8 LogConfig.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from paceline.log.compression import Codec
from paceline.model.errors import InvalidConfigError
from paceline.model.throttled_replicas import checked_throttled_replicas

MAX_INT64: Final = 2**63 - 1
MAX_INT32: Final = 2**31 - 1
_DAY_MS = 24 * 3600 * 1000


class TimestampType(Enum):
    """Whether the producer or the broker sets a record's timestamp."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


MAX_TOPIC_MESSAGE_BYTES: Final = 4 << 20
"""Largest allowed ``max.message.bytes`` of a topic: the default of ``socket.request.max.bytes``."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one log; sizes in bytes, times in milliseconds, -1 means "no limit" where the key allows it."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = _DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_INT64
    min_cleanable_dirty_ratio: float = 0.5
    flush_messages: int = MAX_INT64
    flush_ms: int = MAX_INT64
    max_message_bytes: int = 1_048_588
    compression_type: Codec | None = None
    """``None`` keeps the producer's codec."""
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_difference_max_ms: int = MAX_INT64
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    leader_replication_throttled_replicas: str = ""
    follower_replication_throttled_replicas: str = ""

    @property
    def compacts(self) -> bool:
        """Whether the cleanup policy includes compaction."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether the cleanup policy includes deletion."""
        return "delete" in self.cleanup_policy

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], defaults: "LogConfig | None" = None) -> "LogConfig":
        """Return the settings for topic keys such as ``segment.bytes``, on top of ``defaults``.

        Raises:
            InvalidConfigError: a key is not known, or its value does not parse or lies outside its range.
        """
        values: dict[str, Any] = {}
        for key in sorted(properties):
            known = _KEYS.get(key)
            if known is None:
                raise unknown_topic_key(key)
            name, parse = known
            try:
                values[name] = parse(properties[key].strip())
            except (ValueError, KeyError) as error:
                raise InvalidConfigError(f"invalid value {properties[key]!r} for {key}: {error}") from None
        return replace(defaults if defaults is not None else cls(), **values)

    def refuse_unreceivable_batches(self) -> None:
        """Check that a client's request can carry the largest batch that these settings allow.

        Callers check only new settings. A topic that already has a larger value keeps it, so its partitions still load.

        Raises:
            InvalidConfigError: ``max.message.bytes`` is above `MAX_TOPIC_MESSAGE_BYTES`.
        """
        if self.max_message_bytes > MAX_TOPIC_MESSAGE_BYTES:
            raise InvalidConfigError(
                f"max.message.bytes is {self.max_message_bytes}; a request of a client, and so a batch, has at most "
                f"{MAX_TOPIC_MESSAGE_BYTES} bytes"
            )

    def value_text(self, key: str) -> str:
        """Return the value of a topic key as text that `from_properties` parses to the same value.

        Raises:
            InvalidConfigError: the key is not known.
        """
        known = _KEYS.get(key)
        if known is None:
            raise unknown_topic_key(key)
        value = getattr(self, known[0])
        if key == "compression.type":
            return "producer" if value is None else ("uncompressed" if value is Codec.NONE else value.name.lower())
        if isinstance(value, TimestampType):
            return value.value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, frozenset):
            return ",".join(sorted(value))
        return str(value)


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}")
_DECIMAL: Final = re.compile(r"([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,2})?")


def _integer(minimum: int, maximum: int = MAX_INT64) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise ValueError("must be a whole number")
        value = int(text)
        if not minimum <= value <= maximum:
            raise ValueError(f"must be between {minimum} and {maximum}")
        return value

    return parse


def _ratio(text: str) -> float:
    if not _DECIMAL.fullmatch(text) or float(text) > 1:
        raise ValueError("must be a number between 0 and 1")
    return float(text)


def _timestamp_type(text: str) -> TimestampType:
    try:
        return TimestampType(text)
    except ValueError:
        raise ValueError("must be CreateTime or LogAppendTime") from None


def _boolean(text: str) -> bool:
    lower = text.lower()
    if lower not in {"true", "false"}:
        raise ValueError("must be true or false")
    return lower == "true"


def _cleanup_policy(text: str) -> frozenset[str]:
    policies = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not policies or not policies <= {"delete", "compact"}:
        raise ValueError("must be delete, compact or both")
    return policies


_CODECS = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "none": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def _compression_type(text: str) -> Codec | None:
    if text not in _CODECS:
        raise ValueError("must be producer, uncompressed, gzip, snappy, lz4 or zstd")
    return _CODECS[text]


_KEYS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = MappingProxyType(
    {
        "segment.bytes": ("segment_bytes", _integer(14, MAX_INT32)),
        "segment.ms": ("segment_ms", _integer(1)),
        "segment.jitter.ms": ("segment_jitter_ms", _integer(0)),
        "segment.index.bytes": ("segment_index_bytes", _integer(0, MAX_INT32)),
        "index.interval.bytes": ("index_interval_bytes", _integer(0, MAX_INT32)),
        "retention.ms": ("retention_ms", _integer(-1)),
        "retention.bytes": ("retention_bytes", _integer(-1)),
        "cleanup.policy": ("cleanup_policy", _cleanup_policy),
        "file.delete.delay.ms": ("file_delete_delay_ms", _integer(0)),
        "delete.retention.ms": ("delete_retention_ms", _integer(0)),
        "min.compaction.lag.ms": ("min_compaction_lag_ms", _integer(0)),
        "max.compaction.lag.ms": ("max_compaction_lag_ms", _integer(1)),
        "min.cleanable.dirty.ratio": ("min_cleanable_dirty_ratio", _ratio),
        "flush.messages": ("flush_messages", _integer(1)),
        "flush.ms": ("flush_ms", _integer(0)),
        "max.message.bytes": ("max_message_bytes", _integer(0, MAX_INT32)),
        "compression.type": ("compression_type", _compression_type),
        "message.timestamp.type": ("message_timestamp_type", _timestamp_type),
        "message.timestamp.difference.max.ms": ("message_timestamp_difference_max_ms", _integer(0)),
        "min.insync.replicas": ("min_insync_replicas", _integer(1, MAX_INT32)),
        "unclean.leader.election.enable": ("unclean_leader_election_enable", _boolean),
        "leader.replication.throttled.replicas": (
            "leader_replication_throttled_replicas",
            checked_throttled_replicas,
        ),
        "follower.replication.throttled.replicas": (
            "follower_replication_throttled_replicas",
            checked_throttled_replicas,
        ),
    }
)

TOPIC_KEYS: Final = tuple(_KEYS)
"""Every topic key."""
LIST_KEYS: Final = frozenset({"cleanup.policy", *(key for key in TOPIC_KEYS if key.endswith(".throttled.replicas"))})
"""Topic keys whose value is a comma-separated list."""


def unknown_topic_key(key: str) -> InvalidConfigError:
    """Return the error for an unknown topic key, with a similar known key as a hint."""
    near = difflib.get_close_matches(key, TOPIC_KEYS, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InvalidConfigError(f"unknown topic configuration {key!r}{hint}")


assert {name for name, _ in _KEYS.values()} == {field.name for field in fields(LogConfig)}
