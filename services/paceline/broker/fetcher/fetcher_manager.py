"""Assign each followed partition to a fetcher. Source: docs/protocol/replication.md#fetchers.

There is one fetcher per (leader broker, fetcher id), created on demand and closed when it has no partition. The id
depends only on the partition, so a partition never moves between the fetchers of one leader.
"""

from collections.abc import Iterable

from paceline.broker.fetcher.fetch_state import FetchState
from paceline.broker.fetcher.replica_fetcher import ReplicaFetcher
from paceline.broker.interfaces import BrokerTransport
from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.partition.partition import Partition
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.model.control import LiveBroker
from paceline.model.identifiers import TopicPartition
from paceline.model.java_hash import java_index, java_string_hash


def fetcher_id_for(topic_partition: TopicPartition, fetcher_count: int) -> int:
    """Return ``|31 * hash(topic) + partition| mod fetcher_count`` in Java's 32-bit arithmetic."""
    return java_index(31 * java_string_hash(topic_partition.topic) + topic_partition.partition, fetcher_count)


class FetcherManager:
    """All fetchers of a broker."""

    def __init__(self, transport: BrokerTransport, hosted: HostedPartitions, storage: ReplicaStorage) -> None:
        self._transport = transport
        self._hosted = hosted
        self._storage = storage
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._owners: dict[TopicPartition, ReplicaFetcher] = {}
        self._closed_bytes = 0
        self._closed_requests = 0
        self.failed: dict[TopicPartition, None] = {}
        """Partitions whose fetching failed, until the next LeaderAndIsr for them."""

    @property
    def fetchers(self) -> tuple[ReplicaFetcher, ...]:
        """All open fetchers."""
        return tuple(self._fetchers.values())

    @property
    def bytes_in(self) -> int:
        """Bytes fetched so far, including closed fetchers."""
        return self._closed_bytes + sum(fetcher.bytes_in for fetcher in self._fetchers.values())

    @property
    def request_count(self) -> int:
        """Fetches sent so far, including closed fetchers."""
        return self._closed_requests + sum(fetcher.request_count for fetcher in self._fetchers.values())

    def state(self, topic_partition: TopicPartition) -> FetchState | None:
        """Return the fetch progress of a partition, None when it is not fetched."""
        owner = self._owners.get(topic_partition)
        return None if owner is None else owner.states.get(topic_partition)

    def note_reader(self, topic_partition: TopicPartition) -> bool:
        """Record a client's read from this follower; return whether the partition's leader has answered recently."""
        owner = self._owners.get(topic_partition)
        return owner is not None and owner.note_reader()

    def start(self, partitions: Iterable[tuple[Partition, LiveBroker]]) -> None:
        """Start fetching each partition from its leader, in the partition's present leader epoch."""
        touched: dict[ReplicaFetcher, None] = {}
        for partition, leader in partitions:
            topic_partition = partition.topic_partition
            self.failed.pop(topic_partition, None)
            fetcher = self._fetcher(leader, fetcher_id_for(topic_partition, self._hosted.config.num_replica_fetchers))
            owner = self._owners.get(topic_partition)
            if owner is not None and owner is not fetcher:
                owner.remove(topic_partition)
            fetcher.add(partition)
            self._owners[topic_partition] = fetcher
            touched[fetcher] = None
        for fetcher in touched:
            fetcher.run()

    def stop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching partitions; responses in flight are not applied."""
        for topic_partition in topic_partitions:
            self.failed.pop(topic_partition, None)
            owner = self._owners.pop(topic_partition, None)
            if owner is not None:
                owner.remove(topic_partition)

    def close_idle(self) -> None:
        """Close fetchers that own no partition, except those that find out when a lost leader answers again."""
        brokers, now_ms = self._hosted.metadata.snapshot.brokers, self._hosted.now_ms()
        for key, fetcher in tuple(self._fetchers.items()):
            known = brokers.get(fetcher.leader.broker_id)
            is_there = known is not None and known.endpoints == fetcher.leader.endpoints
            if not len(fetcher) and not (is_there and fetcher.contact.is_lost(now_ms)):
                del self._fetchers[key]
                self._close(fetcher)

    def close(self) -> None:
        """Close every fetcher."""
        for fetcher in self._fetchers.values():
            self._close(fetcher)
        self._fetchers = {}
        self._owners = {}

    def _close(self, fetcher: ReplicaFetcher) -> None:
        self._closed_bytes += fetcher.bytes_in
        self._closed_requests += fetcher.request_count
        fetcher.close()

    def leader_reports(self) -> tuple[tuple[int, ...], ...]:
        """Return leaders whose fetch connection broke, leaders that have not answered for long, and all others."""
        fetchers, now_ms = self._fetchers.values(), self._hosted.now_ms()
        broken = {fetcher.leader.broker_id for fetcher in fetchers if fetcher.is_broken and len(fetcher)}
        lost = {fetcher.leader.broker_id for fetcher in fetchers if fetcher.contact.is_lost(now_ms)}
        others = {fetcher.leader.broker_id for fetcher in fetchers} - lost
        return tuple(tuple(sorted(leaders)) for leaders in (broken, lost, others))

    def max_lag(self) -> int:
        """Return the largest known lag in records, 0 when no partition is fetched."""
        lags = (state.lag or 0 for fetcher in self._fetchers.values() for state in fetcher.states.values())
        return max(lags, default=0)

    def _fetcher(self, leader: LiveBroker, fetcher_id: int) -> ReplicaFetcher:
        key = (leader.broker_id, fetcher_id)
        fetcher = self._fetchers.get(key)
        if fetcher is not None and fetcher.leader.endpoints == leader.endpoints:
            return fetcher
        made = ReplicaFetcher(
            leader,
            fetcher_id,
            self._transport,
            self._hosted,
            self._storage,
            self._set_aside,
            self.close_idle,
        )
        self._fetchers[key] = made
        if fetcher is not None:
            self._move(fetcher, made)
        return made

    def _move(self, old: ReplicaFetcher, new: ReplicaFetcher) -> None:
        """Move all partitions to a fetcher with a new connection, because the leader's address changed."""
        moving = [state.partition for state in old.states.values()]
        self._close(old)
        for partition in moving:
            if not partition.is_leader and partition.log is not None:
                new.add(partition)
                self._owners[partition.topic_partition] = new

    def _set_aside(self, topic_partition: TopicPartition) -> None:
        self._owners.pop(topic_partition, None)
        self.failed[topic_partition] = None
