"""The checkers of groups and of compaction report small bad histories and accept good ones."""

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.broker.groups.offsets_topic import OFFSETS_TOPIC
from paceline.broker.groups.records import OffsetValue, encode_group_key, encode_offset_key, encode_offset_value
from paceline.log.record_batch import NewRecord, encode_batch, parse_header
from paceline.model.errors import NotCoordinatorError
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.compaction_checks import CompactionChecks
from tests.simulation.observed_log import Mirror
from tests.simulation.partition_record import PartitionRecord
from tests.simulation.profile import draw_profile
from tests.simulation.world import World

GROUP = "g"
SALES = TopicPartition("t", 0)
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
TOPIC_ID = "id-of-offsets-22-chars"


@pytest.fixture
def cluster() -> SimulatedCluster:
    world = World(1)
    found = SimulatedCluster(world, draw_profile(world))
    found.checks.records.topic_ids[OFFSETS_TOPIC] = TOPIC_ID
    found.checks.records.get(TOPIC_ID, OFFSETS)
    return found


def record_of(cluster: SimulatedCluster) -> PartitionRecord:
    return cluster.checks.records.get(TOPIC_ID, OFFSETS)


def write(cluster: SimulatedCluster, mark: str | None, early_ms: int = 0, committed_ms: int = 0) -> None:
    """Append and commit a batch with a committed offset, or with a tombstone when the offset expires, or early."""
    value = None if mark is None else encode_offset_value(OffsetValue(7, -1, mark, committed_ms))
    at_ms = 0 if mark is not None else cluster.profile.offsets_retention_ms - early_ms
    data = encode_batch([NewRecord(at_ms, encode_offset_key(GROUP, SALES), value)])
    cluster.checks.compaction.written(data)
    record = record_of(cluster)
    record.committed.add(record.thw, record.thw + 1, 0, parse_header(data).crc)
    record.thw += 1


def see(
    cluster: SimulatedCluster,
    mark: str,
    at: int,
    fetched: bool,
    by_deposed: bool = False,
    partition: TopicPartition = SALES,
) -> None:
    checks, value = cluster.checks.groups, OffsetValue(7, -1, mark, 0)
    cluster.world.now_us = at
    commit, fetch = checks.commit_begins(GROUP, mark), checks.fetch_begins(GROUP)
    fetch.told_by_deposed = by_deposed
    cluster.world.now_us = at + 5
    if fetched:
        checks.fetched(fetch, {partition: value if mark else None})
    else:
        checks.committed(commit, [partition])


def violated(cluster: SimulatedCluster) -> tuple[str, ...]:
    cluster.checks.groups.finish()
    return cluster.checks.verdicts.violated


def test_commits_returned_in_the_order_of_the_log_are_not_reported(cluster: SimulatedCluster) -> None:
    for mark in ("a", "b", "c"):
        write(cluster, mark)
    see(cluster, "a", 10, fetched=False)
    see(cluster, "a", 20, fetched=True)
    see(cluster, "c", 30, fetched=True)
    assert violated(cluster) == ()


@pytest.mark.parametrize("told", ["a", ""])
def test_an_offset_below_an_acknowledged_commit_is_reported(cluster: SimulatedCluster, told: str) -> None:
    write(cluster, "a")
    write(cluster, "b")
    see(cluster, "b", 10, fetched=False)
    see(cluster, told, 20, fetched=True)
    assert violated(cluster) == ("C14",)


def test_an_offset_below_one_that_was_fetched_is_reported(cluster: SimulatedCluster) -> None:
    write(cluster, "a")
    write(cluster, "b")
    see(cluster, "b", 10, fetched=True)
    see(cluster, "a", 20, fetched=True)
    assert violated(cluster) == ("C14",)


def test_an_older_offset_is_excused_while_its_coordinator_need_not_know_of_a_successor(
    cluster: SimulatedCluster,
) -> None:
    write(cluster, "a")
    write(cluster, "b")
    see(cluster, "b", 10, fetched=True)
    see(cluster, "a", 20, fetched=True, by_deposed=True)
    assert violated(cluster) == ()
    see(cluster, "lost", 30, fetched=True, by_deposed=True)
    assert violated(cluster) == ("C14",)


def test_a_leader_that_does_not_coordinate_the_group_yet_is_not_compared(cluster: SimulatedCluster) -> None:
    def find(_group_id: str) -> None:
        raise NotCoordinatorError("not loaded")

    write(cluster, "a")
    see(cluster, "a", 10, fetched=False)
    storage = SimpleNamespace(find=find)
    life: Any = SimpleNamespace(name="broker-1", node=SimpleNamespace(groups=SimpleNamespace(storage=storage)))
    cluster.broker_named = lambda _name: life  # type: ignore[method-assign]
    record_of(cluster).zk = LeaderAndIsr(1, 0, (1,), 1, 0)
    assert violated(cluster) == ()


def test_an_acknowledgement_that_overlaps_a_fetch_is_no_reason_to_report(cluster: SimulatedCluster) -> None:
    write(cluster, "a")
    write(cluster, "b")
    see(cluster, "b", 10, fetched=False)
    see(cluster, "a", 12, fetched=True)
    assert violated(cluster) == ()


@pytest.mark.parametrize("fetched", [False, True])
def test_a_commit_that_is_not_in_the_log_is_reported(cluster: SimulatedCluster, fetched: bool) -> None:
    write(cluster, "a")
    see(cluster, "lost", 10, fetched)
    assert violated(cluster) == ("C14",)


def test_an_offset_that_a_client_saw_deleted_does_not_come_back(cluster: SimulatedCluster) -> None:
    write(cluster, "a")
    write(cluster, None)
    see(cluster, "a", 10, fetched=False)
    see(cluster, "", 20, fetched=True)
    see(cluster, "a", 30, fetched=True)
    assert violated(cluster) == ("C14",)


@pytest.mark.parametrize(("early_ms", "verdict"), [(0, ()), (1, ("C14",))])
def test_an_offset_that_is_deleted_before_it_expires_is_reported(
    cluster: SimulatedCluster, early_ms: int, verdict: tuple[str, ...]
) -> None:
    write(cluster, "a")
    write(cluster, None, early_ms)
    see(cluster, "a", 10, fetched=False)
    assert violated(cluster) == verdict


@pytest.mark.parametrize(("seen_for", "is_early"), [(SALES, True), (TopicPartition("t", 1), False)])
def test_a_commit_renews_only_offsets_of_partitions_for_which_it_was_seen(
    cluster: SimulatedCluster, seen_for: TopicPartition, is_early: bool
) -> None:
    """The coordinator did not learn that commit b was stored, so the offset of commit a expired in its memory."""
    write(cluster, "a")
    write(cluster, "b", committed_ms=1_000)
    write(cluster, None)
    see(cluster, "a", 10, fetched=False)
    see(cluster, "b", 20, fetched=True, partition=seen_for)
    cluster.checks.groups.finish()
    early = [one for one in cluster.checks.verdicts.all["C14"].evidence if "deleted after" in one]
    assert bool(early) is is_early


def test_an_offset_committed_after_its_tombstone_is_returned_again(cluster: SimulatedCluster) -> None:
    for mark in ("a", None, "b", None):
        write(cluster, mark)
    see(cluster, "a", 10, fetched=False)
    see(cluster, "", 20, fetched=True)
    see(cluster, "b", 30, fetched=True)
    see(cluster, "", 40, fetched=True)
    assert violated(cluster) == ()


def test_no_offset_after_its_tombstone_is_correct(cluster: SimulatedCluster) -> None:
    write(cluster, "a")
    write(cluster, None)
    see(cluster, "a", 10, fetched=False)
    see(cluster, "", 20, fetched=True)
    assert violated(cluster) == ()


def test_lost_commits_are_excused_when_too_many_replicas_lost_data(cluster: SimulatedCluster) -> None:
    record_of(cluster).voided = "power"
    see(cluster, "lost", 10, fetched=False)
    assert violated(cluster) == ()


def test_two_owners_in_a_generation_are_reported(cluster: SimulatedCluster) -> None:
    checks = cluster.checks.groups
    checks.assigned(GROUP, 1, "one", "one", [SALES])
    checks.assigned(GROUP, 1, "one", "one", [SALES])
    checks.assigned(GROUP, 2, "two", "two", [SALES])
    assert violated(cluster) == ()
    checks.assigned(GROUP, 2, "one", "one", [SALES])
    assert violated(cluster) == ("C15",)


def test_processes_of_a_static_member_own_its_partitions_one_after_the_other(cluster: SimulatedCluster) -> None:
    checks = cluster.checks.groups
    for leader_epoch, member_id in ((1, "one"), (2, "two"), (1, "one")):
        checks.assigned(GROUP, 1, member_id, member_id, [SALES], "instance", leader_epoch)
    assert violated(cluster) == ()
    assert checks.is_replaced(GROUP, "instance", "one") and not checks.is_replaced(GROUP, "instance", "two")
    checks.assigned(GROUP, 1, "one", "one", [SALES], "instance", 2)
    assert checks.is_replaced(GROUP, "instance", "two") and violated(cluster) == ()
    checks.assigned(GROUP, 1, "three", "member/1", [SALES], "another instance")
    assert violated(cluster) == ("C15",)


def test_an_offset_above_the_high_watermark_is_not_returned(cluster: SimulatedCluster) -> None:
    checks = cluster.checks.groups
    group = SimpleNamespace(offsets={SALES: SimpleNamespace(record_offset=4)})
    life: Any = SimpleNamespace(name="broker-1", logs={OFFSETS: SimpleNamespace(high_watermark=5)})
    life.node = SimpleNamespace(
        groups=SimpleNamespace(storage=SimpleNamespace(find=lambda _group_id: group)),
        replica_manager=SimpleNamespace(hosted=SimpleNamespace(online={})),
    )
    for group.offsets[SALES].record_offset, verdict in ((4, ()), (5, ("C14",))):
        checks.fetch_answered(checks.fetch_begins(GROUP), life)
        assert violated(cluster) == verdict


def test_generations_of_a_deleted_group_may_repeat(cluster: SimulatedCluster) -> None:
    checks = cluster.checks.groups
    checks.assigned(GROUP, 1, "one", "one", [SALES])
    checks.written(encode_batch([NewRecord(0, encode_group_key("another"), None)]))
    checks.written(encode_batch([NewRecord(0, encode_group_key(GROUP), None)]))
    checks.assigned(GROUP, 1, "two", "two", [SALES])
    assert violated(cluster) == () and checks.latest_generation(GROUP) == 1


def test_a_commit_of_an_earlier_generation_is_reported(cluster: SimulatedCluster) -> None:
    checks = cluster.checks.groups
    checks.assigned(GROUP, 2, "two", "two", [SALES])
    assert checks.latest_generation(GROUP) == 2
    checks.took_from_earlier_generation(GROUP, "one", 1)
    assert violated(cluster) == ("C15",)


# Compaction


class FakeLog:
    """A log with whole batches in memory."""

    def __init__(self, batches: list[bytes], end: int, mirror: Mirror) -> None:
        self.topic_partition = OFFSETS
        self.log_start_offset = 0
        self.log_end_offset = end
        self.mirror = mirror
        self.directory = SimpleNamespace(is_offline=False)
        self._batches = batches

    def read(self, offset: int, _max_bytes: int, _limit_offset: int) -> bytes:
        return b"".join(one for one in self._batches if parse_header(one).last_offset >= offset)


def batch(offset: int, key: bytes, value: bytes | None) -> bytes:
    return encode_batch([NewRecord(0, key, value)], base_offset=offset)


WRITTEN = [batch(0, b"a", b"1"), batch(1, b"b", b"2"), batch(2, b"a", b"3"), batch(3, b"b", None)]


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (WRITTEN, ()),
        (WRITTEN[2:], ()),
        (WRITTEN[1:], ()),
        (WRITTEN[:2] + WRITTEN[3:], ("R22",)),
        (WRITTEN[2:3], ("R22",)),
        ([*WRITTEN[2:3], batch(3, b"b", b"2")], ("R22",)),
        ([batch(0, b"c", b"1"), *WRITTEN[2:]], ("R22",)),
    ],
    ids=["all", "last of each", "more", "last one lost", "tombstone lost", "changed", "foreign"],
)
def test_a_compacted_log_has_the_last_record_of_each_key(
    cluster: SimulatedCluster, kept: list[bytes], expected: tuple[str, ...]
) -> None:
    checks: CompactionChecks = cluster.checks.compaction
    record, mirror = record_of(cluster), Mirror()
    for position, data in enumerate(WRITTEN):
        checks.written(data)
        record.committed.add(position, position + 1, 0, parse_header(data).crc)
        mirror.add(position, position + 1, 0, parse_header(data).crc)
    record.thw = len(WRITTEN)
    log: Any = FakeLog(kept, len(WRITTEN), mirror)
    life: Any = SimpleNamespace(broker_id=1, name="broker-1", logs=SimpleNamespace(unexplained_gaps={}))
    checks.contents(life, record, log)
    assert cluster.checks.verdicts.violated == expected


def test_follower_may_lack_a_record_that_a_later_one_beyond_its_end_replaces(cluster: SimulatedCluster) -> None:
    record, mirror = record_of(cluster), Mirror()
    for position, data in enumerate(WRITTEN):
        cluster.checks.compaction.written(data)
        record.committed.add(position, position + 1, 0, parse_header(data).crc)
        if position < 2:
            mirror.add(position, position + 1, 0, parse_header(data).crc)
    record.thw = len(WRITTEN)
    log: Any = FakeLog(WRITTEN[1:2], 2, mirror)
    life: Any = SimpleNamespace(broker_id=1, name="broker-1", logs=SimpleNamespace(unexplained_gaps={}))
    cluster.checks.compaction.contents(life, record, log)
    assert cluster.checks.verdicts.violated == ()
    record.thw = 2
    cluster.checks.compaction.contents(life, record, log)
    assert cluster.checks.verdicts.violated == ("R22",)


@pytest.mark.parametrize(
    ("first", "end", "expected"), [(0, 2, True), (2, 4, False), (0, 3, False)], ids=["superseded", "last ones", "both"]
)
def test_only_superseded_records_of_a_compacted_log_may_be_cut(
    cluster: SimulatedCluster, first: int, end: int, expected: bool
) -> None:
    record = record_of(cluster)
    for position, data in enumerate(WRITTEN):
        cluster.checks.compaction.written(data)
        record.committed.add(position, position + 1, 0, parse_header(data).crc)
    record.thw = len(WRITTEN)
    assert cluster.checks.compaction.are_superseded(record, first, end) is expected


def test_a_reported_gap_excuses_the_records_that_a_compacted_log_lacks(cluster: SimulatedCluster) -> None:
    record, mirror = record_of(cluster), Mirror()
    for position, data in enumerate(WRITTEN):
        cluster.checks.compaction.written(data)
        record.committed.add(position, position + 1, 0, parse_header(data).crc)
        mirror.add(position, position + 1, 0, parse_header(data).crc)
    record.thw = len(WRITTEN)
    log: Any = FakeLog(WRITTEN[3:], len(WRITTEN), mirror)
    life: Any = SimpleNamespace(broker_id=1, name="broker-1", logs=SimpleNamespace(unexplained_gaps={OFFSETS: "a gap"}))
    cluster.checks.compaction.contents(life, record, log)
    assert cluster.checks.verdicts.violated == ()
    life.logs.unexplained_gaps.clear()
    cluster.checks.compaction.contents(life, record, log)
    assert cluster.checks.verdicts.violated == ("R22",)


def test_compaction_above_the_high_watermark_or_of_another_topic_is_reported(cluster: SimulatedCluster) -> None:
    record = record_of(cluster)
    life: Any = SimpleNamespace(broker_id=1, name="broker-1", logs=SimpleNamespace(unexplained_gaps={}))
    cleaned: Any = SimpleNamespace(sources=[SimpleNamespace(end_offset=lambda: 5)])
    log: Any = SimpleNamespace(topic_id=TOPIC_ID, topic_partition=OFFSETS, high_watermark=5)
    cluster.checks.compaction.replaces(life, log, cleaned)
    assert cluster.checks.verdicts.violated == ()
    log.high_watermark = 4
    cluster.checks.compaction.replaces(life, log, cleaned)
    assert cluster.checks.verdicts.all["R22"].violations == 1
    log.high_watermark, log.topic_partition = 5, SALES
    cluster.checks.compaction.replaces(life, log, cleaned)
    assert cluster.checks.verdicts.all["R22"].violations == 2 and record.thw == 0


def test_a_mirror_of_a_compacted_log_shows_the_batches_as_they_were_appended() -> None:
    originals, rewritten, divergent = Mirror(), Mirror(), Mirror()
    headers = [parse_header(data)._replace(leader_epoch=0) for data in WRITTEN]
    for header in headers:
        originals.add(header.base_offset, header.last_offset + 1, 0, header.crc)
    rewritten.add_compacted(headers[2]._replace(crc=9), originals)
    rewritten.add_compacted(headers[3], originals)
    assert rewritten.same_history(originals)
    divergent.add_compacted(headers[2]._replace(crc=9, leader_epoch=1), originals)
    assert divergent.chain_at(2) == originals.chain_at(2) and divergent.chain_at(3) != originals.chain_at(3)
