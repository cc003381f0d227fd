"""A broker's cluster metadata: an immutable snapshot, replaced by each UpdateMetadata.

Readers take `MetadataCache.snapshot` once per request. Live brokers and controller come from the latest request; cached
partitions that it does not list stay. A cached partition never moves back to a lower (leader epoch, zk version) of the
same topic id. Source: docs/protocol/replication.md#metadata-cache.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from paceline.model.control import Endpoint, LiveBroker, UpdateMetadataPartition, UpdateMetadataRequest
from paceline.model.identifiers import LEADER_DURING_DELETE, TopicPartition

LATEST_ARRIVAL: Final = 100_000
"""A request whose sequence is lower than the latest by this much or more is not a late retry."""

Partitions = Mapping[int, UpdateMetadataPartition]


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """The cluster after an UpdateMetadata."""

    version: int = 0
    """Number of requests applied so far."""
    brokers: Mapping[int, LiveBroker] = field(default_factory=dict)
    topics: Mapping[str, Partitions] = field(default_factory=dict)
    controller_id: int | None = None
    controller_epoch: int = 0
    controller_endpoints: tuple[Endpoint, ...] = ()

    def partition(self, topic_partition: TopicPartition) -> UpdateMetadataPartition | None:
        """Return the cached state of a partition."""
        partitions = self.topics.get(topic_partition.topic)
        return None if partitions is None else partitions.get(topic_partition.partition)

    def registered_broker_epoch(self, broker_id: int) -> int | None:
        """Return a live broker's epoch; None when it is not alive, -1 when the controller did not send it."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.broker_epoch

    def is_offline_replica(self, topic_partition: TopicPartition, broker_id: int) -> bool:
        """Whether the replica is not live, its broker is shutting down, or its log directory has failed."""
        state = self.partition(topic_partition)
        return state is not None and broker_id in state.offline_replicas


class MetadataCache:
    """Holds the current snapshot and replaces it with each update."""

    def __init__(self) -> None:
        self._snapshot = MetadataSnapshot()
        self._sequence = 0
        """Sequence of the latest request in its controller epoch."""

    @property
    def snapshot(self) -> MetadataSnapshot:
        """The current snapshot, which never changes; an update replaces it."""
        return self._snapshot

    def is_overtaken(self, request: UpdateMetadataRequest) -> bool:
        """Whether a later request of the same controller epoch was already applied.

        A request that timed out at its sender may still arrive after later requests. It would restore outdated live
        brokers and offline replicas, which have no epochs. The sequence of such a request is slightly lower than the
        latest sequence. A request with a much lower sequence is accepted, because the latest sequence was probably
        wrong: one absurd sequence must not block metadata updates until the next controller epoch.
        """
        is_same_term = request.stamp.controller_epoch == self._snapshot.controller_epoch
        return is_same_term and max(0, self._sequence - LATEST_ARRIVAL) < request.sequence < self._sequence

    def update(self, request: UpdateMetadataRequest) -> tuple[TopicPartition, ...]:
        """Apply a request that passed the epoch checks; return the deleted partitions, including re-created ones."""
        old = self._snapshot
        self._sequence = request.sequence
        topics: dict[str, Partitions] = dict(old.topics)
        touched: dict[str, dict[int, UpdateMetadataPartition]] = {}
        named: dict[str, UpdateMetadataPartition] = {}
        removed: list[TopicPartition] = []
        for state in request.partitions:
            topic, index = state.topic_partition
            partitions = touched.get(topic)
            if partitions is None:
                partitions = touched[topic] = dict(topics.get(topic, {}))
            known = partitions.get(index)
            if state.leader == LEADER_DURING_DELETE:
                if known is not None and _same_topic(known, state):
                    del partitions[index]
                    removed.append(state.topic_partition)
            elif known is None or not _is_older(state, known):
                partitions[index] = state
                is_replaced = known is not None and not _same_topic(state, known)
                if is_replaced:
                    removed.append(state.topic_partition)
                if known is None or is_replaced:
                    named[topic] = state
        for topic, state in named.items():
            removed += _drop_namesakes(touched[topic], state)
        for topic, partitions in touched.items():
            if partitions:
                topics[topic] = partitions
            else:
                topics.pop(topic, None)
        self._snapshot = MetadataSnapshot(
            version=old.version + 1,
            brokers={broker.broker_id: broker for broker in request.live_brokers},
            topics=topics,
            controller_id=request.stamp.controller_id,
            controller_epoch=request.stamp.controller_epoch,
            controller_endpoints=request.controller_endpoints,
        )
        return tuple(removed)


def _same_topic(one: UpdateMetadataPartition, other: UpdateMetadataPartition) -> bool:
    return one.topic_id is None or other.topic_id is None or one.topic_id == other.topic_id


def _drop_namesakes(
    partitions: dict[int, UpdateMetadataPartition], named: UpdateMetadataPartition
) -> list[TopicPartition]:
    """Remove the cached partitions of a deleted topic with the same name as ``named``; return them."""
    others = [index for index, state in partitions.items() if not _same_topic(state, named)]
    return [partitions.pop(index).topic_partition for index in others]


def _is_older(state: UpdateMetadataPartition, known: UpdateMetadataPartition) -> bool:
    """Whether ``state`` would move a partition of the same topic back.

    The assignment and the offline replicas change without a new epoch, so an equal pair is not older.
    """
    if not _same_topic(state, known):
        return False
    return (state.leader_epoch, state.zk_version) < (known.leader_epoch, known.zk_version)
