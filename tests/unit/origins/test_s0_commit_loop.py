"""Rows S0-8 to S0-11: when a record is committed, who is in sync, and how long a slow follower is waited for."""

import random

import pytest

from paceline.log.files import join
from paceline.model.client_io import RequiredAcks
from tests.origins.commit_loop import CommitLoop, Committed, IsrWritten
from tests.support.broker_cluster import TP, BrokerCluster

KEEP_IN_SYNC_MS = 1_000
LAG_MAX_MS = 2_000


def loop(*isr: int) -> CommitLoop:
    return CommitLoop(1, (1, 2, 3), isr or (1, 2, 3), KEEP_IN_SYNC_MS)


def made() -> BrokerCluster:
    cluster = BrokerCluster(replica_lag_time_max_ms=LAG_MAX_MS)
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    return cluster


def leader(cluster: BrokerCluster):  # type: ignore[no-untyped-def]
    return cluster[1].node.replica_manager.hosted.online[TP]


# S0-8


@pytest.mark.origin("S0-8")
def test_a_request_is_answered_when_the_whole_isr_has_it() -> None:
    one = loop()
    one.produce(7, 10)
    assert one.run(0) == []
    one.replicated(2, 10)
    assert one.run(1) == []
    one.replicated(3, 9)
    assert one.run(2) == []
    one.replicated(3, 10)
    assert one.run(3) == [Committed(7, 10)]
    assert one.run(4) == []


@pytest.mark.origin("S0-8")
def test_a_stuck_follower_delays_a_request_for_keep_in_sync_time_only() -> None:
    one = loop()
    one.produce(7, 10)
    one.replicated(2, 10)
    assert one.run(500) == []
    assert one.run(500 + KEEP_IN_SYNC_MS - 1) == []
    assert one.run(500 + KEEP_IN_SYNC_MS) == [IsrWritten((1, 2)), Committed(7, 10)]


@pytest.mark.origin("S0-8")
def test_a_slow_request_delays_the_next_whose_time_begins_only_then() -> None:
    one = loop()
    one.produce(7, 10)
    one.produce(8, 20)
    one.replicated(2, 20)
    assert one.run(0) == []
    one.replicated(3, 10)
    assert one.run(900) == [Committed(7, 10)]
    assert one.run(900 + KEEP_IN_SYNC_MS - 1) == []
    assert one.run(900 + KEEP_IN_SYNC_MS) == [IsrWritten((1, 2)), Committed(8, 20)]


@pytest.mark.origin("S0-8")
def test_today_acks_all_answers_only_when_every_isr_member_has_it() -> None:
    cluster = made()
    cluster.cuts.add((3, 1))
    caught_up_ms = leader(cluster).followers[3].caught_up_ms(1)
    answer = cluster[1].produce(b"b")
    cluster.time.run_for(LAG_MAX_MS // 2)
    assert not answer and cluster[2].values() == [b"a", b"b"] and cluster[3].values() == [b"a"]
    cluster.time.run_until(lambda: bool(answer), 2 * LAG_MAX_MS)
    assert LAG_MAX_MS < cluster.time.now_ms() - caught_up_ms <= LAG_MAX_MS * 3 // 2 + 1, "delayed at most by the limit"
    assert answer[0].failure is None and leader(cluster).isr == (1, 2), "the ISR shrank and the request committed"
    cluster.cuts.clear()
    cluster.time.run_until(lambda: leader(cluster).isr == (1, 2, 3), 20_000)
    answer = cluster[1].produce(b"c")
    cluster.time.run_until(lambda: bool(answer), 5_000)
    assert cluster[2].values() == cluster[3].values() == [b"a", b"b", b"c"]


# S0-9


@pytest.mark.origin("S0-9")
def test_a_replica_that_is_catching_up_joins_the_isr_at_the_committed_offset_and_not_before() -> None:
    one = loop(1, 2)
    assert one.catching_up == (3,)
    one.produce(7, 10)
    one.replicated(2, 10)
    one.replicated(3, 9)
    assert one.run(0) == [Committed(7, 10)]
    one.produce(8, 20)
    one.replicated(2, 20)
    one.replicated(3, 20)
    assert one.run(1) == [IsrWritten((1, 2, 3)), Committed(8, 20)]
    assert one.catching_up == ()


@pytest.mark.origin("S0-9")
def test_today_a_follower_joins_again_when_it_reaches_the_high_watermark_and_not_before() -> None:
    cluster = made()
    cluster.cuts.add((3, 1))
    cluster[1].produce(b"b", acks=RequiredAcks.LEADER)
    cluster.time.run_until(lambda: leader(cluster).isr == (1, 2), 10_000)
    for value in (b"c", b"d"):
        answer = cluster[1].produce(value)
        cluster.time.run_until(lambda got=answer: bool(got), 5_000)  # type: ignore[misc]
    high_watermark = cluster[1].log().high_watermark
    assert high_watermark == 4
    # Its fetches arrive, but responses with missing records do not: it is connected, but below the high watermark.
    cluster[3].transport.hold = lambda _leader, _answer: True
    cluster.cuts.clear()
    cluster.time.run_for(3_000)
    assert cluster[3].log().log_end_offset < high_watermark and leader(cluster).isr == (1, 2)
    assert leader(cluster).proposal is None
    cluster[3].transport.hold = lambda _leader, _answer: False
    for deliver in cluster[3].transport.held:
        deliver()
    cluster.time.run_until(lambda: leader(cluster).isr == (1, 2, 3), 20_000)
    assert cluster[3].log().log_end_offset >= high_watermark and cluster.state().isr == (1, 2, 3)


@pytest.mark.origin("S0-9")
def test_today_a_follower_does_not_join_at_a_high_watermark_below_the_start_of_the_leader_epoch() -> None:
    cluster = made()
    cluster.decide(1, 1, (1, 2))
    for follower in (2, 3):
        cluster[follower].transport.hold = lambda _leader, _answer: True
    cluster[1].produce(b"b", acks=RequiredAcks.LEADER)
    # The record before the new epoch may be committed, although this leader cannot know that yet.
    cluster.decide(1, 2, (1, 2))
    cluster.time.run_until(lambda: leader(cluster).followers[3].fetched_in_epoch, 1_000)
    cluster.time.run_for(200)
    assert leader(cluster).leader_epoch_start_offset == 2
    assert leader(cluster).followers[3].log_end_offset == cluster[1].log().high_watermark == 1
    assert leader(cluster).isr == (1, 2) and leader(cluster).proposal is None
    for follower in (2, 3):
        cluster[follower].transport.hold = lambda _leader, _answer: False
        for deliver in cluster[follower].transport.held:
            deliver()
    cluster.time.run_until(lambda: leader(cluster).isr == (1, 2, 3), 20_000)
    assert cluster[3].values() == [b"a", b"b"]


# S0-10


@pytest.mark.origin("S0-10")
@pytest.mark.parametrize("seed", range(5))
def test_the_high_watermark_never_moves_back_and_every_request_is_answered_once(seed: int) -> None:
    chance = random.Random(seed)
    one = loop()
    answered: list[int] = []
    marks = [0]
    ends = {2: 0, 3: 0}
    offset = 0
    for step in range(300):
        if chance.random() < 0.3:
            offset += chance.randint(1, 5)
            one.produce(step, offset)
        replica = chance.choice((2, 3))
        ends[replica] = min(offset, ends[replica] + chance.randint(0, 4))
        one.replicated(replica, ends[replica])
        for effect in one.run(step * 100):
            if isinstance(effect, Committed):
                answered.append(effect.request_id)
                marks.append(effect.high_watermark)
            else:
                assert 1 in effect.isr
    assert marks == sorted(marks)
    assert answered == sorted(set(answered)) and answered


@pytest.mark.origin("S0-10")
def test_today_the_high_watermark_never_moves_back_and_its_checkpoint_never_exceeds_it() -> None:
    cluster = made()
    seen = [cluster[1].log().high_watermark]
    for value in range(20):
        answer = cluster[1].produce(b"%d" % value)
        cluster.time.run_until(lambda got=answer: bool(got), 5_000)  # type: ignore[misc]
        seen.append(cluster[1].log().high_watermark)
    assert seen == sorted(seen) and seen[-1] == 21
    cluster.time.run_for(5_000)
    assert checkpoint(cluster, 1) == 21
    # Uncommitted records are in the log at the next checkpoint: followers fetch, but receive nothing.
    for follower in (2, 3):
        cluster[follower].transport.hold = lambda _leader, _answer: True
    waiting = [cluster[1].produce(value) for value in (b"x", b"y")]
    cluster[1].node.replica_manager.logs.checkpoint_high_watermarks()
    assert (cluster[1].log().high_watermark, cluster[1].log().log_end_offset) == (21, 23)
    assert checkpoint(cluster, 1) == 21 and waiting == [[], []]
    for follower in (2, 3):
        cluster[follower].transport.hold = lambda _leader, _answer: False
        for deliver in cluster[follower].transport.held:
            deliver()
    # The records are committed after the last checkpoint.
    cluster.time.run_until(lambda: all(waiting), 5_000)
    assert checkpoint(cluster, 1) == 21 and cluster[1].log().high_watermark == 23
    broker = cluster.restart(1)
    assert broker.log().high_watermark <= 21
    cluster.decide(1, 1, (1, 2, 3))
    cluster.until_in_sync(1, 2, 3)
    assert broker.log().high_watermark == 23


def checkpoint(cluster: BrokerCluster, broker_id: int) -> int:
    """The partition's high watermark in a broker's checkpoint file."""
    text = cluster[broker_id].files.read_at(join("/data", "replication-offset-checkpoint"), 0, 1 << 16).decode()
    (line,) = [line for line in text.splitlines() if line.startswith("orders 0 ")]
    return int(line.split()[-1])


@pytest.mark.origin("S0-10")
def test_today_a_followers_high_watermark_stays_when_the_next_leader_knows_a_lower_one() -> None:
    cluster = made()
    # Broker 2 has the record, but not the answer that tells it that the record is committed.
    fetched: list[bool] = []
    cluster[2].transport.hold = lambda _leader, _answer: bool(fetched)
    answer = cluster[1].produce(b"b")
    cluster.time.run_until(lambda: cluster[2].log().log_end_offset == 2, 1_000)
    fetched.append(True)
    cluster.time.run_until(lambda: bool(answer) and cluster[3].log().high_watermark == 2, 5_000)
    assert cluster[2].log().high_watermark == 1
    cluster[1].crash()
    cluster[2].transport.hold = lambda _leader, _answer: False
    cluster.decide(2, 1, (1, 2, 3), to=(2, 3))
    fetches = len(cluster[3].transport.answers)
    cluster.time.run_until(lambda: len(cluster[3].transport.answers) > fetches + 1, 5_000)
    assert cluster[2].log().high_watermark == 1, "the new leader waits for broker 1, which is still in the ISR"
    assert cluster[3].log().high_watermark == 2


@pytest.mark.origin("S0-10")
def test_today_a_member_that_lost_its_log_does_not_move_the_high_watermark_back() -> None:
    cluster = made()
    broker = cluster.restart(3, wipe=True)
    broker.transport.hold = lambda _leader, _answer: True
    cluster.update_metadata()
    cluster.decide(1, 1, (1, 2, 3))
    cluster.time.run_until(lambda: leader(cluster).followers[3].log_end_offset == 0, 5_000)
    cluster[1].produce(b"b", acks=RequiredAcks.LEADER)
    cluster.time.run_until(lambda: cluster[2].log().log_end_offset == 2, 1_000)
    assert leader(cluster).isr == (1, 2, 3) and cluster[1].log().high_watermark == 1


# S0-11


@pytest.mark.origin("S0-11")
@pytest.mark.parametrize("phase", range(0, 1_000, 130))
def test_a_follower_leaves_the_isr_between_one_and_one_and_a_half_times_the_limit(phase: int) -> None:
    cluster = made()
    cluster.time.run_for(phase)
    cluster.cuts.add((3, 1))
    cluster[1].produce(b"lacking", acks=RequiredAcks.LEADER)
    caught_up_ms = leader(cluster).followers[3].caught_up_ms(1)
    cluster.time.run_for(caught_up_ms + LAG_MAX_MS - cluster.time.now_ms())
    assert leader(cluster).isr == (1, 2, 3), "the ISR does not shrink before the limit"
    cluster.time.run_until(lambda: leader(cluster).isr == (1, 2), LAG_MAX_MS)
    assert cluster.time.now_ms() - caught_up_ms <= 1.5 * LAG_MAX_MS + 20


@pytest.mark.origin("S0-11")
def test_the_time_of_a_request_begins_after_the_request_before_it() -> None:
    one = loop()
    one.produce(7, 10)
    one.replicated(2, 10)
    assert one.run(0) == []
    # No check runs for a while: the follower is removed at the next check, however late.
    assert one.run(5 * KEEP_IN_SYNC_MS) == [IsrWritten((1, 2)), Committed(7, 10)]
