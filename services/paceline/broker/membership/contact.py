"""`ClusterContact`: whether this broker certainly has its ZooKeeper session and the controller's lease."""

from paceline.coordination.interface import ZooKeeper
from paceline.model.scheduler import Scheduler
from paceline.model.settings import BrokerConfig
from paceline.replication.leadership_proof import LeadershipProof


class ClusterContact:
    """The registration of a broker, and the proof that it was not deposed (`replication.leadership_proof`)."""

    def __init__(self, config: BrokerConfig, zookeeper: ZooKeeper, scheduler: Scheduler) -> None:
        self._zookeeper = zookeeper
        self._scheduler = scheduler
        self._stopped = False
        self.now_ms = scheduler.now_ms
        self.broker_epoch = -1
        """czxid of the present registration, -1 before the first."""
        self.proof = LeadershipProof(
            config.zookeeper_session_timeout_ms,
            config.controller_broker_lease_ms,
            config.replica_fetch_wait_max_ms,
            scheduler.now_ms(),
        )

    def start(self) -> None:
        """Record regularly that the event loop runs: after a gap, data waiting in sockets proves no leadership."""
        if not self._stopped:
            self.proof.loop_runs(self.now_ms())
            self._scheduler.call_later(self.proof.check_every_ms, self.start)

    def stop(self) -> None:
        """End the timer."""
        self._stopped = True

    def in_contact(self) -> bool:
        """Whether both the ZooKeeper session and the controller's lease are certainly valid."""
        return not (self._zookeeper.session_may_be_over or self.proof.lease_may_be_over(self.now_ms()))

    def proof_since_ms(self) -> int:
        """Return the time since which the leaderships of this broker must be proved."""
        return self.proof.since_ms(self.now_ms(), self._zookeeper.session_may_be_over)
