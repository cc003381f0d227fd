"""What a fetcher needs of the broker around it."""

from typing import Protocol

from paceline.broker.partition.partition import Partition
from paceline.broker.replication_quotas import ReplicationQuotas
from paceline.broker.traffic import BrokerTraffic
from paceline.log.damage import DamagedLogError
from paceline.model.identifiers import TopicPartition


class FetcherHost(Protocol):
    """What a fetcher needs of the broker around it."""

    traffic: BrokerTraffic

    @property
    def broker_id(self) -> int:
        """This broker."""

    @property
    def broker_epoch(self) -> int:
        """Epoch of the present registration."""

    quotas: ReplicationQuotas
    """How fast throttled replicas may be copied."""

    def is_unread(self, topic: str) -> bool:
        """Whether the topic's settings are still to be read for the first time."""

    def storage_failed(self, topic_partition: TopicPartition) -> None:
        """A log operation failed on storage."""

    def make_log_starts_durable(self) -> None:
        """Write log starts that have moved; the next fetch tells them to the leader, who tells clients (KIP-107)."""

    def deliver_news(self) -> None:
        """Complete what waits for what an answer has brought."""

    def log_damaged(self, topic_partition: TopicPartition, error: DamagedLogError) -> object:
        """This replica's own log is damaged."""

    def fetch_connection_broke(self) -> None:
        """A fetcher has lost the connection to its leader."""

    def fetching_failed(self, partition: Partition, reason: str) -> None:
        """The partition is not fetched any more until the next LeaderAndIsr names it."""
