"""Content of ``/controller_journal``: the partitions written by the active controller's latest multis.

Example: ``{"version":1,"sequence":21474836491,"since":21474836489,"batches":[{"sequence":21474836490,
"partitions":{"t":[0,3]}},{"sequence":21474836491,"partitions":{"u":[7]}}]}``.

Each multi that writes partition states increments the sequence. A controller with a copy of all states as of sequence
S, not below ``since``, reads the partitions of the batches after S; then its copy is as of ``sequence``. The list is
limited in bytes: the oldest batches are dropped, which raises ``since``, and a controller whose copy is older than
``since`` reads all states.

Source: docs/protocol/zookeeper.md#controller-journal.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.znodes.json_codec import (
    MAX_INT32,
    MAX_INT64,
    JsonObject,
    JsonValue,
    decode_object,
    encode_json,
)
from paceline.model.errors import InvalidTopicError
from paceline.model.identifiers import TopicPartition, validate_topic_name

EPOCH_SHIFT = 32
"""The first sequence of an epoch is the epoch shifted left by this number of bits, so that sequences never repeat."""


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """Partitions written by one multi."""

    sequence: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """The node's content."""

    sequence: int
    since: int
    batches: tuple[JournalBatch, ...] = ()
    """All batches after ``since``, oldest first."""

    def touched_after(self, sequence: int) -> Iterable[TopicPartition]:
        """Return the partitions that may have changed after ``sequence``, which must not be below ``since``."""
        later = (batch.partitions for batch in self.batches if batch.sequence > sequence)
        return dict.fromkeys(partition for partitions in later for partition in partitions)


def first_sequence(controller_epoch: int) -> int:
    """Return the sequence at the start of an epoch; its multis have higher sequences."""
    return controller_epoch << EPOCH_SHIFT


def encode_journal(sequence: int, since: int, batches: Iterable[JournalBatch] = ()) -> bytes:
    """Return the node's data."""
    encoded: list[JsonValue] = [
        {"sequence": batch.sequence, "partitions": _by_topic(batch.partitions)} for batch in batches
    ]
    return encode_json({"version": 1, "sequence": sequence, "since": since, "batches": encoded})


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, JsonValue]:
    listed: dict[str, list[JsonValue]] = {}
    for topic, partition in partitions:
        listed.setdefault(topic, []).append(partition)
    return dict[str, JsonValue](listed)


def decode_journal(path: str, data: bytes | None) -> JournalEntry:
    """Return the node's content. Raises MalformedZnodeError."""
    node = decode_object(path, data)
    node.version(1)
    sequence = node.integer("sequence", 0, MAX_INT64)
    since = node.integer("since", 0, sequence)
    batches = []
    for member in node.objects("batches"):
        number = member.integer("sequence", 0, sequence)
        batches.append(JournalBatch(number, tuple(_partitions(path, member.object("partitions")))))
    return JournalEntry(sequence, since, tuple(batches))


def _partitions(path: str, members: JsonObject) -> Iterable[TopicPartition]:
    for topic in members.extra(frozenset()):
        try:
            validate_topic_name(topic)
        except InvalidTopicError as error:
            raise MalformedZnodeError(path, str(error)) from None
        yield from (TopicPartition(topic, number) for number in members.integers(topic, 0, MAX_INT32))
