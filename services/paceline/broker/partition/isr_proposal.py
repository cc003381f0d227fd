"""`IsrProposal`: an ISR that a leader wants to write to ZooKeeper."""

from paceline.replication.leadership_proof import NEVER


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
