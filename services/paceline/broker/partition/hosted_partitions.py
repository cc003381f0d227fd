"""`HostedPartitions`: the Online and Offline partitions of a broker, by name and by topic.

Source: docs/protocol/replication.md#hosted-partitions.
"""

from collections.abc import Callable, Iterable, Mapping

from paceline.broker.partition.partition import Partition
from paceline.model.identifiers import TopicPartition


class HostedPartitions:
    """Partitions by name; a partition in neither dictionary is not hosted."""

    def __init__(self, on_topic_left: Callable[[str], None]) -> None:
        """``on_topic_left`` is called with each topic whose last hosted partition was dropped."""
        self.online: dict[TopicPartition, Partition] = {}
        self.offline: dict[TopicPartition, None] = {}
        """Partitions with a failed log directory or damaged log; most stay Offline until a restart."""
        self._by_topic: dict[str, dict[int, Partition]] = {}
        self._on_topic_left = on_topic_left

    def add(self, partition: Partition, topic_id: str | None) -> None:
        """Add an Online partition of the topic with id ``topic_id``."""
        topic, index = partition.topic_partition
        self.online[partition.topic_partition] = partition
        siblings = self._by_topic.setdefault(topic, {})
        earliest = next(iter(siblings.values()), None)
        siblings[index] = partition
        if earliest is not None and topic_id is not None and earliest.topic_id not in (None, topic_id):
            # A partition of a deleted topic with this name is still hosted: drop the settings of the deleted topic.
            self._on_topic_left(topic)

    def drop(self, topic_partition: TopicPartition) -> Partition | None:
        """Stop hosting a partition; return it if it was Online."""
        topic, index = topic_partition
        siblings = self._by_topic.get(topic)
        if siblings is not None and siblings.pop(index, None) is not None and not siblings:
            del self._by_topic[topic]
            self._on_topic_left(topic)
        return self.online.pop(topic_partition, None)

    def of_topic(self, topic: str) -> Mapping[int, Partition]:
        """Return the Online partitions of a topic by number."""
        return self._by_topic.get(topic, {})

    def among(self, topics: Iterable[str]) -> list[str]:
        """Return the topics with a hosted partition, each once."""
        return [topic for topic in dict.fromkeys(topics) if topic in self._by_topic]

    def roles(self, topic: str) -> tuple[bool, bool]:
        """Return whether this broker leads, and whether it follows, a partition of the topic."""
        hosted = self.of_topic(topic).values()
        return any(one.is_leader for one in hosted), any(not one.is_leader for one in hosted)

    def led(self) -> list[Partition]:
        """Return the partitions that this broker leads."""
        return [partition for partition in self.online.values() if partition.is_leader]
