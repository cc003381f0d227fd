"""Encode and decode the small text files of a log directory.

The files are offset checkpoints, the leader-epoch file, ``partition.metadata`` and ``meta.properties``.
Offset checkpoints and epoch files have the same format: version ``0``, the number of entries, one entry per line,
fields separated by white space. `write_atomically` replaces them.
Source: docs/protocol/log-format.md#text-checkpoints and #partition-metadata.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from paceline.log.files import Files, read_all, write_atomically
from paceline.model.errors import KafkaStorageError
from paceline.model.identifiers import TopicPartition

HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN_MARKER = ".kafka_cleanshutdown"
STOPPED_SEGMENTS = ".kafka_cleanshutdown.loading"
"""Name of the clean-shutdown marker while the logs are compared with its list of segments."""


class DamagedFileError(KafkaStorageError):
    """A file of a log directory does not parse; the caller rebuilds its content or ignores the file."""


def encode_lines(lines: Iterable[str]) -> bytes:
    """Return the content of a checkpoint file with these entry lines."""
    entries = list(lines)
    return "\n".join(("0", str(len(entries)), *entries, "")).encode()


def decode_lines(data: bytes, field_count: int) -> list[list[str]]:
    """Return the fields of each entry; an empty file has no entries.

    Raises:
        DamagedFileError: the version is not 0, the count is wrong, or a line does not have ``field_count`` fields.
    """
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"not text: {error}") from error
    if not lines:
        return []
    if lines[0].strip() != "0":
        raise DamagedFileError(f"unknown version {lines[0][:20]!r}")
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(lines) < 2 or lines[1].strip() != str(len(entries)):
        raise DamagedFileError(f"the file has {len(entries)} entries, its second line has another number")
    if any(len(entry) != field_count for entry in entries):
        raise DamagedFileError(f"an entry does not have {field_count} fields")
    return entries


def number(text: str) -> int:
    """Return the value of a decimal number.

    Raises:
        DamagedFileError: ``text`` is not a decimal number or exceeds 64 bits.
    """
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or int(digits) >= 2**63:
        raise DamagedFileError(f"{text[:30]!r} is not a number")
    return int(text)


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the content of an offset checkpoint."""
    return encode_lines(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Return the offset of each partition in an offset checkpoint, in the order of the file.

    Raises:
        DamagedFileError: the file does not parse.
    """
    return {
        TopicPartition(topic, number(partition)): number(offset) for topic, partition, offset in decode_lines(data, 3)
    }


def read_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """Return the offset of each partition in an offset checkpoint, an empty dict when the file is missing.

    Raises:
        DamagedFileError: the file does not parse.
        OSError: the file cannot be read.
    """
    return decode_offsets(read_all(files, path)) if files.exists(path) else {}


def write_offsets(files: Files, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace an offset checkpoint durably.

    Raises:
        OSError: storage failed.
    """
    write_atomically(files, path, encode_offsets(offsets))


def encode_partition_metadata(topic_id: str) -> bytes:
    """Return the content of ``partition.metadata`` for a topic id."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def decode_partition_metadata(data: bytes) -> str:
    """Return the topic id in ``partition.metadata``.

    Raises:
        DamagedFileError: the file does not parse.
    """
    try:
        lines = [line.partition(":") for line in data.decode("ascii").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"not text: {error}") from error
    values = {name.strip(): value.strip() for name, _, value in lines}
    topic_id = values.get("topic_id", "")
    if values.get("version") != "0" or len(topic_id) != 22:
        raise DamagedFileError("partition.metadata must have version 0 and a topic id of 22 characters")
    return topic_id


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Identity of a log directory; ``extra`` keeps keys that Paceline does not use."""

    broker_id: int | None
    cluster_id: str | None
    extra: Mapping[str, str] = field(default_factory=dict)


def encode_meta_properties(meta: MetaProperties, date: str) -> bytes:
    """Return the content of ``meta.properties``; ``date`` becomes a comment line, as in files that Java writes."""
    lines = ["#", f"#{date}"]
    if meta.broker_id is not None:
        lines.append(f"broker.id={meta.broker_id}")
    lines.append("version=0")
    if meta.cluster_id is not None:
        lines.append(f"cluster.id={meta.cluster_id}")
    lines.extend(f"{key}={value}" for key, value in sorted(meta.extra.items()))
    return ("\n".join(lines) + "\n").encode()


def decode_meta_properties(data: bytes) -> MetaProperties:
    """Return the identity in ``meta.properties``.

    Raises:
        DamagedFileError: the version is not 0, or the broker id is not a number.
    """
    try:
        lines = data.decode("latin-1").splitlines()
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"not text: {error}") from error
    pairs = (line.strip().partition("=") for line in lines if line.strip() and not line.lstrip().startswith(("#", "!")))
    values = {key.strip(): value.strip().replace("\\", "") for key, _, value in pairs}
    if values.pop("version", None) != "0":
        raise DamagedFileError("meta.properties has no version 0")
    broker = values.pop("broker.id", None)
    cluster = values.pop("cluster.id", None)
    return MetaProperties(None if broker is None else number(broker), cluster, values)
