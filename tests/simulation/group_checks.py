"""C14 and C15: committed offsets, and owners of partitions.

Commits are ordered by their records in the committed log of ``__consumer_offsets``, which the checks know from the
leaders' appends. At the end of a run every answer is compared with it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from paceline.broker.groups.offsets_topic import OFFSETS_TOPIC, partition_for
from paceline.broker.groups.records import GroupKey, OffsetKey, OffsetValue, decode_key, decode_offset_value
from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition
from tests.simulation.compaction_checks import CompactionChecks
from tests.simulation.health import stays_below_min_isr
from tests.simulation.partition_record import PartitionRecord, PartitionRecords
from tests.simulation.verdicts import Verdicts
from tests.support.batches import decode_records

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster
    from tests.simulation.machines import BrokerLife

NO_MARK = ""
"""Stands for a deleted offset."""
Slot = tuple[str, TopicPartition]
"""A group and a partition: the key of a committed offset."""


@dataclass(slots=True)
class Commit:
    """A client's commit: a mark and the partitions."""

    group_id: str
    mark: str
    begun_us: int


@dataclass(slots=True)
class OffsetFetch:
    """A fetch of committed offsets."""

    group_id: str
    begun_us: int
    told_by_deposed: bool = False
    """Whether the broker that answered had a successor that it need not know yet (C12)."""


@dataclass(slots=True)
class Seen:
    """Evidence that an offset is committed: an acknowledgement, or a fetch."""

    begun_us: int
    ended_us: int
    mark: str
    by_fetch: bool
    told_by_deposed: bool = False


@dataclass(slots=True)
class GroupHistory:
    """Answers to the clients of all groups."""

    seen: dict[Slot, list[Seen]] = field(default_factory=dict)
    owners: dict[tuple[str, int], dict[TopicPartition, str]] = field(default_factory=dict)
    """Member id by partition, by group and generation."""
    latest: dict[str, int] = field(default_factory=dict)
    """Newest generation in which partitions were assigned, by group."""
    static: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    """Epoch of the coordinator, and member id, of the latest process with partitions, by group and instance id."""


class GroupChecks:
    """C14 and C15."""

    def __init__(
        self,
        cluster: "SimulatedCluster",
        verdicts: Verdicts,
        records: PartitionRecords,
        compaction: CompactionChecks,
    ) -> None:
        self._cluster = cluster
        self._verdicts = verdicts
        self._records = records
        self._compaction = compaction
        self.history = GroupHistory()

    # Owners

    def assigned(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        name: str,
        partitions: Iterable[TopicPartition],
        instance_id: str | None = None,
        leader_epoch: int = 0,
    ) -> None:
        """Record the assignment of partitions to a member by the coordinator of a leader epoch."""
        self._verdicts.exercise("C15")
        if instance_id is not None:
            if self.is_replaced(group_id, instance_id, member_id):
                self._cluster.checks.places.reach("a static member is replaced")
            # A coordinator that was replaced may still answer a process that the present coordinator does not know.
            if leader_epoch >= self.history.static.get((group_id, instance_id), (0, ""))[0]:
                self.history.static[group_id, instance_id] = (leader_epoch, member_id)
        owners = self.history.owners.setdefault((group_id, generation), {})
        for one in partitions:
            owner = owners.setdefault(one, instance_id or member_id)
            if owner != (instance_id or member_id) and not self._is_voided(group_id):
                self._verdicts.fail("C15", f"{group_id}: {owner} and {name} own {one} in generation {generation}")
        self.history.latest[group_id] = max(generation, self.latest_generation(group_id))

    def written(self, data: bytes) -> None:
        """Record a coordinator's records; a deleted group continues with generation 1 when members join again."""
        for one in decode_records(data):
            key = None if one.key is None or one.value is not None else decode_key(one.key)
            if isinstance(key, GroupKey):
                self.history.latest.pop(key.group_id, None)
                for known in [known for known in self.history.owners if known[0] == key.group_id]:
                    del self.history.owners[known]

    def latest_generation(self, group_id: str) -> int:
        """Return the newest generation in which partitions were assigned, -1 before the first."""
        return self.history.latest.get(group_id, -1)

    def is_replaced(self, group_id: str, instance_id: str | None, member_id: str) -> bool:
        """Whether another process of a static member has received its partitions since."""
        return self.history.static.get((group_id, instance_id or ""), (0, member_id))[1] != member_id

    def took_from_earlier_generation(self, group_id: str, name: str, generation: int) -> None:
        """Report a commit that was accepted after a later generation, or static member, got its partitions."""
        if not self._is_voided(group_id):
            latest = self.latest_generation(group_id)
            self._verdicts.fail("C15", f"{group_id}: {name} commits in generation {generation} of {latest}")

    # Offsets

    def commit_begins(self, group_id: str, mark: str) -> Commit:
        """Record a commit that a member sends."""
        return Commit(group_id, mark, self._cluster.world.now_us)

    def committed(self, commit: Commit, kept: Iterable[TopicPartition]) -> None:
        """Record that a member's commit was acknowledged for these partitions."""
        now_us = self._cluster.world.now_us
        for one in kept:
            seen = self.history.seen.setdefault((commit.group_id, one), [])
            seen.append(Seen(commit.begun_us, now_us, commit.mark, by_fetch=False))

    def fetch_begins(self, group_id: str) -> OffsetFetch:
        """Record a member's request for committed offsets."""
        return OffsetFetch(group_id, self._cluster.world.now_us)

    def fetch_answered(self, fetch: OffsetFetch, life: "BrokerLife") -> None:
        """Check that the coordinator that returns offsets was not deposed long ago (C12), and that they are committed.

        A later coordinator may lack a record above the high watermark.
        """
        record = self._record(fetch.group_id)
        if record is None:
            return
        deposed = self._cluster.checks.deposed
        fetch.told_by_deposed = deposed.answered(life, record.topic_partition, record.topic_id)
        group, log = life.node.groups.storage.find(fetch.group_id), life.logs.get(record.topic_partition)
        if group is None or log is None or self._is_excused(record):
            return
        newest = max((one.record_offset for one in group.offsets.values()), default=-1)
        if newest >= log.high_watermark:
            self._verdicts.fail("C14", f"{record}: {life.name} returns {newest}, committed is {log.high_watermark}")

    def fetched(self, fetch: OffsetFetch, offsets: Mapping[TopicPartition, OffsetValue | None]) -> None:
        """Record the committed offsets that a member received."""
        now_us = self._cluster.world.now_us
        for one, value in offsets.items():
            mark = NO_MARK if value is None else value.metadata
            seen = self.history.seen.setdefault((fetch.group_id, one), [])
            seen.append(Seen(fetch.begun_us, now_us, mark, by_fetch=True, told_by_deposed=fetch.told_by_deposed))

    # At the end

    def finish(self) -> None:
        """Compare the answers to clients with the log, and with the state of the last coordinators."""
        for group_id in sorted({group_id for group_id, _ in self.history.seen}):
            record = self._record(group_id)
            if record is None or self._is_excused(record):
                continue
            places = self._places(record, group_id)
            told = {
                (tp, one.mark) for (owner, tp), seen in self.history.seen.items() if owner == group_id for one in seen
            }
            self._expired_in_time(record, group_id, told)
            for (owner, partition), seen in sorted(self.history.seen.items()):
                if owner == group_id:
                    deletes = self._cluster.profile.deletes(group_id)
                    self._in_order(f"{group_id} {partition}", seen, places.get(partition, {}), deletes)
            self._coordinator_agrees(group_id, record, places, told)

    def _in_order(
        self, where: str, seen: list[Seen], places: Mapping[str, list[int]], may_be_deleted: bool = False
    ) -> None:
        """Check that no client receives an offset older than one committed before its request.

        A group that is being deleted has no offsets before their tombstones are stored, so such answers show nothing.
        """
        for one in seen:
            if one.mark and one.mark not in places:
                how = "receives" if one.by_fetch else "has acknowledged"
                self._verdicts.fail("C14", f"{where}: a client {how} {one.mark}, which is not in the log")
                return
        known = [(one.ended_us, min(places[one.mark])) for one in seen if one.mark]
        heapify(known)
        floor = -1
        current = (one for one in seen if one.by_fetch and not one.told_by_deposed)
        for one in sorted(current, key=lambda one: one.begun_us):
            while known and known[0][0] <= one.begun_us:
                floor = max(floor, heappop(known)[1])
            self._verdicts.exercise("C14")
            found = places.get(one.mark, [])
            latest = max(found, default=-1)
            if latest < floor:
                self._verdicts.fail(
                    "C14", f"{where}: a client receives {one.mark or 'no offset'} at {latest}, {floor} was known before"
                )
            elif one.mark == NO_MARK and floor >= 0 and not may_be_deleted:
                # The offset was deleted: at the earliest by the first tombstone after the commit that was known.
                heappush(known, (one.ended_us, min(place for place in found if place >= floor)))

    def _expired_in_time(self, record: PartitionRecord, group_id: str, told: set[tuple[TopicPartition, str]]) -> None:
        """Check that no offset was deleted before it had expired, unless something else may have deleted it.

        A commit that was never acknowledged, and never seen for this partition, does not renew the partition's offset:
        its coordinator has not applied it, and one of its offsets may be deleted while the others are loaded later.
        """
        profile = self._cluster.profile
        if profile.deletes(group_id) or "clock-jump" in profile.fault_kinds or self._cluster.checks.dead_topic_ids:
            return
        committed_ms: dict[TopicPartition, int] = {}
        for one in self._compaction.originals(record):
            key = None if one.key is None else decode_key(one.key)
            if not isinstance(key, OffsetKey) or key.group_id != group_id:
                continue
            if one.value is None:
                age_ms = one.timestamp - committed_ms.pop(key.topic_partition, 0)
                in_time = age_ms >= profile.offsets_retention_ms
                self._verdicts.check("C14", in_time, f"{group_id} {key.topic_partition}: deleted after {age_ms} ms")
                continue
            value = decode_offset_value(one.value)
            if (key.topic_partition, value.metadata) in told:
                committed_ms[key.topic_partition] = value.commit_timestamp

    def _coordinator_agrees(
        self,
        group_id: str,
        record: PartitionRecord,
        places: Mapping[TopicPartition, Mapping[str, list[int]]],
        told: set[tuple[TopicPartition, str]],
    ) -> None:
        """Check that the coordinator has the last record of each offset."""
        leader = None if record.zk is None else self._cluster.broker_named(f"broker-{record.zk.leader}")
        if leader is None:
            return
        try:
            group = leader.node.groups.storage.find(group_id)
        except PacelineError:
            return  # It was elected a moment ago and has not loaded the group yet.
        held = {} if group is None else {one: kept.value.metadata for one, kept in group.offsets.items()}
        for partition, marks in places.items():
            last = max(marks, key=lambda mark: max(marks[mark]))
            if group_id in self._cluster.profile.loose_groups:
                # Members commit every offset again after the faults. Here the last record may be of a commit or an
                # expiration that was never acknowledged, which counts at the next load.
                end = max(marks.get(held.get(partition, NO_MARK), [-1]))
                last = next(
                    (mark for mark in marks if (partition, mark) in told and mark and max(marks[mark]) > end), None
                )
                self._verdicts.check("C14", last is None, f"{group_id} {partition}: {leader.name} lacks {last!r}")
                continue
            self._verdicts.check(
                "C14",
                held.get(partition, NO_MARK) == last,
                f"{group_id} {partition}: {leader.name} holds {held.get(partition)!r}, the log ends with {last!r}",
            )

    def _places(self, record: PartitionRecord, group_id: str) -> dict[TopicPartition, dict[str, list[int]]]:
        """Return the positions of a group's marks in the committed log, by partition and mark."""
        found: dict[TopicPartition, dict[str, list[int]]] = {}
        for one in self._compaction.originals(record):
            assert one.key is not None
            key = decode_key(one.key)
            if isinstance(key, OffsetKey) and key.group_id == group_id:
                mark = NO_MARK if one.value is None else decode_offset_value(one.value).metadata
                found.setdefault(key.topic_partition, {}).setdefault(mark, []).append(one.offset)
        return found

    # Excuses

    def _record(self, group_id: str) -> PartitionRecord | None:
        count = self._records.partitions_of(OFFSETS_TOPIC)
        if not count:
            return None
        return self._records.current(TopicPartition(OFFSETS_TOPIC, partition_for(group_id, count)))

    def can_commit(self, group_id: str) -> bool:
        """Whether a group must be able to commit after all faults have ended."""
        record = self._record(group_id)
        if record is None:
            return True
        if record.zk is None or not record.zk.has_leader or self._is_excused(record):
            return False
        return not stays_below_min_isr(self._cluster, record)

    def _is_voided(self, group_id: str) -> bool:
        record = self._record(group_id)
        return record is not None and self._is_excused(record)

    @staticmethod
    def _is_excused(record: PartitionRecord) -> bool:
        return bool(record.voided or record.flipped or record.led_damaged or record.harmed)
