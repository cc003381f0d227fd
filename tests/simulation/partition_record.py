"""What the checks know of one partition of one topic id: its states in ZooKeeper, its true commit point, its replicas.

The true commit point (THW) is the largest high watermark ever held by a valid leader; no node stores it. Beside it
lies the committed log, taken from valid leaders as they moved it.
"""

from dataclasses import dataclass, field

from paceline.model.assignment import ReplicaAssignment
from paceline.model.identifiers import INTERNAL_TOPICS, TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from tests.simulation.observed_log import Mirror, ObservedLog

StateContent = tuple[int, int, tuple[int, ...]]
"""Leader, leader epoch, ISR."""


@dataclass(slots=True)
class PartitionRecord:
    """One partition. Brokers are known by id."""

    topic_partition: TopicPartition
    topic_id: str
    min_insync_replicas: int
    zk: LeaderAndIsr | None = None
    history: dict[int, StateContent] = field(default_factory=dict)
    """State content by zk version."""
    isr_written_in: dict[int, int] = field(default_factory=dict)
    """Registration of the leader that wrote an ISR, by zk version."""
    assignment: ReplicaAssignment = field(default_factory=lambda: ReplicaAssignment(()))
    committed: Mirror = field(default_factory=Mirror)
    thw: int = 0
    lineage: dict[tuple[int, int], int] = field(default_factory=dict)
    """Chain by (end, epoch) of every batch ever appended anywhere."""
    leaders: dict[int, int] = field(default_factory=dict)
    """Who became leader, by leader epoch."""
    led_us: dict[int, int] = field(default_factory=dict)
    """When the first broker began to lead in a leader epoch."""
    elected: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Who was elected, and when in microseconds, by leader epoch; known before the broker hears of it."""
    logs: dict[int, ObservedLog] = field(default_factory=dict)
    """The log of each broker, running or not."""
    damaged: dict[int, bool] = field(default_factory=dict)
    """Brokers that may have lost unsynced data and have not been whole since; True once they left the ISR."""
    voided: str = ""
    """Why statements about lost data do not apply any more; empty while they do."""
    flipped: dict[int, None] = field(default_factory=dict)
    """Brokers whose records were damaged on the disk, and which have not begun again since."""
    led_damaged: bool = False
    """Whether a replica with damaged records has led; two histories may have one epoch then."""
    asked_start: int = 0
    """The furthest log start that somebody has asked a leader for, of what was committed."""
    promised_starts: dict[int, int] = field(default_factory=dict)
    """Log starts that brokers have taken as leaders and made durable, by broker."""
    incomplete: set[int] = field(default_factory=set)
    """Damaged replicas that were seen to have lost something; keeping the rest through another crash is no cure."""
    was_damaged: bool = False
    """Whether any replica has ever lost unsynced data."""
    deleted: bool = False
    harmed: bool = False
    """Whether somebody left foreign data in the topic's nodes; nobody answers for its leadership then."""
    unclean_allowed: bool = False
    """Whether somebody has ever allowed an unclean election."""
    unclean_starts: dict[int, int] = field(default_factory=dict)
    """Up to where an unclean leader had what was committed when it began, by leader epoch; -1 until it is known."""

    def __str__(self) -> str:
        return f"{self.topic_partition}({self.topic_id[:4]})"

    @property
    def is_unknowable(self) -> bool:
        """Whether nothing is known of a log's batches: it was compacted, and which of them were committed is lost."""
        return bool(self.voided) and self.topic_partition.topic in INTERNAL_TOPICS

    def succeeded_us(self, broker_id: int, leader_epoch: int) -> int | None:
        """Return when another broker was elected after this leadership, None while none was."""
        times = (
            at_us for epoch, (leader, at_us) in self.elected.items() if epoch > leader_epoch and leader != broker_id
        )
        return min(times, default=None)

    def led_by_successor_us(self, broker_id: int, leader_epoch: int) -> int | None:
        """Return when another broker began to lead after this leadership, None while none did."""
        times = (
            at_us
            for epoch, at_us in self.led_us.items()
            if epoch > leader_epoch and self.leaders.get(epoch) != broker_id
        )
        return min(times, default=None)

    def is_valid_leader(self, broker_id: int, leader_epoch: int) -> bool:
        """Whether ZooKeeper says so too."""
        return self.zk is not None and self.zk.leader == broker_id and self.zk.leader_epoch == leader_epoch

    def damage(self, broker_id: int) -> None:
        """Record that a replica may have lost unsynced data."""
        self.was_damaged = True
        out = self.zk is not None and broker_id not in self.zk.isr
        self.damaged[broker_id] = out
        if len(self.damaged) > self.min_insync_replicas - 1 and not self.voided:
            self.voided = f"brokers {sorted(self.damaged)} lost unsynced data"

    def flip(self, broker_id: int) -> None:
        """Record that a byte of a replica's records changed; the replica is intact again after a rebuild."""
        self.flipped[broker_id] = None
        self.damage(broker_id)

    def is_excused(self, offset: int, leader_epoch: int) -> bool:
        """Whether an unclean election explains that a record of this offset and epoch is missing."""
        return any(leader_epoch < epoch and offset >= start >= 0 for epoch, start in self.unclean_starts.items())

    def has_all_committed(self, mirror: Mirror) -> bool:
        """Whether a replica holds the committed log."""
        if mirror.seed is None:
            return False
        return mirror.end >= self.thw and self.committed.chain_at(self.thw) == mirror.chain_at(self.thw)

    def kept_by(self, mirror: Mirror) -> int:
        """Return where a log ends, or where it begins to differ from what was committed."""
        committed = self.committed
        if mirror.seed is None or committed.chain_at(committed.end) == mirror.chain_at(committed.end):
            return mirror.end
        alike = (end for end in reversed(committed.ends) if committed.chain_at(end) == mirror.chain_at(end))
        return next(alike, committed.start)

    def root(self, mirror: Mirror, before: Mirror | None = None) -> None:
        """Tell a mirror that begins above 0 the chain of what lies below: the replica's own, or the committed one."""
        if mirror.seed is not None:
            return
        chain = None if before is None else before.chain_at(mirror.start)
        if chain is None and not self.voided:
            chain = self.committed.chain_at(mirror.start)
        mirror.root(chain)

    def forget_replica(self, broker_id: int) -> None:
        """A broker has no log of this partition any more, in order."""
        self.logs.pop(broker_id, None)
        self.flipped.pop(broker_id, None)
        self.promised_starts.pop(broker_id, None)

    def maybe_whole(self, broker_id: int) -> None:
        """End a replica's damage if it has been out of the ISR and holds everything committed again."""
        if broker_id in self.flipped:
            return
        if self.damaged.get(broker_id) and self.has_all_committed(self.logs[broker_id].mirror):
            self.undo_damage(broker_id)

    def undo_damage(self, broker_id: int) -> None:
        """A replica is whole, or is no more."""
        self.damaged.pop(broker_id, None)
        self.incomplete.discard(broker_id)


class PartitionRecords:
    """All partitions of a run, those of deleted topics included."""

    def __init__(self, min_insync_replicas: int) -> None:
        self._min_insync_replicas = min_insync_replicas
        self.by_id: dict[tuple[str, int], PartitionRecord] = {}
        self.topic_ids: dict[str, str] = {}
        """Topic id by name, of the topics in ZooKeeper."""
        self.overrides: dict[str, dict[str, str]] = {}
        """Settings by topic, as ZooKeeper has them."""
        self.spoiled_configs: set[str] = set()
        """Topics whose settings are foreign data: whoever has read them before goes on with what he read."""

    def of_log(self, log: ObservedLog) -> PartitionRecord | None:
        """Return the record of a log, None while its topic id is not known."""
        return None if log.topic_id is None else self.get(log.topic_id, log.topic_partition)

    def get(self, topic_id: str, topic_partition: TopicPartition) -> PartitionRecord:
        """Return, or make, the record of a partition."""
        key = (topic_id, topic_partition.partition)
        record = self.by_id.get(key)
        if record is None:
            record = self.by_id[key] = PartitionRecord(topic_partition, topic_id, self._min_insync_replicas)
            self._apply_overrides(record)
        return record

    def min_insync_replicas(self, topic: str) -> int:
        """Return what is set for a topic now."""
        return int(self.overrides.get(topic, {}).get("min.insync.replicas", self._min_insync_replicas))

    def configured(self, topic: str, overrides: dict[str, str]) -> None:
        """Record changed settings of a topic; a process may still use earlier ones."""
        self.overrides[topic] = overrides
        for record in self.by_id.values():
            if record.topic_partition.topic == topic and not record.deleted:
                self._apply_overrides(record)

    def _apply_overrides(self, record: PartitionRecord) -> None:
        topic = record.topic_partition.topic
        record.min_insync_replicas = min(record.min_insync_replicas, self.min_insync_replicas(topic))
        if self.overrides.get(topic, {}).get("unclean.leader.election.enable") == "true":
            record.unclean_allowed = True

    def partitions_of(self, topic: str) -> int:
        """Return how many partitions the topic of this name has now."""
        topic_id = self.topic_ids.get(topic)
        return sum(1 for one, _ in self.by_id if one == topic_id)

    def current(self, topic_partition: TopicPartition) -> PartitionRecord | None:
        """Return the record of the topic that has this name now."""
        topic_id = self.topic_ids.get(topic_partition.topic)
        return None if topic_id is None else self.get(topic_id, topic_partition)

    def topic_deleted(self, topic: str) -> None:
        """Record that the topic of this name was deleted from ZooKeeper."""
        gone = self.topic_ids.pop(topic, None)
        for (topic_id, _), record in self.by_id.items():
            if topic_id == gone:
                record.deleted = True

    def living(self) -> list[PartitionRecord]:
        """Partitions of topics that exist and are not harmed, in a fixed order."""
        return [
            record
            for (topic_id, _), record in sorted(self.by_id.items())
            if not (record.deleted or record.harmed) and self.topic_ids.get(record.topic_partition.topic) == topic_id
        ]
