"""Interface of the broker for a hosted partition, and its ISR proposal."""

from typing import TYPE_CHECKING, Protocol

from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChangeKind
from paceline.replication.leadership_proof import NEVER

if TYPE_CHECKING:
    from paceline.broker.partition.partition import Partition


class IsrProposal:
    """An ISR that a leader proposes, and the state on which the proposal is based."""

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
        """Broker id and broker epoch of the joining replicas; the write checks their registration (KIP-903)."""
        self.decided_ms = decided_ms
        """Time of the proposal; a successful write is later."""


class PartitionHost(Protocol):
    """The part of the broker that a partition uses."""

    @property
    def broker_id(self) -> int:
        """This broker."""

    @property
    def replica_lag_time_max_ms(self) -> int:
        """Longest time for which an ISR member may lag."""

    def now_ms(self) -> int:
        """Monotonic milliseconds."""

    def proof_since_ms(self) -> int:
        """Return the time since which leaders must prove their leadership (`replication.leadership_proof`)."""

    def in_contact(self) -> bool:
        """Whether both the ZooKeeper session and the controller's lease are certainly valid."""

    def registered_broker_epoch(self, broker_id: int) -> int | None:
        """Epoch of a live broker, None when it is not alive."""

    def is_offline_replica(self, topic_partition: TopicPartition, broker_id: int) -> bool:
        """Whether the replica's broker is shutting down or the replica is offline."""

    def is_unread(self, topic: str) -> bool:
        """Whether the topic's settings, including ``min.insync.replicas``, have not been read yet."""

    def deletion_is_known(self, topic: str) -> bool:
        """Whether all settings that control the deletion of the topic's records are known."""

    def propose_isr(self, partition: "Partition", proposal: IsrProposal) -> None:
        """Write a proposal; the result is passed to a method of `IsrUpdates`."""

    def isr_committed(self, partition: "Partition", old_isr: tuple[int, ...]) -> None:
        """Handle a successful ISR write of this partition."""

    def news(self, partition: "Partition", news: int) -> None:
        """Report a change for which readers or producers may wait."""

    def log_start_moved(self, partition: "Partition") -> None:
        """Handle a raised log start offset; whole segments may be deletable."""

    def emit(
        self,
        kind: StateChangeKind,
        partition: "Partition",
        old_isr: tuple[int, ...] | None = None,
        cause: str | None = None,
        end_offset: int | None = None,
    ) -> None:
        """Record a state change."""
