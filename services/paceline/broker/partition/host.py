"""`PartitionHost`: the calls that a partition makes to the broker that hosts it."""

from typing import Protocol, TypeVar

from paceline.broker.membership.topic_configs import TopicConfigs
from paceline.broker.metadata_cache import MetadataCache
from paceline.log.partition_log import PartitionLog
from paceline.model.settings import BrokerConfig
from paceline.model.state_change import StateChangeKind
from paceline.replication.follower_progress import FollowerProgress

P = TypeVar("P", contravariant=True)


class PartitionHost(Protocol[P]):
    """A broker, as its partitions see it; ``P`` is their class."""

    broker_id: int
    config: BrokerConfig
    metadata: MetadataCache
    topic_configs: TopicConfigs

    def now_ms(self) -> int:
        """Monotonic milliseconds."""

    def in_contact(self) -> bool:
        """Whether both the ZooKeeper session and the controller's lease are certainly valid."""

    def proof_since_ms(self) -> int:
        """Return the time since which the leaderships of this broker must be proved."""

    def maybe_expand_isr(self, partition: P, follower: FollowerProgress) -> None:
        """Propose to add a follower that has just fetched to the ISR, if it may join."""

    def log_start_moved(self, log: PartitionLog) -> None:
        """Delete whole segments below the log start, and store it before a response reports deleted records."""

    def record_change(self, partition: P, change: int) -> None:
        """Record a change (`PartitionChange`) for which readers and producers may wait."""

    def emit(
        self,
        kind: StateChangeKind,
        partition: P,
        old_isr: tuple[int, ...] | None = None,
        cause: str | None = None,
        end_offset: int | None = None,
    ) -> None:
        """Record a state change of a partition, with the offsets of its replicas."""
