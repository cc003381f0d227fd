"""Shrinking and expanding the ISR through ZooKeeper, with every outcome of the write."""

import copy
import itertools
from collections.abc import Callable

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import GetData, SetData
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.client_io import RequiredAcks
from paceline.model.control import StopReplicaPartition, StopReplicaRequest
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import EPOCH_DURING_DELETE, TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.replica_fetch import ReplicaFetchPartition, ReplicaFetchRequest
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster
from tests.support.zookeeper.link import is_write

LAG_MAX_MS = 2_000


def make(**config: object) -> BrokerCluster:
    cluster = BrokerCluster(replica_lag_time_max_ms=LAG_MAX_MS, **config)
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    return cluster


def leader(cluster: BrokerCluster):  # type: ignore[no-untyped-def]
    return cluster[1].node.replica_manager.partitions[TP]


def notifications(cluster: BrokerCluster) -> list[str]:
    return sorted(path for path in cluster.paths() if path.startswith(znodes.ISR_CHANGE_PREFIX))


def lag(cluster: BrokerCluster, *broker_ids: int) -> int:
    """Cut followers off, append a record, and return the time when they were last caught up."""
    cluster.cuts |= {(broker_id, 1) for broker_id in broker_ids}
    cluster[1].produce(b"lacking", acks=RequiredAcks.LEADER)
    one = leader(cluster).followers[broker_ids[0]]
    found = one.caught_up_ms(1)
    assert isinstance(found, int)
    return found


def fetch_by_hand(
    cluster: BrokerCluster, replica_id: int, offset: int, max_wait_ms: int = 0, session_epoch: int = -1
) -> list[object]:
    """Send the leader a fetch as if it came from this replica; the list stays empty until the answer comes."""
    epoch = leader(cluster).leader_epoch
    named = ReplicaFetchPartition(TP, None, epoch, offset, None, 0, 1_000)
    broker_epoch = cluster[replica_id].node.broker_epoch if replica_id in cluster.brokers else 1
    answers: list[object] = []
    request = ReplicaFetchRequest(replica_id, broker_epoch, max_wait_ms, 1, 1_000, 0, session_epoch, [named], [])
    cluster[1].node.handle_replica_fetch(request, answers.append)
    return answers


def test_an_idle_follower_stays_in_the_isr_after_a_late_copy_of_its_first_fetch() -> None:
    cluster = make()
    end = leader(cluster).log.log_end_offset
    cluster.time.run_for(LAG_MAX_MS)
    # The copy opens a session that follower 3 never uses; the follower keeps fetching in the session it has.
    fetch_by_hand(cluster, 3, end, session_epoch=0)
    cluster.time.run_for(4 * LAG_MAX_MS)
    assert not cluster[1].said(StateChangeKind.ISR_SHRUNK)
    assert leader(cluster).followers[3].caught_up_ms(end) > cluster.time.now_ms() - LAG_MAX_MS


def test_s2_8_a_lagging_follower_leaves_between_one_and_one_and_a_half_times_the_limit() -> None:
    cluster = make()
    caught_up_ms = lag(cluster, 3)
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    silent_ms = cluster.time.now_ms() - caught_up_ms
    assert LAG_MAX_MS < silent_ms <= LAG_MAX_MS * 1.5 + 20
    assert cluster.state().isr == (1, 2)
    (shrunk,) = cluster[1].said(StateChangeKind.ISR_SHRUNK)
    assert (shrunk.old_isr, shrunk.isr) == ((1, 2, 3), (1, 2))


def test_s2_8_the_timeline_of_the_specification_in_tenths() -> None:
    # lag limit 30 s, checks at 14.9, 29.9 and 44.9 s after the follower was last caught up; here in tenths.
    cluster = BrokerCluster(replica_lag_time_max_ms=3_000)
    origin_ms = cluster[1].node.replica_manager.now_ms()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    cluster.cuts.add((3, 1))
    cluster.time.run_for(1_600)
    # A fetch sent by the test, 10 ms after a check of the leader: the follower's last caught-up time.
    checks = 1_500
    start_ms = 1_000_000
    now_ms = cluster.time.now_ms()
    next_check_ms = start_ms + ((now_ms - start_ms) // checks + 1) * checks
    assert origin_ms >= start_ms
    cluster.time.run_for(next_check_ms - now_ms + 10)
    follower = leader(cluster).followers[3]
    follower.clock = None
    follower.record_fetch(1, 0, 1, cluster.time.now_ms(), follower.broker_epoch)
    caught_up_ms = cluster.time.now_ms()
    cluster[1].produce(b"b", acks=RequiredAcks.LEADER)
    cluster.time.run_for(2_990)
    assert cluster.time.now_ms() - caught_up_ms == 2_990 and leader(cluster).isr == (1, 2, 3)
    assert leader(cluster).proposal is None
    cluster.time.run_for(1_499)
    assert leader(cluster).isr == (1, 2, 3) and leader(cluster).proposal is None
    cluster.time.run_for(2)
    assert leader(cluster).isr == (1, 2)


@pytest.mark.parametrize("lag_max_ms", [200, 333])
def test_s2_8_a_follower_leaves_between_one_and_one_and_a_half_times_the_limit_whenever_it_stops(
    lag_max_ms: int,
) -> None:
    cluster = BrokerCluster(replica_lag_time_max_ms=lag_max_ms, replica_fetch_wait_max_ms=20)
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_until(lambda: leader(cluster).followers[3].fetched_in_epoch, 1_000)
    cluster.cuts.add((3, 1))
    begin_ms, period_ms = cluster.time.now_ms(), lag_max_ms // 2
    delays: list[int] = []
    for round_number in range(period_ms):
        # Sent by the test at a known time: every possible time between two checks of the leader.
        cluster.time.run_for((round_number - (cluster.time.now_ms() - begin_ms)) % period_ms)
        fetch_by_hand(cluster, 3, cluster[1].log().log_end_offset)
        stopped_ms = cluster.time.now_ms()
        cluster.time.run_until(lambda: leader(cluster).isr == (1, 2, 3), 100)
        assert cluster.time.now_ms() - stopped_ms <= 1
        cluster[1].produce(b"lacking", acks=RequiredAcks.LEADER)
        cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 2 * lag_max_ms)
        proposed = cluster[1].said(StateChangeKind.ISR_PROPOSED)[-1]
        assert proposed.isr == (1, 2)
        delays.append(proposed.wall_ms - (cluster.time.wall_ms() - cluster.time.now_ms()) - stopped_ms)
        assert cluster.state().isr == (1, 2)
    assert lag_max_ms < min(delays) <= lag_max_ms + 1, "the best case is just above the limit"
    assert lag_max_ms * 3 // 2 - 1 <= max(delays) <= lag_max_ms * 1.5, (
        "the worst case is one and a half times the limit"
    )
    assert len(set(delays)) == period_ms, "every case between them occurs"


def test_s2_8_a_follower_that_repeats_the_same_offset_leaves_like_one_that_stops_fetching() -> None:
    cluster = make()
    caught_up_ms = lag(cluster, 3)
    while 3 in leader(cluster).isr:
        assert cluster.time.now_ms() - caught_up_ms <= 1.5 * LAG_MAX_MS
        # The follower is at the high watermark, which waits for it: only the log end shows that it lags.
        assert cluster[1].log().high_watermark == 1
        fetch_by_hand(cluster, 3, 1)
        cluster.time.run_for(50)
    assert cluster.time.now_ms() - caught_up_ms > LAG_MAX_MS


def test_s2_8_a_follower_always_one_batch_behind_stays() -> None:
    cluster = make()
    cluster.cuts.add((3, 1))
    end = cluster[1].log().log_end_offset
    for _ in range(5 * LAG_MAX_MS // 100):
        cluster[1].produce(b"more", acks=RequiredAcks.LEADER)
        fetch_by_hand(cluster, 3, end)
        end = cluster[1].log().log_end_offset
        cluster.time.run_for(100)
    assert leader(cluster).isr == (1, 2, 3) and not cluster[1].said(StateChangeKind.ISR_PROPOSED)


def test_an_idle_follower_at_the_log_end_is_not_removed() -> None:
    cluster = make()
    cluster.cuts.add((3, 1))
    cluster.time.run_for(20 * LAG_MAX_MS)
    assert leader(cluster).isr == (1, 2, 3)


def test_an_idle_follower_is_not_removed_when_records_arrive_after_a_long_pause() -> None:
    cluster = make()
    cluster.time.run_for(20 * LAG_MAX_MS)
    cluster[1].produce(b"b")
    cluster.until_in_sync(1, 2, 3)
    assert not cluster[1].said(StateChangeKind.ISR_SHRUNK, StateChangeKind.ISR_PROPOSED)


def test_an_idle_follower_counts_as_caught_up_until_its_last_fetch() -> None:
    cluster = make()
    cluster.time.run_for(20 * LAG_MAX_MS)
    cluster.cuts.add((3, 1))
    begin_ms = cluster.time.now_ms()
    cluster[1].produce(b"b", acks=RequiredAcks.LEADER)
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    # Its last fetch came within the half second before.
    assert cluster.time.now_ms() - begin_ms > LAG_MAX_MS - 510


def test_the_lag_clock_starts_with_the_leadership() -> None:
    cluster = make()
    cluster.time.run_for(LAG_MAX_MS // 2 + 100)
    lag(cluster, 3)
    cluster.decide(1, 1, (1, 2, 3))
    begin_ms = cluster.time.now_ms()
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    assert cluster.time.now_ms() - begin_ms > LAG_MAX_MS


def test_s2_9_a_produce_that_waits_for_a_removed_follower_completes_without_more_traffic() -> None:
    cluster = make()
    cluster.cuts.add((3, 1))
    answer = cluster[1].produce(b"b")
    cluster.time.run_for(LAG_MAX_MS // 2)
    assert not answer
    cluster.time.run_until(lambda: leader(cluster).isr == (1, 2), 2 * LAG_MAX_MS)
    assert answer and answer[0].failure is None


def test_a_removed_follower_joins_again_and_both_changes_are_counted() -> None:
    cluster = make()
    lag(cluster, 3)
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    cluster.cuts.clear()
    cluster.time.run_until(lambda: 3 in leader(cluster).isr, 10_000)
    assert cluster.state().isr == (1, 2, 3) and cluster.state().leader_epoch == 0
    numbers = cluster[1].node.metrics_snapshot()
    assert (numbers["isr_shrinks_total"], numbers["isr_expands_total"], numbers["under_replicated_partitions"]) == (
        1,
        1,
        0,
    )


def test_an_isr_write_keeps_epoch_controller_epoch_and_foreign_keys() -> None:
    cluster = make()
    path = znodes.partition_state_path(TP)
    state = cluster.state()
    data = znodes.encode_partition_state(state, {"clean_former_members": [4]})
    cluster.zk(SetData(path, data))
    leader(cluster).zk_version += 1
    cluster.set_controller_epoch(2)
    lag(cluster, 3)
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    found = znodes.decode_partition_state(path, cluster.zk(GetData(path)).data, 0)  # type: ignore[attr-defined]
    assert found.extra == {"clean_former_members": [4]}
    assert (found.leader_and_isr.leader_epoch, found.leader_and_isr.controller_epoch) == (0, 1)


def test_a_follower_that_restarted_while_it_was_joining_is_refused() -> None:
    cluster = make()
    lag(cluster, 3)
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    cluster.cuts.clear()
    # The leader's write is delayed; meanwhile the follower loses its disk.
    cluster.time.run_until(lambda: leader(cluster).proposal is not None, 10_000)
    cluster[1].zookeeper.link.cut()
    cluster.cuts |= {(3, 1)}
    cluster.restart(3, wipe=True)
    cluster[1].zookeeper.link.heal()
    cluster.time.run_until(lambda: leader(cluster).proposal is None, 20_000)
    assert cluster.state().isr == (1, 2) and leader(cluster).isr == (1, 2)
    (refused,) = cluster[1].said(StateChangeKind.ISR_REFUSED)
    assert refused.cause is not None and "not registered as it fetched" in refused.cause


def test_a_fetch_of_an_earlier_registration_records_no_progress() -> None:
    cluster = make()
    follower = leader(cluster).followers[3]
    old_epoch = follower.broker_epoch
    cluster.restart(3)
    cluster.update_metadata()
    cluster.send(3, cluster.partition(1, 0, (1, 2, 3)))
    cluster[1].produce(b"b")
    cluster.time.run_for(1_500)
    assert follower.broker_epoch > old_epoch and follower.log_end_offset == 2
    stale = cluster[3].transport.fetches[-1][1]
    stale.broker_epoch, stale.session_id, stale.session_epoch = old_epoch, 0, -1
    stale.partitions = [cluster[2].transport.fetches[0][1].partitions[0]]
    answers: list[object] = []
    cluster[1].node.handle_replica_fetch(stale, answers.append)
    (result,) = answers[0].results  # type: ignore[attr-defined]
    assert result.error is ErrorCode.STALE_BROKER_EPOCH and follower.log_end_offset == 2


def test_a_fetch_that_claims_a_future_registration_does_not_shut_the_follower_out() -> None:
    cluster = make()
    follower = leader(cluster).followers[3]
    epoch, end = follower.broker_epoch, follower.log_end_offset
    forged = copy.deepcopy(cluster[3].transport.fetches[0][1])
    forged.broker_epoch, forged.session_id, forged.session_epoch = 2**63 - 1, 0, -1
    answers: list[object] = []
    cluster[1].node.handle_replica_fetch(forged, answers.append)
    (result,) = answers[0].results  # type: ignore[attr-defined]
    assert result.error is ErrorCode.BROKER_NOT_AVAILABLE
    assert (follower.broker_epoch, follower.log_end_offset) == (epoch, end)
    cluster[1].produce(b"b")
    cluster.until_in_sync(1, 2, 3)
    cluster.time.run_for(5_000)
    assert leader(cluster).isr == (1, 2, 3)


def test_a_lost_reply_to_an_isr_write_is_resolved_by_reading_the_state() -> None:
    cluster = make()
    lag(cluster, 3)
    cluster[1].zookeeper.link.lose_next_reply(is_write)
    cluster.time.run_until(lambda: leader(cluster).isr == (1, 2), 20_000)
    assert leader(cluster).zk_version == cluster.state().zk_version
    cluster.cuts.clear()
    cluster.time.run_until(lambda: cluster.state().isr == (1, 2, 3), 20_000)


def test_a_leader_with_an_outdated_version_reads_the_state_and_decides_again() -> None:
    cluster = make()
    state = cluster.state()
    cluster.write_state(LeaderAndIsr(1, 0, (1, 2, 3), 0, state.controller_epoch))
    lag(cluster, 3)
    cluster.time.run_until(lambda: leader(cluster).isr == (1, 2), 10_000)
    assert cluster.state().isr == (1, 2) and leader(cluster).zk_version == cluster.state().zk_version
    assert cluster[1].node.metrics_snapshot()["failed_isr_updates_total"] == 1


def test_after_a_conflict_the_leader_decides_again_at_once() -> None:
    cluster = make()
    cluster.write_state(LeaderAndIsr(1, 0, (1, 2, 3), 0, cluster.state().controller_epoch))
    lag(cluster, 3)
    cluster.time.run_until(lambda: bool(cluster[1].said(StateChangeKind.ISR_REFUSED)), 10_000)
    cluster.time.run_due()
    assert leader(cluster).isr == (1, 2)


def test_an_expansion_with_a_conflict_is_proposed_again_at_once() -> None:
    cluster = make()
    lag(cluster, 3)
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    cluster.write_state(LeaderAndIsr(1, 0, (1, 2), 0, cluster.state().controller_epoch))
    cluster.cuts.clear()
    cluster.time.run_until(lambda: bool(cluster[1].said(StateChangeKind.ISR_REFUSED)), 10_000)
    cluster.time.run_due()
    assert cluster.state().isr == (1, 2, 3)


def test_the_high_watermark_counts_a_replica_whose_admission_is_in_flight() -> None:
    # 3 reaches the high watermark, which 2 holds at 1.
    cluster = BrokerCluster(replica_lag_time_max_ms=600_000)
    cluster.decide(1, 0, (1, 2), is_new=True, to=[1, 2])
    cluster.time.run_for(50)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2)
    cluster[2].transport.hold = lambda *_: True
    for value in (b"b", b"c", b"d"):
        cluster[1].produce(value, acks=RequiredAcks.LEADER)
    cluster.time.run_for(50)
    one = leader(cluster).followers[3]
    assert cluster[1].log().high_watermark == 1
    cluster[1].zookeeper.link.cut()
    for offset in (0, 1):
        fetch_by_hand(cluster, 3, offset)
    assert one.log_end_offset == 1
    # As if the time it was caught up, at the election, were long ago: only the proposal makes it count now.
    one.last_caught_up_ms = None
    assert leader(cluster).isr == (1, 2) and leader(cluster).maximal_isr == (1, 2, 3)
    cluster[2].transport.hold = lambda *_: False
    for deliver in cluster[2].transport.held:
        deliver()
    cluster.time.run_until(lambda: cluster[2].log().log_end_offset == 4, 1_000)
    cluster.time.run_for(100)
    assert leader(cluster).followers[2].log_end_offset == 4
    assert leader(cluster).isr == (1, 2) and cluster[1].log().high_watermark == 1


def test_a_deposed_leader_proposes_no_isr_change_and_counts_every_replica_of_the_maximal_isr() -> None:
    cluster = make()
    lag(cluster, 3)
    cluster.decide(2, 1, (2, 3), to=[2])
    cluster.cuts.add((2, 1))
    cluster.time.run_for(10 * LAG_MAX_MS)
    assert leader(cluster).isr == (1, 2, 3) and cluster[1].log().high_watermark == 1
    assert cluster[1].node.metrics_snapshot()["failed_isr_updates_total"] == 1
    assert cluster.state().isr == (2,)


@pytest.mark.parametrize("controller_first", [True, False])
def test_a_proposal_concurrent_with_a_decision_of_the_controller_leaves_the_isr_of_zookeeper(
    controller_first: bool,
) -> None:
    cluster = make()
    lag(cluster, 3)
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    cluster.cuts.clear()
    cluster.time.run_until(lambda: leader(cluster).proposal is not None, 10_000)
    assert leader(cluster).maximal_isr == (1, 2, 3)
    if controller_first:
        # The controller removes 2 before the expansion by 3 arrives.
        cluster[1].zookeeper.link.cut()
        decision = cluster.decide(1, 1, (1,), to=[])
        cluster[1].zookeeper.link.heal()
        assert set(leader(cluster).maximal_isr) == {1, 2, 3}
        cluster.send(1, decision)
        assert leader(cluster).maximal_isr == (1,)
    else:
        cluster.time.run_until(lambda: leader(cluster).proposal is None, 5_000)
        cluster.decide(1, 1, (1, 3))
    cluster.time.run_for(100)
    assert leader(cluster).isr == cluster.state().isr
    assert leader(cluster).zk_version == cluster.state().zk_version
    cluster.update_metadata()
    for broker_id in (2, 3):
        cluster.send(broker_id, cluster.partition(1, 1, leader(cluster).isr))
    cluster.time.run_until(lambda: set(cluster.state().isr) == {1, 2, 3}, 10_000)


def test_a_stopping_broker_neither_joins_nor_holds_the_high_watermark_back() -> None:
    cluster = make()
    cluster.shutting_down.add(3)
    cluster.decide(1, 1, (1, 2))
    cluster.time.run_for(1_000)
    assert leader(cluster).isr == (1, 2)
    assert leader(cluster).followers[3].fetched_in_epoch
    cluster.cuts.add((3, 1))
    answer = cluster[1].produce(b"b")
    cluster.time.run_until(lambda: bool(answer), 100)
    assert answer[0].failure is None


def test_an_isr_write_interrupted_by_the_end_of_a_session_is_completed_in_the_next() -> None:
    cluster = make()
    lag(cluster, 3)
    cluster.time.run_until(lambda: leader(cluster).proposal is not None, 10_000)
    old_epoch = cluster[1].node.broker_epoch
    cluster[1].zookeeper.link.cut()
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_for(500)
    assert leader(cluster).proposal is not None
    cluster[1].zookeeper.link.heal()
    cluster.time.run_until(lambda: cluster.state().isr == (1, 2), 20_000)
    assert cluster[1].node.broker_epoch > old_epoch and leader(cluster).is_leader
    cluster.time.run_until(lambda: leader(cluster).isr == (1, 2), 5_000)


def test_s2_10_a_single_change_is_sent_to_the_controller_at_the_next_tick() -> None:
    cluster = make()
    lag(cluster, 3)
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    assert notifications(cluster) == []
    cluster.time.run_for(2_500)
    (path,) = notifications(cluster)
    assert znodes.decode_partition_set(path, cluster.zk(GetData(path)).data) == (TP,)  # type: ignore[attr-defined]


def test_s2_10_the_three_timings_at_a_broker() -> None:
    cluster = make()
    told_ms: list[int] = []
    changed_ms: list[int] = []
    known: set[str] = set()

    def passing(until: Callable[[], bool]) -> None:
        """Let time pass in small steps, and record when the controller was notified of which change."""
        deadline_ms = cluster.time.now_ms() + 200_000
        while not until():
            assert cluster.time.now_ms() < deadline_ms
            cluster.time.run_for(20)
            new = set(notifications(cluster)) - known
            known.update(new)
            told_ms.extend(cluster.time.now_ms() for _ in new)

    def change() -> None:
        """Let the ISR shrink, or expand again."""
        before = leader(cluster).isr
        if 3 in before:
            lag(cluster, 3)
        else:
            cluster.cuts.clear()
        passing(lambda: leader(cluster).isr != before)
        changed_ms.append(cluster.time.now_ms())

    change()
    passing(lambda: len(told_ms) == 1)
    assert told_ms[0] - changed_ms[0] <= 2_520, "the first change is sent at the next tick"
    passing(lambda: cluster.time.now_ms() >= told_ms[0] + 10_000)
    change()
    passing(lambda: len(told_ms) == 2)
    assert 5_000 < told_ms[1] - changed_ms[1] <= 7_520, "within a minute it waits for five seconds without changes"
    while len(told_ms) == 2:
        change()
        assert cluster.time.now_ms() < told_ms[1] + 70_000
    gaps = [late - early for early, late in itertools.pairwise(changed_ms[2:])]
    assert max(gaps) <= 5_000 and len(gaps) > 10, "changes continued"
    assert 60_000 < told_ms[2] - told_ms[1] <= 62_540, "constant changes are sent once a minute"
    passing(lambda: cluster.time.now_ms() >= told_ms[-1] + 75_000)
    told = len(told_ms)
    change()
    passing(lambda: len(told_ms) == told + 1)
    assert told_ms[-1] - changed_ms[-1] <= 2_520, "after a minute without changes it is sent at the next tick"


def test_s2_11_a_refused_write_is_not_notified() -> None:
    cluster = make()
    lag(cluster, 3)
    cluster.decide(2, 1, (2, 3), to=[])
    cluster.time.run_for(10_000)
    assert cluster[1].node.replica_manager.isr_propagation.pending == ()
    assert notifications(cluster) == []


def test_s2_11_a_write_with_a_version_conflict_is_not_notified_and_the_next_write_is() -> None:
    cluster = make()
    pending = cluster[1].node.replica_manager.isr_propagation
    cluster.write_state(LeaderAndIsr(1, 0, (1, 2, 3), 0, cluster.state().controller_epoch))
    lag(cluster, 3)
    told: list[tuple[TopicPartition, ...]] = []

    def refused() -> bool:
        if not cluster[1].said(StateChangeKind.ISR_SHRUNK):
            told.append(pending.pending)
        return bool(cluster[1].said(StateChangeKind.ISR_REFUSED))

    cluster.time.run_until(refused, 10_000)
    assert set(told) == {()} and not cluster[1].said(StateChangeKind.ISR_SHRUNK)
    cluster.time.run_until(lambda: leader(cluster).isr == (1, 2), 1_000)
    assert pending.pending == (TP,)


def test_s2_11_a_refused_joiner_is_not_notified() -> None:
    cluster = make()
    cluster.decide(1, 1, (1, 2))
    # Its registration was deleted, but the leader was not notified.
    cluster[3].zookeeper.link.cut()
    cluster.server.expire(cluster[3].zookeeper.session_id)
    cluster.time.run_for(20_000)
    assert cluster[1].said(StateChangeKind.ISR_REFUSED) and leader(cluster).isr == (1, 2)
    assert cluster[1].node.replica_manager.isr_propagation.pending == () and notifications(cluster) == []


def test_a_notification_that_could_not_be_written_is_written_later() -> None:
    cluster = make()
    lag(cluster, 3)
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    cluster[1].zookeeper.link.cut()
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_for(4_000)
    cluster[1].zookeeper.link.heal()
    cluster.time.run_until(lambda: bool(notifications(cluster)), 90_000)


def test_many_partitions_write_their_isr_together() -> None:
    cluster = BrokerCluster(replica_lag_time_max_ms=LAG_MAX_MS)
    tps = [TopicPartition("many", index) for index in range(40)]
    for tp in tps:
        cluster.decide(1, 0, (1,), tp=tp, is_new=True)
    cluster.time.run_until(lambda: all(set(cluster.state(tp).isr) == {1, 2, 3} for tp in tps[-3:]), 10_000)
    cluster.time.run_for(2_000)
    assert all(set(cluster.state(tp).isr) == {1, 2, 3} for tp in tps)


def test_a_refused_joiner_that_stops_fetching_holds_the_high_watermark_for_the_lag_limit_only() -> None:
    cluster = make()
    cluster.decide(1, 1, (1, 2))
    # Its registration was deleted, but the leader was not notified: each attempt to join is refused.
    cluster[3].zookeeper.link.cut()
    cluster.server.expire(cluster[3].zookeeper.session_id)
    cluster.time.run_for(2_000)
    assert cluster[1].said(StateChangeKind.ISR_REFUSED) and leader(cluster).isr == (1, 2)
    cluster.cuts.add((3, 1))
    answer = cluster[1].produce(b"b")
    cluster.time.run_for(LAG_MAX_MS // 2)
    assert cluster[2].log().log_end_offset == 2 and not answer
    cluster.time.run_until(lambda: bool(answer), LAG_MAX_MS * 3 // 2)
    assert answer[0].failure is None


def test_progress_is_recorded_when_a_fetch_arrives_and_not_when_it_is_answered() -> None:
    cluster = make()
    cluster.cuts.add((3, 1))
    cluster.time.run_for(2_000)
    arrived_ms = cluster.time.now_ms()
    answers = fetch_by_hand(cluster, 3, 1, max_wait_ms=1_000)
    cluster.time.run_for(300)
    assert not answers
    cluster[1].produce(b"b", acks=RequiredAcks.LEADER)
    assert len(answers) == 1
    one = leader(cluster).followers[3]
    assert (one.last_fetch_ms, one.last_caught_up_ms, one.last_fetch_leader_end_offset) == (arrived_ms, arrived_ms, 1)


def test_a_fetch_of_an_unassigned_replica_is_refused() -> None:
    cluster = make()
    (answer,) = fetch_by_hand(cluster, 9, 0)
    (result,) = answer.results  # type: ignore[attr-defined]
    assert result.error is ErrorCode.REPLICA_NOT_AVAILABLE and result.batches == b""
    assert sorted(leader(cluster).followers) == [2, 3]


def test_a_record_appended_before_a_storage_failure_is_not_committed() -> None:
    cluster = BrokerCluster((1,))
    cluster.decide(1, 0, (1,), (1,), is_new=True)
    log, partition = cluster[1].log(), cluster[1].node.replica_manager.partitions[TP]
    log.append_as_leader(encode_batch([NewRecord(0, None, b"in doubt")]), 0, 0)
    log.directory.fail(OSError("no space left"))
    assert (partition.advance_high_watermark(), log.high_watermark, log.log_end_offset) == (False, 0, 1)


def test_an_isr_write_delayed_by_a_disconnect_does_not_change_a_re_created_topic() -> None:
    cluster = BrokerCluster((1, 2), replica_lag_time_max_ms=1_000)
    cluster.decide(1, 0, (1, 2), is_new=True)
    cluster.time.run_for(50)
    cluster[1].zookeeper.link.cut()
    cluster[1].zookeeper.disconnect()
    cluster.cuts.add((2, 1))
    cluster[1].produce(b"a")
    partition = cluster[1].node.replica_manager.partitions[TP]
    cluster.time.run_until(lambda: partition.proposal is not None, 5_000)
    cluster.time.run_for(10)
    version = partition.zk_version
    stopped = StopReplicaPartition(TP, partition.topic_id, EPOCH_DURING_DELETE, delete_partition=True)
    cluster[1].node.handle_control(StopReplicaRequest(cluster.stamp(1), (stopped,)))
    cluster.delete(znodes.partition_state_path(TP))
    assert cluster.write_state(LeaderAndIsr(2, 0, (2, 3), 0, 1)) == version
    cluster[1].zookeeper.link.heal()
    cluster.time.run_for(2_000)
    assert cluster[1].zookeeper.connected
    assert (cluster.state().leader, cluster.state().isr, cluster.state().zk_version) == (2, (2, 3), version)
