"""`IsrProposal`: an ISR that a leader wants to write to ZooKeeper."""

from dataclasses import dataclass

from paceline.replication.leadership_proof import NEVER


@dataclass(slots=True, eq=False)
class IsrProposal:
    """An ISR that a leader proposes, and the state on which the proposal is based."""

    old_isr: tuple[int, ...]
    isr: tuple[int, ...]
    leader_epoch: int
    zk_version: int
    joiners: tuple[tuple[int, int], ...] = ()
    """Broker id and broker epoch of the joining replicas; the write checks their registration (KIP-903)."""
    decided_ms: int = NEVER
    """Time of the proposal; a successful write is later."""
