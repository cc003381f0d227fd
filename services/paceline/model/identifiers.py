"""Identifiers of topics, partitions and brokers, and special epoch values."""

import base64
import random
import re
from typing import Final, NamedTuple

from paceline.model.errors import InvalidTopicError

NO_LEADER: Final = -1
"""Leader id on the wire and in ZooKeeper when a partition has no leader."""

LEADER_DURING_DELETE: Final = -2
"""Leader id in UpdateMetadata for a partition that is being deleted."""

EPOCH_DURING_DELETE: Final = -2
"""Leader epoch in StopReplica for a partition that is being deleted; always accepted."""

NO_EPOCH: Final = -1
"""Leader epoch that means "not known"."""

MAX_TOPIC_NAME_LENGTH: Final = 249

_LEGAL_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return ``topic/partition``, as the command line reads it: ``topic-0`` may also be the name of a topic."""
        return f"{self.topic}/{self.partition}"


def new_id(rng: random.Random) -> str:
    """Return a new cluster or topic id: a type-4 UUID as 22 characters of URL-safe base64 without padding."""
    raw = bytearray(rng.randbytes(16))
    raw[6] = (raw[6] & 0x0F) | 0x40
    raw[8] = (raw[8] & 0x3F) | 0x80
    return base64.urlsafe_b64encode(bytes(raw)).rstrip(b"=").decode()


INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Topics that the cluster creates itself, and to which only brokers write."""


def validate_topic_name(name: str) -> None:
    """Check a topic name: 1 to 249 characters of ``[A-Za-z0-9._-]``, neither ``.`` nor ``..``.

    Raises:
        InvalidTopicError: the name is not valid; the message has the reason.

    Source: docs/protocol/zookeeper.md#topic-names.
    """
    if not name:
        raise InvalidTopicError("the topic name is empty")
    if name in {".", ".."}:
        raise InvalidTopicError(f"the topic name must not be {name!r}")
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        raise InvalidTopicError(f"the topic name has {len(name)} characters, the limit is {MAX_TOPIC_NAME_LENGTH}")
    if not _LEGAL_TOPIC_NAME.fullmatch(name):
        raise InvalidTopicError(
            f"the topic name {name!r} has characters other than ASCII letters, digits, '.', '_', '-'"
        )


def collision_key(name: str) -> str:
    """Return the name with ``.`` replaced by ``_``: two topics must not share it (their metric names would clash)."""
    return name.replace(".", "_")
