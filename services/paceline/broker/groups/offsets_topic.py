"""`OffsetsTopic`: interface for reads, appends and creation of ``__consumer_offsets``."""

from collections.abc import Callable
from typing import Final, Protocol

from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.java_hash import java_index, java_string_hash

OFFSETS_TOPIC: Final = "__consumer_offsets"


class OffsetsTopic(Protocol):
    """The offsets topic on this broker. End offsets are exclusive."""

    def partition_count(self) -> int | None:
        """Return the number of partitions of the topic, None when it does not exist."""

    def leader_of(self, partition: int) -> int | None:
        """Return the live broker that leads a partition, None without a live leader."""

    def leads(self, partition: int, leader_epoch: int) -> bool:
        """Whether this broker leads the partition in that epoch."""

    def is_known(self, topic_partition: TopicPartition) -> bool:
        """Whether the metadata of this broker has this partition of any topic."""

    def bounds(self, partition: int) -> tuple[int, int, int]:
        """Return log start offset, high watermark and log end offset.

        Raises:
            PacelineError: this broker does not lead the partition.
        """

    def read(self, partition: int, offset: int, max_bytes: int, limit_offset: int) -> bytes:
        """Return whole batches from ``offset`` onwards, at least one batch, none at or above ``limit_offset``.

        Raises:
            PacelineError: this broker does not lead the partition, or the log cannot be read.
        """

    def check_room(self, partition: int) -> None:
        """Refuse commits while the disk of a partition is short of room.

        Raises:
            LogDirFullError: it is; members and deletions of groups may still be written.
        """

    def append(
        self, partition: int, leader_epoch: int, batch: bytes, on_done: Callable[[int | PacelineError], None]
    ) -> None:
        """Append with acks=all; ``on_done`` gets the offset of the first record, or the error."""

    def create(self) -> None:
        """Ask the controller to create the topic, unless a request is in flight."""


def partition_for(group_id: str, partition_count: int) -> int:
    """Return the partition that stores a group: Kafka's ``abs(hashCode) % partitions``.

    >>> partition_for("my-group", 50)
    12
    """
    return java_index(java_string_hash(group_id), partition_count)
