"""The small text files: offset checkpoints, the leader-epoch file, ``partition.metadata``, ``meta.properties``.

Offset checkpoints and epoch files share a shape: version ``0``, the number of entries, one entry per line, fields
separated by white space. Written aside, fsynced and renamed over.
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


class DamagedFileError(KafkaStorageError):
    """A text file of a log directory cannot be read; its content has to be rebuilt or left out."""


def encode_lines(lines: Iterable[str]) -> bytes:
    """Return a checkpoint file with these entry lines."""
    entries = list(lines)
    return "\n".join(("0", str(len(entries)), *entries, "")).encode()


def decode_lines(data: bytes, field_count: int) -> list[list[str]]:
    """Return the fields of each entry; an empty file has none.

    Raises:
        DamagedFileError: another version, a count that does not match, or a line with other than ``field_count``
            fields.
    """
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"not text: {error}") from error
    if not lines:
        return []
    if lines[0].strip() != "0":
        raise DamagedFileError(f"version {lines[0][:20]!r} is not known")
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(lines) < 2 or lines[1].strip() != str(len(entries)):
        raise DamagedFileError(f"the file has {len(entries)} entries and says another number")
    if any(len(entry) != field_count for entry in entries):
        raise DamagedFileError(f"an entry has other than {field_count} fields")
    return entries


def number(text: str) -> int:
    """Return a decimal number as it stands in these files.

    Raises:
        DamagedFileError: it is not one, or beyond 64 bits.
    """
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or int(digits) >= 2**63:
        raise DamagedFileError(f"{text[:30]!r} is not a number")
    return int(text)


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return an offset checkpoint."""
    return encode_lines(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Return the partitions and offsets of an offset checkpoint, in its order.

    Raises:
        DamagedFileError: the file does not parse.
    """
    return {
        TopicPartition(topic, number(partition)): number(offset) for topic, partition, offset in decode_lines(data, 3)
    }


def read_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """Return an offset checkpoint's content, nothing when the file is missing.

    Raises:
        DamagedFileError: the file does not parse.
        OSError: it cannot be read.
    """
    return decode_offsets(read_all(files, path)) if files.exists(path) else {}


def write_offsets(files: Files, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace an offset checkpoint, durably.

    Raises:
        OSError: storage failed.
    """
    write_atomically(files, path, encode_offsets(offsets))


def encode_partition_metadata(topic_id: str) -> bytes:
    """Return ``partition.metadata`` for a topic id."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def decode_partition_metadata(data: bytes) -> str:
    """Return the topic id.

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
        raise DamagedFileError("partition.metadata has no version 0 or no topic id of 22 characters")
    return topic_id


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Identity of a log directory; ``extra`` keeps keys that are not ours."""

    broker_id: int | None
    cluster_id: str | None
    extra: Mapping[str, str] = field(default_factory=dict)


def encode_meta_properties(meta: MetaProperties, date: str) -> bytes:
    """Return ``meta.properties``; ``date`` is the comment line Java writes."""
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
        DamagedFileError: not version 0, or the broker id is no number.
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
