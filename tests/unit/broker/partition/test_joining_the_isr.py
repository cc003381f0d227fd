"""Which follower joins the ISR, and whose fetches count."""

import copy

from paceline.model.client_io import RequiredAcks
from paceline.model.errors import ErrorCode
from paceline.model.state_change import StateChangeKind
from tests.unit.broker.isr_cluster import LAG_MAX_MS, fetch_by_hand, lag, leader, make


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
