"""The checks' knowledge of one partition of one topic id: its states in ZooKeeper, commit point and replicas.

The true commit point (THW) is the largest high watermark that a valid leader ever had; no node stores it. The record
also has the committed log, taken from valid leaders as they advance their high watermark.
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
    """A partition. Brokers are identified by id."""

    topic_partition: TopicPartition
    topic_id: str
    min_insync_replicas: int
    zk: LeaderAndIsr | None = None
    history: dict[int, StateContent] = field(default_factory=dict)
    """State content by zk version."""
    isr_written_in: dict[int, int] = field(default_factory=dict)
    """Broker epoch of the leader that wrote an ISR, by zk version."""
    assignment: ReplicaAssignment = field(default_factory=lambda: ReplicaAssignment(()))
    committed: Mirror = field(default_factory=Mirror)
    thw: int = 0
    lineage: dict[tuple[int, int], int] = field(default_factory=dict)
    """Chain by (end, epoch) of every batch that any replica appended."""
    leaders: dict[int, int] = field(default_factory=dict)
    """Broker that became leader, by leader epoch."""
    led_us: dict[int, int] = field(default_factory=dict)
    """Time when the first broker began to lead, by leader epoch."""
    elected: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Elected broker and time of the election in microseconds, by leader epoch; known before the broker is notified."""
    logs: dict[int, ObservedLog] = field(default_factory=dict)
    """Log of each broker, including stopped brokers."""
    told_by_follower: dict[int, int] = field(default_factory=dict)
    """Largest high watermark that each broker has returned to readers as a follower."""
    damaged: dict[int, bool] = field(default_factory=dict)
    """Brokers that may have lost unsynced data and were not complete since; True once they left the ISR."""
    voided: str = ""
    """Reason why checks for lost data no longer apply; empty while they apply."""
    flipped: dict[int, None] = field(default_factory=dict)
    """Brokers with a log damaged on the disk that has not been replaced since."""
    lost_segments: dict[int, tuple[int, int]] = field(default_factory=dict)
    """First offset and end of the segment that a broker's log lacks since a clean stop; until the log is replaced."""
    led_without: list[tuple[int, int]] = field(default_factory=list)
    """First offset and end of each segment that was missing in the log of a leader."""
    led_damaged: bool = False
    """Whether a replica with damaged records has led; then two histories may have the same epoch."""
    asked_start: int = 0
    """The highest committed offset up to which a client or retention has requested a deletion."""
    promised_starts: dict[int, int] = field(default_factory=dict)
    """Log starts that brokers accepted as leaders and made durable, by broker."""
    incomplete: set[int] = field(default_factory=set)
    """Damaged replicas known to have lost records; they stay damaged even if a further crash loses nothing."""
    was_damaged: bool = False
    """Whether a replica has ever lost unsynced data."""
    deleted: bool = False
    harmed: bool = False
    """Whether invalid data was written to the topic's nodes; its leadership is not checked then."""
    elected_from_outside: set[int] = field(default_factory=set)
    """Leader epochs of leaders that were not in the ISR when they were elected."""
    unclean_allowed: bool = False
    """Whether an unclean election was ever allowed."""
    unclean_starts: dict[int, int] = field(default_factory=dict)
    """Committed offset up to which an unclean leader had all records, by leader epoch; -1 until it is known."""

    def __str__(self) -> str:
        return f"{self.topic_partition}({self.topic_id[:4]})"

    @property
    def is_unknowable(self) -> bool:
        """Whether the log's batches are unknown: it was compacted, and the list of committed batches is lost."""
        return bool(self.voided) and self.topic_partition.topic in INTERNAL_TOPICS

    def succeeded_us(self, broker_id: int, leader_epoch: int) -> int | None:
        """Return when another broker was elected after this leadership; None before that."""
        times = (
            at_us for epoch, (leader, at_us) in self.elected.items() if epoch > leader_epoch and leader != broker_id
        )
        return min(times, default=None)

    def led_by_successor_us(self, broker_id: int, leader_epoch: int) -> int | None:
        """Return when another broker began to lead after this leadership; None before that."""
        times = (
            at_us
            for epoch, at_us in self.led_us.items()
            if epoch > leader_epoch and self.leaders.get(epoch) != broker_id
        )
        return min(times, default=None)

    def has_clean_successor(self, broker_id: int, leader_epoch: int) -> bool:
        """Whether the first other broker that was elected after this leadership came from the ISR."""
        epochs = (epoch for epoch, (leader, _) in self.elected.items() if epoch > leader_epoch and leader != broker_id)
        first = min(epochs, default=None)
        return first is not None and first not in self.elected_from_outside

    def is_valid_leader(self, broker_id: int, leader_epoch: int) -> bool:
        """Whether the broker leads in this epoch according to ZooKeeper."""
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

    def lose_segment(self, broker_id: int, first: int, end: int) -> None:
        """Record that a segment of a replica vanished after a clean stop; the replica is intact after a rebuild."""
        self.lost_segments[broker_id] = (first, end)
        self.flip(broker_id)

    def was_led_without(self, first: int, end: int) -> bool:
        """Whether each offset of a range was in a segment that a leader has lost: its readers and followers skip it."""
        for missing_first, missing_end in sorted(self.led_without):
            if missing_first <= first:
                first = max(first, missing_end)
        return first >= end

    def is_excused(self, offset: int, leader_epoch: int) -> bool:
        """Whether an unclean election explains that a record at this offset and epoch is missing."""
        return any(leader_epoch < epoch and offset >= start >= 0 for epoch, start in self.unclean_starts.items())

    def has_all_committed(self, mirror: Mirror) -> bool:
        """Whether a replica has the complete committed log."""
        if mirror.seed is None:
            return False
        return mirror.end >= self.thw and self.committed.chain_at(self.thw) == mirror.chain_at(self.thw)

    def kept_by(self, mirror: Mirror) -> int:
        """Return the end of a log, or the offset at which it diverges from the committed log."""
        committed = self.committed
        if mirror.seed is None or committed.chain_at(committed.end) == mirror.chain_at(committed.end):
            return mirror.end
        alike = (end for end in reversed(committed.ends) if committed.chain_at(end) == mirror.chain_at(end))
        return next(alike, committed.start)

    def root(self, mirror: Mirror, before: Mirror | None = None) -> None:
        """Give a mirror that begins above 0 the chain below it, from the previous mirror or the committed log."""
        if mirror.seed is not None:
            return
        chain = None if before is None else before.chain_at(mirror.start)
        if chain is None and not self.voided:
            chain = self.committed.chain_at(mirror.start)
        mirror.root(chain)

    def forget_replica(self, broker_id: int) -> None:
        """Record that a broker has removed its log of this partition, as it should."""
        self.logs.pop(broker_id, None)
        self.told_by_follower.pop(broker_id, None)
        self.flipped.pop(broker_id, None)
        self.lost_segments.pop(broker_id, None)
        self.promised_starts.pop(broker_id, None)

    def maybe_whole(self, broker_id: int) -> None:
        """End a replica's damage if it was outside the ISR and again has everything committed."""
        if broker_id in self.flipped:
            return
        if self.damaged.get(broker_id) and self.has_all_committed(self.logs[broker_id].mirror):
            self.undo_damage(broker_id)

    def undo_damage(self, broker_id: int) -> None:
        """End the damage of a replica that is complete or was deleted."""
        self.damaged.pop(broker_id, None)
        self.incomplete.discard(broker_id)


class PartitionRecords:
    """All partitions of a run, including those of deleted topics."""

    def __init__(self, min_insync_replicas: int) -> None:
        self._min_insync_replicas = min_insync_replicas
        self.by_id: dict[tuple[str, int], PartitionRecord] = {}
        self.topic_ids: dict[str, str] = {}
        """Topic id by name, for the topics in ZooKeeper."""
        self.overrides: dict[str, dict[str, str]] = {}
        """Settings by topic, as in ZooKeeper."""
        self.spoiled_configs: set[str] = set()
        """Topics with invalid settings in ZooKeeper; a broker continues with the settings that it read before."""

    def of_log(self, log: ObservedLog) -> PartitionRecord | None:
        """Return the record of a log, None while its topic id is not known."""
        return None if log.topic_id is None else self.get(log.topic_id, log.topic_partition)

    def get(self, topic_id: str, topic_partition: TopicPartition) -> PartitionRecord:
        """Return the record of a partition, which is created if it does not exist."""
        key = (topic_id, topic_partition.partition)
        record = self.by_id.get(key)
        if record is None:
            record = self.by_id[key] = PartitionRecord(topic_partition, topic_id, self._min_insync_replicas)
            self._apply_overrides(record)
        return record

    def min_insync_replicas(self, topic: str) -> int:
        """Return the present ``min.insync.replicas`` of a topic."""
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
        """Return the present number of partitions of the topic with this name."""
        topic_id = self.topic_ids.get(topic)
        return sum(1 for one, _ in self.by_id if one == topic_id)

    def current(self, topic_partition: TopicPartition) -> PartitionRecord | None:
        """Return the record of the present topic with this name."""
        topic_id = self.topic_ids.get(topic_partition.topic)
        return None if topic_id is None else self.get(topic_id, topic_partition)

    def topic_deleted(self, topic: str) -> None:
        """Record that the topic with this name was deleted from ZooKeeper."""
        gone = self.topic_ids.pop(topic, None)
        for (topic_id, _), record in self.by_id.items():
            if topic_id == gone:
                record.deleted = True

    def living(self) -> list[PartitionRecord]:
        """Return the partitions of existing topics that are not harmed, in a fixed order."""
        return [
            record
            for (topic_id, _), record in sorted(self.by_id.items())
            if not (record.deleted or record.harmed) and self.topic_ids.get(record.topic_partition.topic) == topic_id
        ]
