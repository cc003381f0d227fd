"""The checkers of replicas report small bad histories of logs and accept good ones."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.log.compaction.batch_rewrite import empty_batch
from paceline.log.leader_epoch_cache import EpochEntry
from paceline.log.record_batch import NewRecord, encode_batch, parse_header
from paceline.model.state_change import StateChange, StateChangeKind
from tests.simulation.checked_cluster import TOPIC_ID, TP, broker, cluster, log, prepared, state, violated
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.machines import BrokerMachine
from tests.simulation.observed_log import Mirror, ObservedLog

__all__ = ["cluster"]


# Replicas


def test_a_batch_without_its_records_is_reported(cluster: SimulatedCluster) -> None:
    emptied = empty_batch(parse_header(encode_batch([NewRecord(0, b"k", b"v")])))
    one: Any = SimpleNamespace(
        log_start_offset=0, log_end_offset=1, path="/data/t-0", read=lambda _position, _size, _end: emptied
    )
    cluster.checks.clients._readable(prepared(cluster), one)
    assert violated(cluster) == ("C5",)


def test_two_prefixes_of_one_offset_and_epoch_are_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    cluster.checks.replicas.appended(broker(1), log((0, 2, 0, 5)), 0, False)
    cluster.checks.replicas.appended(broker(2), log((0, 2, 0, 5)), 0, False)
    assert violated(cluster) == ()
    cluster.checks.replicas.appended(broker(3), log((0, 2, 0, 6)), 0, False)
    assert violated(cluster) == ("R3b",)


@pytest.mark.parametrize("crc", [5, 6])
def test_a_follower_may_lack_records_committed_before_an_unclean_election(cluster: SimulatedCluster, crc: int) -> None:
    record = prepared(cluster)
    record.voided = "an unclean election"
    record.committed.add(0, 2, 0, 9)
    leader, follower = log((0, 2, 0, 5), (2, 3, 0, 7)), log((0, 2, 0, crc))
    record.logs = {1: leader, 2: follower}
    cluster.checks.replicas.appended(broker(1), leader, 0, False)
    cast(Any, leader).log_start_offset = 2
    follower.mirror.add(2, 3, 0, 7)
    cluster.checks.replicas.appended(broker(2), follower, 1, False)
    assert violated(cluster) == ()


def test_epochs_that_fall_and_gaps_are_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    cluster.checks.replicas.appended(broker(1), log((0, 2, 1, 5), (3, 4, 0, 6)), 0, False)
    assert violated(cluster) == ("C5", "R4")


def test_a_batch_of_another_topic_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    cluster.checks.replicas.batch_topics[5] = "another topic"
    cluster.checks.replicas.appended(broker(1), log((0, 2, 0, 5)), 0, False)
    assert violated(cluster) == ("R16",)


def test_appending_without_leading_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    one = log((0, 2, 0, 5))
    hosted = SimpleNamespace(log=one, is_leader=True, leader_epoch=3)
    cluster.checks.replicas.appended(broker(1, hosted), one, 0, True)
    assert violated(cluster) == ("R1",)


def test_truncating_committed_records_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.committed.add(0, 2, 0, 5)
    record.thw = 2
    cut = log((0, 2, 0, 5))
    removed = cut.mirror.cut(0)
    cut.log_end_offset = 0  # type: ignore[misc]
    cluster.checks.replicas.truncated(broker(2), cut, 2, removed)
    assert violated(cluster) == ("R9",)


def test_truncating_uncommitted_records_is_not_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.committed.add(0, 2, 1, 7)
    record.thw = 2
    cut = log((0, 2, 0, 5))
    removed = cut.mirror.cut(0)
    cluster.checks.replicas.truncated(broker(2), cut, 2, removed)
    assert violated(cluster) == ()


@pytest.mark.parametrize(("isr", "epoch", "reported"), [((1,), 0, ()), ((1,), 1, ("R9",)), ((1, 2), 0, ("R9",))])
def test_only_a_follower_outside_the_isr_that_missed_an_election_may_truncate_committed_records(
    cluster: SimulatedCluster, isr: tuple[int, ...], epoch: int, reported: tuple[str, ...]
) -> None:
    record = prepared(cluster)
    state(cluster, 1, 1, isr, 1)
    record.committed.add(0, 2, 0, 5)
    record.thw = 2
    cut = log((0, 2, 0, 5))
    removed = cut.mirror.cut(0)
    cut.log_end_offset = 0  # type: ignore[misc]
    hosted = SimpleNamespace(log=cut, is_leader=False, leader_epoch=epoch)
    cluster.checks.replicas.truncated(broker(2, hosted), cut, 2, removed)
    assert violated(cluster) == reported


def leading(one: ObservedLog, isr: tuple[int, ...], ends: dict[int, int | None], epoch: int = 0) -> Any:
    followers = {broker_id: SimpleNamespace(log_end_offset=end) for broker_id, end in ends.items()}
    return SimpleNamespace(log=one, is_leader=True, leader_epoch=epoch, isr=isr, followers=followers)


def test_a_commit_that_skips_an_isr_member_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.min_insync_replicas = 1
    one = log((0, 2, 0, 5), high_watermark=2)
    record.logs = {1: one, 2: log((0, 2, 0, 5)), 3: log()}
    cluster.checks.replicas.high_watermark_moved(broker(1, leading(one, (1, 2, 3), {2: 2, 3: None})), one, 0)
    assert violated(cluster) == ("R5b", "R6")


def test_a_commit_below_min_isr_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.min_insync_replicas = 2
    state(cluster, 1, 1, (1,), 1)
    one = log((0, 2, 1, 5), high_watermark=2)
    record.logs = {1: one}
    cluster.checks.replicas.high_watermark_moved(broker(1, leading(one, (1,), {}, 1)), one, 0)
    assert violated(cluster) == ("R7",)


def test_a_high_watermark_that_falls_or_leaves_the_log_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.min_insync_replicas = 1
    one = log((0, 2, 0, 5), high_watermark=0)
    record.logs = {1: one}
    life = broker(1, leading(one, (1, 2, 3), {2: 2, 3: 2}))
    cluster.checks.replicas.high_watermark_moved(life, one, 2)
    assert violated(cluster) == ("R8",)


def test_a_different_record_below_the_commit_point_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.min_insync_replicas = 1
    record.committed.add(0, 2, 0, 5)
    record.thw = 2
    one = log((0, 2, 0, 6), (2, 3, 0, 8), high_watermark=3)
    record.logs = dict.fromkeys((1, 2, 3), one)
    cluster.checks.replicas.high_watermark_moved(broker(1, leading(one, (1, 2, 3), {2: 3, 3: 3})), one, 2)
    assert "C3" in violated(cluster)


def test_an_incomplete_leader_and_a_second_one_in_the_epoch_are_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.committed.add(0, 2, 0, 5)
    record.thw = 2
    whole, empty = log((0, 2, 0, 5)), log()
    for one in (whole, empty):
        one.epochs.entries.append(EpochEntry(0, one.log_end_offset))
    cluster.checks.replicas._became_leader(broker(1), whole, record, 0)
    assert violated(cluster) == ()
    cluster.checks.replicas._became_leader(broker(1), empty, record, 0)
    assert violated(cluster) == ("R5",)
    cluster.checks.replicas._became_leader(broker(2), whole, record, 0)
    assert violated(cluster) == ("R1", "R5")


@pytest.mark.parametrize("start", [2, 1])
def test_an_empty_leader_that_begins_at_the_deleted_end_is_complete(cluster: SimulatedCluster, start: int) -> None:
    record = prepared(cluster)
    record.committed.add(0, 1, 0, 5)
    record.committed.add(1, 2, 0, 6)
    record.thw = 2
    one = log()
    one.mirror.begin_at(start)
    cast(Any, one).log_end_offset = start
    one.epochs.entries.append(EpochEntry(0, start))
    cluster.checks.replicas._became_leader(broker(1), one, record, 0)
    assert violated(cluster) == (() if start == 2 else ("R5",))


@pytest.mark.parametrize("entries", [[], [(0, 1)], [(1, 2)]])
def test_a_leader_whose_epoch_does_not_begin_at_its_log_end_is_reported(
    cluster: SimulatedCluster, entries: list[tuple[int, int]]
) -> None:
    record = prepared(cluster)
    one = log((0, 2, 0, 5))
    one.epochs.entries[:] = [EpochEntry(epoch, start) for epoch, start in entries]
    cluster.checks.replicas._became_leader(broker(1), one, record, 0)
    assert violated(cluster) == ("R4",)


def test_a_joiner_that_lacks_committed_records_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    state(cluster, 1, 1, (1,), 1)
    record.committed.add(0, 2, 0, 5)
    record.thw = 2
    record.logs = {2: log()}
    state(cluster, 1, 2, (1, 2), 2)
    assert violated(cluster) == ("R5b",)


def test_an_epoch_cache_that_does_not_fit_its_log_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    one = log((0, 2, 0, 5), (2, 4, 3, 6))
    cluster.checks.replicas.epochs_agree("somebody", record, one)
    assert violated(cluster) == ()
    one.epochs.entries.pop()
    cluster.checks.replicas.epochs_agree("somebody", record, one)
    assert violated(cluster) == ("R4",)


def test_power_losses_suspend_the_data_invariants_only_when_too_many_replicas_lose_power(
    cluster: SimulatedCluster,
) -> None:
    record = prepared(cluster)
    record.min_insync_replicas = 2
    record.damage(1)
    assert not record.voided
    record.damage(2)
    assert record.voided


@pytest.mark.parametrize(("broker_epoch", "excused"), [(-1, True), (7, False)], ids=["starting", "registered"])
def test_a_loss_is_excused_until_a_broker_with_every_record_has_registered(
    cluster: SimulatedCluster, broker_epoch: int, excused: bool
) -> None:
    """Until then a leader may count a delayed fetch of the earlier process, which had more records."""
    record = prepared(cluster)
    record.min_insync_replicas = 2
    state(cluster, 1, 1, (1, 3), 1)
    record.committed.add(0, 2, 0, 5)
    record.thw = 2
    record.logs = {1: log((0, 2, 0, 5)), 2: log((0, 2, 0, 5))}
    record.damage(2)
    machine = SimpleNamespace(life=broker(2, broker_epoch=broker_epoch))
    cluster.brokers[2] = cast(BrokerMachine, machine)
    state(cluster, 1, 1, (1, 2, 3), 2)
    machine.life = None
    record.logs[2] = log()
    state(cluster, 1, 1, (1,), 3)
    state(cluster, 1, 1, (1, 2), 4)
    assert ("R5b" in violated(cluster)) is not excused


@pytest.mark.parametrize("loses_power", [True, False], ids=["loses power", "crashes"])
def test_a_broker_that_loses_power_in_a_compaction_may_lack_records(
    cluster: SimulatedCluster, loses_power: bool
) -> None:
    """Only after a crash, which keeps the page cache, is the interrupted append the only uncertain batch."""
    record = prepared(cluster)
    record.min_insync_replicas = 2
    before, after = log((0, 2, 0, 5), (2, 4, 0, 6)), log((0, 2, 0, 5))
    if loses_power:
        record.damage(1)
    life = broker(1, broker_epoch=-1)
    life.machine = SimpleNamespace(has_died_at_work=True)
    life.logs = SimpleNamespace(unexplained_gaps={})
    cluster.checks.replicas._compare(life, record, after, before)
    assert violated(cluster) == ()
    assert (1 in record.damaged, 1 in record.incomplete) == (loses_power, loses_power)


def test_deleting_data_because_a_node_cannot_be_read_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    cluster.checks.topic_harmed("t")
    deleted = StateChange(
        who="broker-1", wall_ms=0, kind=StateChangeKind.REPLICA_DELETED, topic_partition=TP, topic_id=TOPIC_ID
    )
    cluster.checks.replicas.broker_changed(broker(1), deleted)
    assert violated(cluster) == ("H26",)
    cluster.checks.verdicts.all["H26"].violations = 0
    cluster.checks.topic_doomed("t")
    cluster.checks.replicas.broker_changed(broker(1), deleted)
    assert violated(cluster) == ()


# Deleted records


def test_a_log_start_that_was_not_requested_or_is_not_committed_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    one = cast(Any, log((0, 2, 0, 5), high_watermark=2))
    record.asked_start = one.log_start_offset = 2
    cluster.checks.replicas.log_start_moved(broker(1), one, 0, 2)
    assert violated(cluster) == ()
    cluster.checks.replicas.log_start_moved(broker(1), one, 0, 1)
    assert violated(cluster) == ("R18",)
    record.asked_start = 1
    cluster.checks.replicas.log_start_moved(broker(1), one, 0, 2)
    assert cluster.checks.verdicts.all["R18"].violations == 2


def test_a_log_starts_behind_a_segment_that_the_only_isr_member_has_lost(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.lose_segment(1, 0, 2)
    record.lose_segment(2, 2, 3)
    record.led_without = list(record.lost_segments.values())
    one = cast(Any, log((3, 4, 0, 5), high_watermark=4))
    record.thw, one.log_start_offset = 4, 3
    cluster.checks.replicas.log_start_moved(broker(3), one, 0, 3)
    assert violated(cluster) == ()
    record.led_without = [(0, 2)]
    cluster.checks.replicas.log_start_moved(broker(3), one, 0, 3)
    assert violated(cluster) == ("R18",)


@pytest.mark.parametrize("leader_start", [2, 0])
def test_records_of_a_follower_below_its_leaders_log_start_are_not_compared(
    cluster: SimulatedCluster, leader_start: int
) -> None:
    """They are removed with the response that also contains the high watermark."""
    record = prepared(cluster)
    record.committed.add(0, 2, 1, 5)
    record.thw = record.asked_start = 2
    leader, follower = log((0, 2, 1, 5), high_watermark=2), log((0, 2, 0, 6), high_watermark=2)
    cast(Any, leader).log_start_offset = leader_start
    record.logs = {1: leader, 2: follower}
    following = SimpleNamespace(log=follower, is_leader=False)
    cluster.checks.replicas.high_watermark_moved(broker(2, following), follower, 0)
    assert violated(cluster) == (() if leader_start else ("R3",))


def test_a_deletion_that_a_restart_undoes_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    one = log((0, 2, 0, 5), high_watermark=2)
    record.promised_starts[1] = 1
    cluster.checks.replicas._starts_where_promised(broker(1), record, one)
    assert violated(cluster) == ("R18",)


def test_a_mirror_that_begins_later_is_compared_by_the_chain_of_earlier_batches() -> None:
    whole, late, other = Mirror(), Mirror(2), Mirror(2)
    whole.add(0, 2, 0, 5)
    whole.add(2, 3, 0, 6)
    for mirror, crc in ((late, 6), (other, 7)):
        mirror.add(2, 3, 0, crc)
        assert mirror.chain_at(3) is None and mirror.same_history(whole) is (crc == 6)
        mirror.root(whole.chain_at(2))
    assert late.chain_at(3) == whole.chain_at(3) != other.chain_at(3)
    assert late.same_history(whole) and not other.same_history(whole)


@pytest.mark.parametrize(("crc", "expected"), [(6, True), (7, False)])
def test_a_log_that_begins_lower_than_before_is_compared_in_the_common_range(crc: int, expected: bool) -> None:
    before, after = Mirror(2), Mirror(1)
    for mirror, base, end, last in ((before, 2, 3, 6), (before, 3, 5, 8), (after, 1, 2, 5), (after, 2, 3, crc)):
        mirror.add(base, end, 0, last)
    assert after.begins(before) is expected
    assert not before.begins(after), "it reaches further"
