"""Content of ``/controller_journal``: what the last multis of the active controller touched (ours, design 3.12).

``{"version":1,"sequence":21474836491,"since":21474836480,"partitions":{"t":[0,3]}}``: whoever knows every partition
state as of sequence ``since``, or later, knows all as of ``sequence`` after reading the partitions listed. The form for
"too many" has ``since`` equal to ``sequence`` and no partitions: whoever is behind reads all.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.znode_json import MAX_INT32, MAX_INT64, JsonValue, decode_object, encode_json
from paceline.model.errors import InvalidTopicError
from paceline.model.identifiers import TopicPartition, validate_topic_name

EPOCH_SHIFT = 32
"""A term's first sequence is its controller epoch shifted by this: no two terms ever use the same number."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """The node's content."""

    sequence: int
    since: int
    partitions: tuple[TopicPartition, ...] = ()
    """Touched after ``since``, up to ``sequence``."""

    @property
    def controller_epoch(self) -> int:
        """Epoch of the term that wrote it."""
        return self.sequence >> EPOCH_SHIFT


def first_sequence(controller_epoch: int) -> int:
    """Return the sequence a term starts from; its multis come after it."""
    return controller_epoch << EPOCH_SHIFT


def encode_journal(sequence: int, since: int, partitions: Iterable[TopicPartition]) -> bytes:
    """Return the node's data."""
    by_topic: dict[str, list[JsonValue]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    listed: dict[str, JsonValue] = dict(by_topic)
    return encode_json({"version": 1, "sequence": sequence, "since": since, "partitions": listed})


def decode_journal(path: str, data: bytes | None) -> JournalEntry:
    """Return the node's content. Raises MalformedZnodeError."""
    node = decode_object(path, data)
    node.version(1)
    sequence = node.integer("sequence", 0, MAX_INT64)
    since = node.integer("since", 0, sequence)
    members = node.object("partitions")
    partitions: list[TopicPartition] = []
    for topic in members.extra(frozenset()):
        try:
            validate_topic_name(topic)
        except InvalidTopicError as error:
            raise MalformedZnodeError(path, str(error)) from None
        partitions.extend(TopicPartition(topic, number) for number in members.integers(topic, 0, MAX_INT32))
    return JournalEntry(sequence, since, tuple(partitions))
