"""Leader, leader epoch and ISR of a partition, and the version of the node that holds them."""

from dataclasses import dataclass

from paceline.model.identifiers import NO_LEADER


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """State of one partition in ZooKeeper (docs/protocol/zookeeper.md#partition-state-node)."""

    leader: int
    """Broker id, `NO_LEADER` (-1) when there is none."""
    leader_epoch: int
    """Rises by one with every write of a controller; a leader's own ISR write keeps it."""
    isr: tuple[int, ...]
    """In-sync replicas; a set in meaning, never empty once written."""
    zk_version: int
    """Data version of the state node these values were read from or written at."""
    controller_epoch: int
    """Epoch of the controller that took the leadership decision."""

    def with_leader(self, leader: int, isr: tuple[int, ...], controller_epoch: int) -> "LeaderAndIsr":
        """Return the next decision of a controller: leader epoch plus one, same version until written."""
        return LeaderAndIsr(leader, self.leader_epoch + 1, isr, self.zk_version, controller_epoch)

    @property
    def has_leader(self) -> bool:
        """Whether some broker leads the partition."""
        return self.leader != NO_LEADER
