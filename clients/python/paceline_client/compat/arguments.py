"""Arguments, serializers and record class shared by the compatibility classes."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from paceline_client.records import ConsumerRecord as OurRecord

Deserializer = Callable[[bytes], Any]
Serializer = Callable[[Any], bytes]

CONSUMER: Final = frozenset(
    {
        "auto_offset_reset",
        "auto_commit_interval_ms",
        "check_crcs",
        "client_id",
        "client_rack",
        "enable_auto_commit",
        "fetch_max_bytes",
        "fetch_max_wait_ms",
        "group_id",
        "group_instance_id",
        "heartbeat_interval_ms",
        "max_partition_fetch_bytes",
        "max_poll_interval_ms",
        "max_poll_records",
        "metadata_max_age_ms",
        "request_timeout_ms",
        "session_timeout_ms",
    }
)
"""Arguments with the same meaning in Paceline."""
IGNORED: Final = frozenset({"api_version", "retry_backoff_ms", "connections_max_idle_ms", "loop", "security_protocol"})
"""Arguments without effect that may be ignored."""


class ConsumerRecord(NamedTuple):
    """A record with the field names of kafka-python and aiokafka."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: Any
    value: Any
    headers: list[tuple[str, bytes | None]]


def converted(
    record: OurRecord, key_deserializer: Deserializer | None, value_deserializer: Deserializer | None
) -> ConsumerRecord:
    """Return a record with key and value deserialized; None stays None."""
    key, value = record.key, record.value
    return ConsumerRecord(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        key if key is None or key_deserializer is None else key_deserializer(bytes(key)),
        value if value is None or value_deserializer is None else value_deserializer(bytes(value)),
        list(record.headers),
    )


def serialized(value: Any, serializer: Serializer | None) -> bytes | None:
    """Return the bytes of a key or value."""
    if serializer is not None and value is not None:
        value = serializer(value)
    if value is not None and not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"keys and values are bytes; give a serializer for {type(value).__name__}")
    return None if value is None else bytes(value)


def consumer_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for Paceline's consumer.

    Raises:
        TypeError: an argument has no counterpart; the message names it.
    """
    settings: dict[str, Any] = {"auto_offset_reset": "latest"}
    for name, value in arguments.items():
        if name in CONSUMER:
            settings[name] = value
        elif name == "security_protocol" and value != "PLAINTEXT":
            raise TypeError("use tls= with the certificates instead of security_protocol")
        elif name not in IGNORED:
            raise TypeError(f"{name} has no counterpart; see docs/moving-from-kafka.md")
    if settings.get("auto_offset_reset") == "none":
        settings["auto_offset_reset"] = "error"
    if settings.get("client_id") is None:
        settings.pop("client_id", None)
    if settings.get("group_id") is None:
        for name in ("enable_auto_commit", "auto_commit_interval_ms"):
            settings.pop(name, None)
    return settings
