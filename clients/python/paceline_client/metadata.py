"""Cache cluster metadata: brokers, topics, leaders. Pure; `metadata_refresher.py` refreshes the cache.

A partition never returns to an older leader epoch of the same topic id, so late responses and responses of brokers with
outdated metadata are ignored (KIP-320).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from paceline.model.addresses import address_of
from paceline.model.admin import PartitionDescription
from paceline.model.errors import PacelineError, error_for
from paceline.model.identifiers import TopicPartition
from paceline.v1.errors_pb2 import LeaderHint
from paceline.v1.metadata_service_pb2 import DescribeClusterResponse
from paceline.v1.metadata_service_pb2 import TopicDescription as WireTopic


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker and its address."""

    broker_id: int
    host: str
    port: int
    rack: str = ""

    @property
    def address(self) -> str:
        """``host:port``."""
        return address_of(self.host, self.port)

    def __str__(self) -> str:
        return f"broker {self.broker_id} ({self.address})"


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic; ``partitions`` is sorted by partition number."""

    name: str
    topic_id: str
    partitions: tuple[PartitionDescription, ...] = field(default_factory=tuple)


def broker_of(info: object) -> Broker:
    """Return a `Broker` from its wire form."""
    return Broker(info.id, info.host, info.port, info.rack)  # type: ignore[attr-defined]


def topic_of(wire: WireTopic) -> TopicDescription:
    """Return a topic from its wire form."""
    partitions = sorted(
        (
            PartitionDescription(
                p.partition,
                p.leader if p.HasField("leader") and p.leader >= 0 else None,
                p.leader_epoch,
                tuple(p.replicas),
                tuple(p.isr),
                tuple(p.offline_replicas),
                tuple(p.adding_replicas),
                tuple(p.removing_replicas),
            )
            for p in wire.partitions
        ),
        key=lambda p: p.partition,
    )
    return TopicDescription(wire.name, wire.topic_id, tuple(partitions))


class ClusterMetadata:
    """Brokers, and the described topics with their partitions. Any thread may read it, one at a time may update it."""

    def __init__(self) -> None:
        self.brokers: dict[int, Broker] = {}
        self.version = 0
        """Increases when a broker, leader or other field of a partition changes."""
        self._topics: dict[str, dict[int, PartitionDescription]] = {}
        self._topic_ids: dict[str, str] = {}
        self._errors: dict[str, PacelineError] = {}

    def update_cluster(self, answer: DescribeClusterResponse) -> None:
        """Replace the live brokers; ignore an empty list, which a starting broker sends."""
        if not answer.brokers:
            return
        brokers = {info.id: broker_of(info) for info in answer.brokers}
        if brokers != self.brokers:
            self.brokers = brokers
            self.version += 1

    def update_topic(self, wire: WireTopic) -> None:
        """Update a topic, except partitions with an older leader epoch in the response; an error is only stored."""
        if wire.HasField("error"):
            error = error_for(wire.error.code, f"topic {wire.name}: {wire.error.message or 'cannot be described'}")
            self._errors[wire.name] = error
            return
        self._errors.pop(wire.name, None)
        topic = topic_of(wire)
        before = self._topics.get(topic.name)
        if before is None or self._topic_ids.get(topic.name) != topic.topic_id:
            after = {p.partition: p for p in topic.partitions}
        else:
            after = dict(before)
            for p in topic.partitions:
                known = before.get(p.partition)
                if known is None or p.leader_epoch >= known.leader_epoch:
                    after[p.partition] = p
        if after != before:
            self.version += 1
        self._topics[topic.name] = after
        self._topic_ids[topic.name] = topic.topic_id

    def apply_hint(self, topic_partition: TopicPartition, hint: LeaderHint) -> bool:
        """Set the leader named by a response; return whether the leader or its epoch changed.

        A hint is ignored if its topic id differs, its leader epoch is lower, the partition is not known, or neither the
        hint nor the cache has an address for the leader.
        """
        if hint.topic_id and hint.topic_id != self.topic_id(topic_partition.topic):
            return False
        known = self.partition(topic_partition)
        if known is None or hint.leader_id < 0 or hint.leader_epoch < known.leader_epoch:
            return False
        if hint.leader_epoch == known.leader_epoch and known.leader == hint.leader_id:
            return False
        if hint.leader_id not in self.brokers:
            if not hint.host or not hint.port:
                return False
            self.brokers = {**self.brokers, hint.leader_id: Broker(hint.leader_id, hint.host, hint.port)}
        self._topics[topic_partition.topic][topic_partition.partition] = replace(
            known, leader=hint.leader_id, leader_epoch=hint.leader_epoch
        )
        self.version += 1
        return True

    def partition(self, topic_partition: TopicPartition) -> PartitionDescription | None:
        """Return one partition, None when it is not known."""
        topic, index = topic_partition
        return self._topics.get(topic, {}).get(index)

    def leader_of(self, topic_partition: TopicPartition) -> Broker | None:
        """Return the leader, None when the partition has no leader or the leader is not among the brokers."""
        known = self.partition(topic_partition)
        return None if known is None or known.leader is None else self.brokers.get(known.leader)

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic, 0 when it is not known."""
        return len(self._topics.get(topic, ()))

    def available_partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic whose leader is among the brokers, sorted."""
        return sorted(p.partition for p in self._topics.get(topic, {}).values() if p.leader in self.brokers)

    def topic_id(self, topic: str) -> str:
        """Return the topic's id, empty when it is not known."""
        return self._topic_ids.get(topic, "")

    def error_of(self, topic: str) -> PacelineError | None:
        """Return the error in the last description of the topic, None without an error."""
        return self._errors.get(topic)

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Drop topics that are no longer used."""
        for topic in topics:
            self._topics.pop(topic, None)
            self._topic_ids.pop(topic, None)
            self._errors.pop(topic, None)
