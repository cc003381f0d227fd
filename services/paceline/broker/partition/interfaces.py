"""What a hosted partition needs of the broker around it, and what it proposes to write."""

from typing import TYPE_CHECKING, Protocol

from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChangeKind
from paceline.replication.leadership_proof import NEVER

if TYPE_CHECKING:
    from paceline.broker.partition.partition import Partition


class IsrProposal:
    """An ISR a leader wants to write, and the state it was decided on."""

    __slots__ = ("decided_ms", "isr", "joiners", "leader_epoch", "old_isr", "zk_version")

    def __init__(
        self,
        old_isr: tuple[int, ...],
        isr: tuple[int, ...],
        leader_epoch: int,
        zk_version: int,
        joiners: tuple[tuple[int, int], ...] = (),
        decided_ms: int = NEVER,
    ) -> None:
        self.old_isr = old_isr
        self.isr = isr
        self.leader_epoch = leader_epoch
        self.zk_version = zk_version
        self.joiners = joiners
        """Broker id and broker epoch of those that join; the write checks their registration (KIP-903)."""
        self.decided_ms = decided_ms
        """When it was decided; the write, if it succeeds, is later."""


class PartitionHost(Protocol):
    """What a partition needs of the broker around it."""

    @property
    def broker_id(self) -> int:
        """This broker."""

    @property
    def replica_lag_time_max_ms(self) -> int:
        """How long a follower may lack records."""

    def now_ms(self) -> int:
        """Monotonic milliseconds."""

    def proof_since_ms(self) -> int:
        """Return since when leaders have to prove their leadership (`replication.leadership_proof`)."""

    def in_contact(self) -> bool:
        """Whether neither the ZooKeeper session nor the controller's lease may be over."""

    def registered_broker_epoch(self, broker_id: int) -> int | None:
        """Epoch of a live broker, None when it is not alive."""

    def is_offline_replica(self, topic_partition: TopicPartition, broker_id: int) -> bool:
        """Whether the replica's broker is shutting down or the replica is offline."""

    def is_unread(self, topic: str) -> bool:
        """Whether the topic's settings, ``min.insync.replicas`` among them, are still to be read for the first time."""

    def deletion_is_known(self, topic: str) -> bool:
        """Whether everything is known that decides which records of the topic may be deleted."""

    def propose_isr(self, partition: "Partition", proposal: IsrProposal) -> None:
        """Write it; the outcome comes back through one of the methods of `IsrUpdates`."""

    def isr_committed(self, partition: "Partition", old_isr: tuple[int, ...]) -> None:
        """An ISR write of this partition has succeeded."""

    def news(self, partition: "Partition", news: int) -> None:
        """Something readers or producers may wait for has happened."""

    def log_start_moved(self, partition: "Partition") -> None:
        """Records at the beginning of the log are deleted; whole segments of them may go."""

    def emit(
        self,
        kind: StateChangeKind,
        partition: "Partition",
        old_isr: tuple[int, ...] | None = None,
        cause: str | None = None,
        end_offset: int | None = None,
    ) -> None:
        """Record a state change."""
