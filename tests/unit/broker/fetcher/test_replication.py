"""Records through three replicas, returning replicas and truncation, with real cores and logs."""

import pytest

from paceline.log.log_config import LogConfig
from paceline.model.client_io import RequiredAcks
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster, batch


def make(isr: tuple[int, ...] = (1, 2, 3), epoch: int = 0, **config: object) -> BrokerCluster:
    """A cluster of the replicas in ``isr``, led by broker 1, fetching."""
    cluster = BrokerCluster(isr, **config)  # type: ignore[arg-type]
    cluster.decide(1, epoch, isr, is_new=True)
    cluster.time.run_for(50)
    return cluster


def cut_off(cluster: BrokerCluster, broker_id: int) -> None:
    """Cut this broker off from all other brokers."""
    for other in cluster.brokers:
        cluster.cuts |= {(broker_id, other), (other, broker_id)}


def kill(cluster: BrokerCluster, broker_id: int) -> None:
    """End a broker's process and session; its disk stays."""
    session_id = cluster[broker_id].zookeeper.session_id
    cluster[broker_id].crash()
    cluster.server.expire(session_id)


def test_one_record_travels_through_three_replicas() -> None:
    # docs/protocol/replication.md#one-record-through-three-replicas, step by step.
    cluster = make()
    cluster.time.run_for(1_100)
    logs = [cluster[one].log() for one in (1, 2, 3)]
    assert [log.log_end_offset for log in logs] == [0, 0, 0]
    answer = cluster[1].produce(b"a")
    assert [log.log_end_offset for log in logs] == [1, 0, 0] and logs[0].high_watermark == 0
    cluster.time.run_until(lambda: bool(answer), 50)
    assert answer[0].failure is None and answer[0].base_offset == 0
    assert [log.log_end_offset for log in logs] == [1, 1, 1] and logs[0].high_watermark == 1
    assert [log.high_watermark for log in logs[1:]] == [0, 0]
    # A new high watermark alone does not complete a follower's fetch; the follower gets it when the wait ends.
    cluster.time.run_for(300)
    assert [log.high_watermark for log in logs[1:]] == [0, 0]
    cluster.time.run_for(300)
    assert [log.high_watermark for log in logs] == [1, 1, 1]
    assert [cluster[one].values() for one in (1, 2, 3)] == [[b"a"]] * 3


def test_an_idle_cluster_sends_one_small_request_per_wait() -> None:
    cluster = make()
    cluster[1].produce(b"a")
    cluster.time.run_for(5_000)
    sent = len(cluster[2].transport.fetches)
    cluster.time.run_for(10_000)
    idle = cluster[2].transport.fetches[sent:]
    assert 18 <= len(idle) <= 21
    assert all(not request.partitions and request.session_epoch > 0 for _, request in idle)


@pytest.mark.parametrize("leader_hears_first", [True, False])
def test_followers_fetch_in_a_new_epoch_at_once_although_their_last_fetch_still_waits(
    leader_hears_first: bool,
) -> None:
    cluster = BrokerCluster()
    other = TopicPartition("other", 0)
    for tp in (TP, other):
        cluster.decide(2, 0, (1, 2, 3), tp=tp, is_new=True)
    cluster.time.run_for(10_100)
    # Fetches of 3 to 2 wait half a second each; now 2 becomes leader of a third partition.
    third = cluster.partition(2, 0, (2, 3), (2, 3), tp=TopicPartition("third", 0), is_new=True)
    order = (2, 3) if leader_hears_first else (3, 2)
    for broker_id in order:
        cluster.send(broker_id, third)
        cluster.time.run_for(5)
    answer = cluster[2].produce(b"a", tp=third.topic_partition)
    cluster.time.run_until(lambda: bool(answer), 80)
    assert answer[0].failure is None


def test_a_returning_replica_joins_when_it_reaches_high_watermark_and_epoch_start() -> None:
    # docs/protocol/replication.md#a-replica-returns, in small: batches of one record, one per fetch.
    cluster = make(replica_fetch_response_max_bytes=1, replica_fetch_max_bytes=1)
    cut_off(cluster, 3)
    for index in range(20):
        cluster[1].produce(b"%d" % index)
    cluster.time.run_for(2_000)
    cluster.decide(1, 4, (1, 2))
    for index in range(5):
        cluster[1].produce(b"new %d" % index)
    cluster.time.run_for(2_000)
    leader = cluster[1].node.replica_manager.hosted.online[TP]
    assert (leader.leader_epoch_start_offset, cluster[1].log().high_watermark) == (20, 25)
    cluster.cuts.clear()
    ends_before_joining = []
    while 3 not in leader.isr:
        ends_before_joining.append(leader.followers[3].log_end_offset)
        cluster.time.run_for(1)
        assert cluster.time.now_ms() < 1_100_000
    assert ends_before_joining[-1] in (24, 25) and 10 in ends_before_joining
    assert cluster.state().isr == (1, 2, 3)
    assert cluster[3].values() == cluster[1].values()
    assert leader.zk_version == cluster.state().zk_version


def test_a_replica_at_the_high_watermark_but_below_the_epoch_start_does_not_join() -> None:
    cluster = make(min_insync_replicas=1)
    for index in range(4):
        cluster[1].produce(b"%d" % index)
    cluster.until_in_sync(1, 2, 3)
    cluster.time.run_for(1_000)
    # Broker 3 misses two committed records; broker 2 has them but has not learned that they are committed.
    cluster.cuts |= {(3, 1)}
    cluster.decide(1, 1, (1, 2))
    cluster.time.run_for(100)
    answers = [cluster[1].produce(b"4"), cluster[1].produce(b"5")]
    cluster.time.run_until(lambda: all(answers), 100)
    assert cluster[2].log().high_watermark < 6 == cluster[2].log().log_end_offset
    kill(cluster, 1)
    cluster[2].transport.hold = lambda *_: True
    decision = cluster.decide(2, 2, (2,))
    leader = cluster[2].node.replica_manager.hosted.online[TP]
    assert leader.leader_epoch_start_offset == 6
    # With the leader alone in its ISR every record is committed at once, so stop the follower before it joins: end 5.
    cluster[3].transport.hold = lambda _leader, answer: (
        not isinstance(answer, Exception) and bool(answer.results) and leader.followers[3].log_end_offset == 4
    )
    cluster.time.run_for(600)
    assert decision.isr == (2,) and leader.isr == (2,)
    assert leader.followers[3].log_end_offset == 4 and leader.followers[3].fetched_in_epoch
    cluster[3].transport.hold = lambda *_: False
    for deliver in cluster[3].transport.held:
        deliver()
    cluster.time.run_until(lambda: 3 in leader.isr, 5_000)
    assert cluster[3].values() == cluster[2].values()


def test_x1_a_restarted_follower_keeps_a_committed_record_above_its_high_watermark() -> None:
    # Leader B = 1, follower A = 2; A restarts before it learns that record 1 is committed, then B dies.
    cluster = make((1, 2))
    cluster[1].produce(b"m0")
    cluster.time.run_for(600)
    answer = cluster[1].produce(b"m1")
    cluster.time.run_until(lambda: bool(answer), 100)
    assert answer[0].failure is None and cluster[2].log().high_watermark == 1
    cluster.restart(2)
    cluster.update_metadata()
    cluster.send(2, cluster.partition(1, 0, (1, 2)))
    cluster.time.run_for(100)
    assert cluster[2].values() == [b"m0", b"m1"]
    kill(cluster, 1)
    cluster.decide(2, 1, (2,))
    assert cluster[2].values() == [b"m0", b"m1"]
    assert cluster[2].log().high_watermark == 2


def test_x2_logs_that_diverged_in_a_power_loss_become_equal() -> None:
    cluster = make((1, 2))
    cluster[1].produce(b"m0")
    cluster.until_in_sync(1, 2)
    cut_off(cluster, 2)
    cluster[1].produce(b"lost")
    kill(cluster, 1)
    cluster.cuts.clear()
    cluster.decide(2, 1, (2,))
    cluster[2].produce(b"m1")
    back = cluster.boot(1, cluster[1].files)
    cluster.time.run_until(lambda: back.node.ready, 5_000)
    cluster.update_metadata()
    cluster.decide(2, 2, (2,))
    cluster.until_in_sync(1, 2)
    assert cluster[1].values() == cluster[2].values() == [b"m0", b"m1"]
    assert [change.cause for change in back.said(StateChangeKind.TRUNCATED)] == [
        "to 1: epoch 0 of the leader ends at 1"
    ]


def interleaved() -> BrokerCluster:
    """X3 and X4 of docs/protocol/replication.md#truncation-examples, both brokers up, no leader yet."""
    cluster = BrokerCluster((1, 2))
    for broker_id, history in ((1, (0, 0, 1, 1, 3)), (2, (0, 0, 2, 2))):
        log = cluster[broker_id].logs.get_or_create(TP, "topic-id-of-orders-one", True)
        for offset, epoch in enumerate(history):
            value = b"%d" % offset if epoch == 0 else b"%d in %d" % (offset, epoch)
            log.append_as_leader(batch(value), epoch, cluster.time.wall_ms())
    return cluster


def test_x3_x4_logs_with_interleaved_epochs_become_equal() -> None:
    cluster = interleaved()
    cluster.decide(1, 4, (1,))
    cluster.until_in_sync(1, 2)
    assert cluster[2].values() == [b"0", b"1", b"2 in 1", b"3 in 1", b"4 in 3"]
    named = [request.partitions[0] for _, request in cluster[2].transport.fetches[:2]]
    assert [(one.fetch_offset, one.last_fetched_epoch) for one in named] == [(4, 2), (2, 0)]


def test_x5_a_zombie_leader_is_not_followed_and_its_isr_writes_fail() -> None:
    cluster = make(epoch=5, replica_lag_time_max_ms=2_000)
    # The controller cannot reach broker 1: 2 leads epoch 6, 3 knows, 1 does not.
    cluster.decide(2, 6, (2, 3), to=[2])
    cluster.send(3, cluster.partition(1, 6, (2, 3)))
    cluster.time.run_for(700)
    zombie_answers = [answer.results for leader, answer in cluster[3].transport.answers if leader == 1]
    assert ErrorCode.UNKNOWN_LEADER_EPOCH in [result.error for results in zombie_answers for result in results]
    cluster.decide(2, 7, (2, 3), to=[2, 3])
    cluster[1].produce(b"zombie")
    cluster.time.run_for(10_000)
    assert cluster.state().leader == 2 and cluster.state().isr == (2, 3)
    assert cluster[1].node.metrics_snapshot()["failed_isr_updates_total"] == 1
    assert cluster[1].log().high_watermark == 0


def test_x5_a_follower_in_an_old_epoch_waits_for_its_leader_and_isr() -> None:
    cluster = make(epoch=5)
    cluster.decide(1, 6, (1, 2, 3), to=[1, 2])
    cluster[1].produce(b"a")
    cluster.time.run_for(3_000)
    assert TP in cluster[3].node.replica_manager.fetchers.failed
    assert cluster[3].values() == []
    cluster.send(3, cluster.partition(1, 6, (1, 2, 3)))
    cluster.until_in_sync(1, 2, 3)


def test_x6_the_old_leader_truncates_below_its_high_watermark_after_an_unclean_election() -> None:
    cluster = make(epoch=3)
    for index in range(6):
        cluster[1].produce(b"%d" % index)
    cluster.until_in_sync(1, 2, 3)
    cluster.time.run_for(600)
    cut_off(cluster, 3)
    cluster.decide(1, 4, (1, 2), to=[1, 2])
    for index in range(6, 10):
        cluster[1].produce(b"%d" % index)
    cluster.until_in_sync(1, 2)
    assert cluster[1].log().high_watermark == 10
    kill(cluster, 1)
    kill(cluster, 2)
    cluster.cuts.clear()
    cluster.decide(3, 5, (3,))
    cluster[3].produce(b"u6", b"u7")
    back = cluster.boot(1, cluster[1].files)
    cluster.time.run_until(lambda: back.node.ready, 5_000)
    cluster.update_metadata()
    cluster.decide(3, 6, (3,))
    cluster.until_in_sync(1, 3)
    assert cluster[1].values() == cluster[3].values() == [b"%d" % i for i in range(6)] + [b"u6", b"u7"]


def test_x7_an_epoch_without_records_costs_no_record() -> None:
    cluster = make((1, 2), epoch=3)
    for index in range(10):
        cluster[1].produce(b"%d" % index)
    cluster.until_in_sync(1, 2)
    cut_off(cluster, 2)
    cluster.decide(2, 4, (1, 2), to=[2])
    assert cluster[2].epochs() == [(3, 0), (4, 10)]
    cluster.decide(1, 5, (1, 2), to=[1])
    cluster[1].produce(b"10 in 5", acks=RequiredAcks.LEADER)
    cluster.cuts.clear()
    cluster.send(2, cluster.partition(1, 5, (1, 2)))
    cluster.until_in_sync(1, 2)
    assert cluster[2].epochs() == cluster[1].epochs() == [(3, 0), (5, 10)]
    assert cluster[2].values() == cluster[1].values()
    assert len(cluster[2].values()) == 11


def test_a_follower_that_missed_a_leader_epoch_truncates() -> None:
    # A(1), B(2), A(3): broker 3 never receives epoch 2, in which 1 lost a record that 3 has.
    cluster = make(epoch=1)
    cluster[1].produce(b"m0")
    cluster.until_in_sync(1, 2, 3)
    cut_off(cluster, 2)
    cluster[1].produce(b"lost")
    cluster.time.run_until(lambda: cluster[3].log().log_end_offset == 2, 1_000)
    cluster.cuts.clear()
    cluster.cuts |= {(3, 1), (3, 2)}
    cluster.decide(2, 2, (2,), to=[2])
    cluster[2].produce(b"m1", acks=RequiredAcks.LEADER)
    cluster.send(1, cluster.partition(2, 2, (2,)))
    cluster.until_in_sync(1, 2)
    assert cluster[1].values() == [b"m0", b"m1"] and cluster[3].values() == [b"m0", b"lost"]
    cluster.decide(1, 3, (1, 2), to=[1, 2])
    cluster.cuts.clear()
    cluster.send(3, cluster.partition(1, 3, (1, 2)))
    cluster.until_in_sync(1, 2, 3)
    assert cluster[3].values() == [b"m0", b"m1"]


def test_a_diverging_fetch_counts_as_no_progress() -> None:
    cluster = interleaved()
    cluster[2].transport.hold = lambda *_: True
    cluster.decide(1, 4, (1,))
    cluster.time.run_for(100)
    follower = cluster[1].node.replica_manager.hosted.online[TP].followers[2]
    assert cluster[2].transport.held
    assert follower.log_end_offset is None and not follower.fetched_in_epoch


def test_a_follower_below_the_leaders_log_start_restarts_its_log_with_a_valid_high_watermark() -> None:
    cluster = make((1, 2))
    for index in range(6):
        cluster[1].produce(b"%d" % index)
    cluster.until_in_sync(1, 2)
    cut_off(cluster, 2)
    for index in range(6, 10):
        cluster[1].produce(b"%d" % index, acks=RequiredAcks.LEADER)
    cluster.decide(1, 1, (1,), to=[1])
    assert cluster[1].log().high_watermark == 10
    cluster[1].log().increment_log_start_offset(8)
    cluster.cuts.clear()
    cluster.send(2, cluster.partition(1, 1, (1,)))
    cluster.until_in_sync(1, 2)
    log = cluster[2].log()
    assert (log.log_start_offset, log.log_end_offset) == (8, 10)
    assert cluster[2].values() == [b"8", b"9"]
    assert 8 <= log.high_watermark <= 10
    cluster.time.run_until(lambda: cluster.state().isr == (1, 2), 5_000)
    kill(cluster, 1)
    cluster.decide(2, 2, (2,))
    assert cluster[2].log().high_watermark == 10


def test_followers_learn_the_leaders_log_start() -> None:
    cluster = make()
    for index in range(6):
        cluster[1].produce(b"%d" % index)
    cluster.until_in_sync(1, 2, 3)
    cluster.time.run_for(1_000)
    cluster[1].log().increment_log_start_offset(4)
    cluster[1].produce(b"6")
    cluster.until_in_sync(1, 2, 3)
    cluster.time.run_for(1_100)
    assert [cluster[one].log().log_start_offset for one in (1, 2, 3)] == [4, 4, 4]
    leader = cluster[1].node.replica_manager.hosted.online[TP]
    cluster.time.run_for(1_100)
    assert leader.followers[2].log_start_offset == 4


def test_a_log_without_epochs_is_truncated_to_its_high_watermark_before_it_follows() -> None:
    cluster = BrokerCluster((1, 2))
    log = cluster[2].logs.get_or_create(TP, "topic-id-of-orders-one", True)
    for value in (b"m0", b"unknown"):
        log.append_as_leader(batch(value), 0, cluster.time.wall_ms())
    log.epochs.clear()
    log.update_high_watermark(1)
    cluster.decide(1, 1, (1,))
    for value in (b"m0", b"m1", b"m2"):
        cluster[1].produce(value, acks=RequiredAcks.LEADER)
    cluster.until_in_sync(1, 2)
    assert cluster[2].values() == [b"m0", b"m1", b"m2"]


@pytest.mark.parametrize("response_bytes", [1, 200, 10_000])
def test_every_record_arrives_with_any_fetch_limits(response_bytes: int) -> None:
    cluster = make(replica_fetch_response_max_bytes=response_bytes, replica_fetch_max_bytes=response_bytes)
    for index in range(50):
        cluster[1].produce(b"%d" % index)
    cluster.until_in_sync(1, 2, 3)
    assert cluster[2].values() == cluster[3].values() == [b"%d" % index for index in range(50)]


def test_the_high_watermark_does_not_advance_below_min_insync_replicas() -> None:
    cluster = BrokerCluster(log_config=LogConfig(min_insync_replicas=2), replica_lag_time_max_ms=2_000)
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    cluster.cuts |= {(2, 1), (3, 1)}
    waiting = cluster[1].produce(b"b")
    cluster[1].produce(b"c", acks=RequiredAcks.LEADER)
    cluster.time.run_until(lambda: cluster.state().isr == (1,), 10_000)
    cluster.time.run_for(1_000)
    assert cluster[1].log().high_watermark == 1
    assert not waiting
    refused = cluster[1].produce(b"d")
    assert refused[0].failure is not None and refused[0].failure.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster[1].log().log_end_offset == 3
    cluster.cuts.clear()
    cluster.time.run_until(lambda: bool(waiting), 40_000)
    assert waiting[0].failure is None and cluster[1].log().high_watermark == 3
