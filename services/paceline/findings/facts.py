"""Facts about one partition at one time, as far as their gatherer knows them; `explain.py` turns them into findings.

Offsets are exclusive ends, except log starts. Ages are milliseconds at the time of the facts, other times are
milliseconds since the epoch. None means not known: a rule that needs the value is silent.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """One replica."""

    broker_id: int
    log_start_offset: int | None = None
    high_watermark: int | None = None
    """The replica's own high watermark, or the one last sent to it; may be older than the leader's."""
    log_end_offset: int | None = None
    applied_leader_epoch: int | None = None
    """Leader epoch of the newest LeaderAndIsr request that its broker has applied."""
    last_fetch_ago_ms: int | None = None
    """Since its last fetch, by the leader's clock; None when it has not fetched in this leader epoch."""
    caught_up_ago_ms: int | None = None
    """Since it last had the leader's log end; None when it never had in this leader epoch."""
    is_earlier: bool = False
    """Whether its offsets are older than those of the other replicas, because its broker has not answered since."""
    online: bool = True
    """Whether the controller believes that its broker is alive and its log directory works."""
    directory_offline: bool = False
    """Whether its log directory has failed."""
    fetch_refused: str | None = None
    """A clause about the refusal of its latest fetch because of an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """One broker with a replica of the partition."""

    broker_id: int
    alive: bool = True
    """Whether it is registered."""
    answers: bool | None = None
    """Whether it answered the gatherer; None when the gatherer did not ask."""
    has_lease: bool | None = None
    """Whether it has a lease of the controller (`controller.broker.lease.ms`) and is not stopping."""
    refusal: str | None = None
    """Why it refuses to act as the leader that the controller has elected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedFacts:
    """A replica that a reassignment waits for."""

    broker_id: int
    reason: str
    """A clause about it, for example "broker 4 is not alive"."""
    stuck: bool = False
    """Whether the reassignment will not continue without help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentFacts:
    """A running reassignment."""

    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    waits_for: tuple[AwaitedFacts, ...] = ()
    """Replicas of the target that are not in sync; empty when it is about to complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """One partition."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    controller: int | None
    """Id of the active controller; None when there is none."""
    controller_epoch: int
    isr: tuple[int, ...]
    maximal_isr: tuple[int, ...] = ()
    """The ISR and the replicas that an unanswered ISR change adds; empty when not known."""
    replicas: tuple[ReplicaFacts, ...]
    """In the order of the assignment: the first is the preferred leader."""
    brokers: tuple[BrokerFacts, ...] = ()
    min_insync_replicas: int | None = None
    unclean_election: bool | None = None
    """Value of `unclean.leader.election.enable`."""
    acknowledged_offset: int | None = None
    """Exclusive end of the records that a producer knows to be acknowledged with acks=all."""
    acknowledged_by_leader_offset: int | None = None
    """The same for any acks: to acks=1 a leader answers before its followers have the records."""
    read_offset: int | None = None
    """Exclusive end of the records that a consumer has received."""
    controller_epoch_falls: tuple[tuple[int, int, int], ...] = ()
    """Each request that a broker applied of an earlier controller than before: broker, epoch before, its epoch."""
    isr_before_election: tuple[int, ...] = ()
    """The ISR before the election of the present leader; empty when not known."""
    committed_under_min_isr: tuple[int, int] | None = None
    """High watermark before and after it moved in the last seconds while the ISR was too small."""
    isr_since_ms: int | None = None
    """Time of the latest change of the ISR."""
    under_min_isr_since_ms: int | None = None
    """Time since which the ISR has been smaller than ``min_insync_replicas``."""
    leader_since_ms: int | None = None
    """Time of the latest change of the leader, or of its loss."""
    high_watermark_since_ms: int | None = None
    """Time since which the leader's high watermark has stood where it is."""
    reassignment: ReassignmentFacts | None = None

    @property
    def replication_factor(self) -> int:
        """Number of replicas without those that a reassignment adds."""
        adding = self.reassignment.adding if self.reassignment else ()
        return sum(replica.broker_id not in adding for replica in self.replicas)
