"""Arguments, serializers and record class shared by the compatibility classes."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from paceline.model.tls import CA_FILE, TlsFiles
from paceline_client.consumer import ConsumerSettings
from paceline_client.records import ConsumerRecord as OurRecord

Deserializer = Callable[[bytes], Any]
Serializer = Callable[[Any], bytes]

CONSUMER: Final = frozenset(ConsumerSettings.__annotations__) - {
    "default_api_timeout_ms",
    "max_buffered_bytes",
    "partition_assignment_strategy",
    "tls",
}
"""Arguments of consumers that have the same name and meaning in Paceline."""
_SAME_NAMES: Final = (
    *("acks", "batch_size", "buffer_memory", "client_id", "delivery_timeout_ms", "enable_idempotence", "linger_ms"),
    *("max_block_ms", "request_timeout_ms", "retry_backoff_ms"),
)
PRODUCER: Final = {
    **{name: name for name in _SAME_NAMES},
    "compression_type": "compression",
    "max_batch_size": "batch_size",
    "max_in_flight_requests_per_connection": "max_in_flight",
    "max_request_size": "max_record_bytes",
}
"""Arguments of producers, each with its name in Paceline."""
IGNORED: Final = frozenset(
    {"api_version", "connections_max_idle_ms", "loop", "metadata_max_age_ms", "retry_backoff_ms"}
)
"""Arguments that are accepted without effect, unless `CONSUMER` or `PRODUCER` has them."""
TLS: Final = frozenset({"security_protocol", "ssl_cafile", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile"})


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
    settings: dict[str, Any] = {"auto_offset_reset": "latest", "tls": _tls_files(arguments)}
    for name, value in arguments.items():
        if name in CONSUMER:
            settings[name] = value
        else:
            _refuse_unknown(name)
    if settings.get("auto_offset_reset") == "none":
        settings["auto_offset_reset"] = "error"
    if settings.get("client_id") is None:
        settings.pop("client_id", None)
    if settings.get("group_id") is None:
        for name in ("enable_auto_commit", "auto_commit_interval_ms"):
            settings.pop(name, None)
    return settings


def producer_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for Paceline's producer.

    `retries` has no effect: the producer retries a batch, without duplicates, until ``delivery_timeout_ms`` has passed.

    Raises:
        TypeError: an argument has no counterpart; the message names it.
    """
    settings: dict[str, Any] = {"tls": _tls_files(arguments)}
    for name, value in arguments.items():
        if name in PRODUCER:
            settings[PRODUCER[name]] = value
        elif name != "retries":
            _refuse_unknown(name)
    return settings


def _refuse_unknown(name: str) -> None:
    if name not in IGNORED and name not in TLS:
        raise TypeError(f"{name} has no counterpart; see docs/moving-from-kafka.md")


def _tls_files(arguments: Mapping[str, Any]) -> TlsFiles | None:
    """Return the certificate files in the arguments; None leaves the choice to the environment variables.

    Raises:
        TypeError: the security protocol is neither PLAINTEXT nor SSL, or an argument contradicts it.
    """
    protocol = arguments.get("security_protocol", "PLAINTEXT")
    ca, certificate, key = (arguments.get(name) for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"))
    if protocol not in ("PLAINTEXT", "SSL"):
        raise TypeError(f"security_protocol {protocol} has no counterpart: use SSL with the certificate of a client")
    if arguments.get("ssl_check_hostname", True) is False:
        raise TypeError("ssl_check_hostname=False has no counterpart: host names are always checked")
    if protocol == "SSL" and ca is None and (certificate or key or not os.environ.get(CA_FILE)):
        raise TypeError(f"security_protocol SSL needs ssl_cafile, or the variable {CA_FILE}")
    if protocol == "PLAINTEXT" or ca is None:
        return None
    return TlsFiles(Path(ca), Path(certificate) if certificate else None, Path(key) if key else None)
