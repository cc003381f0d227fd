"""Leader, leader epoch and ISR of a partition, and the version of the node that holds them."""

from dataclasses import dataclass

from paceline.model.identifiers import NO_LEADER


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """State of one partition in ZooKeeper (docs/protocol/zookeeper.md#partition-state-node)."""

    leader: int
    """Broker id, `NO_LEADER` (-1) when there is none."""
    leader_epoch: int
    """A controller's write increments the leader epoch; a leader's ISR write does not change it."""
    isr: tuple[int, ...]
    """In-sync replicas, in any order; never empty once written."""
    zk_version: int
    """Data version of the state node with these values."""
    controller_epoch: int
    """Epoch of the controller that decided the leadership."""

    def with_leader(self, leader: int, isr: tuple[int, ...], controller_epoch: int) -> "LeaderAndIsr":
        """Return the controller's next state: leader epoch plus one; the version is unchanged until the write."""
        return LeaderAndIsr(leader, self.leader_epoch + 1, isr, self.zk_version, controller_epoch)

    @property
    def has_leader(self) -> bool:
        """Whether the partition has a leader."""
        return self.leader != NO_LEADER
