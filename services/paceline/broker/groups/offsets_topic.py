"""Name of the offsets topic, and the partition of a group in it."""

from typing import Final

from paceline.model.java_hash import java_index, java_string_hash

OFFSETS_TOPIC: Final = "__consumer_offsets"


def partition_for(group_id: str, partition_count: int) -> int:
    """Return the partition that stores a group: Kafka's ``abs(hashCode) % partitions``.

    >>> partition_for("my-group", 50)
    12
    """
    return java_index(java_string_hash(group_id), partition_count)
