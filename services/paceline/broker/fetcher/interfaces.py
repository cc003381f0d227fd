"""Interface of the broker for its fetchers."""

from typing import Protocol

from paceline.broker.partition.partition import Partition
from paceline.broker.replication_quotas import ReplicationQuotas
from paceline.broker.traffic import BrokerTraffic
from paceline.log.damage import DamagedLogError
from paceline.model.identifiers import TopicPartition


class FetcherHost(Protocol):
    """The part of the broker that a fetcher uses."""

    traffic: BrokerTraffic

    @property
    def broker_id(self) -> int:
        """This broker."""

    @property
    def broker_epoch(self) -> int:
        """Epoch of the present registration."""

    quotas: ReplicationQuotas
    """Quotas for throttled replicas."""

    def is_unread(self, topic: str) -> bool:
        """Whether the topic's settings have not been read yet."""

    def storage_failed(self, topic_partition: TopicPartition) -> None:
        """Handle a storage failure of a log operation."""

    def make_log_starts_durable(self) -> None:
        """Persist changed log start offsets.

        The next fetch reports them to the leader, which reports them to clients (KIP-107).
        """

    def deliver_news(self) -> None:
        """Complete operations that waited for the contents of a response."""

    def log_damaged(self, topic_partition: TopicPartition, error: DamagedLogError) -> object:
        """Handle damage in this replica's log."""

    def fetch_connection_broke(self) -> None:
        """Handle a broken connection of a fetcher to its leader."""

    def fetching_failed(self, partition: Partition, reason: str) -> None:
        """Stop fetching a partition until the next LeaderAndIsr for it."""
