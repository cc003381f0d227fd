"""ISR writes of a leader, with every outcome, and the high watermark until the outcome is known."""

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import GetData, SetData
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.client_io import RequiredAcks
from paceline.model.control import StopReplicaPartition, StopReplicaRequest
from paceline.model.identifiers import EPOCH_DURING_DELETE, TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster
from tests.support.zookeeper.link import is_write
from tests.unit.broker.isr_cluster import LAG_MAX_MS, fetch_by_hand, lag, leader, make


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


def test_many_partitions_write_their_isr_together() -> None:
    cluster = BrokerCluster(replica_lag_time_max_ms=LAG_MAX_MS)
    tps = [TopicPartition("many", index) for index in range(40)]
    for tp in tps:
        cluster.decide(1, 0, (1,), tp=tp, is_new=True)
    cluster.time.run_until(lambda: all(set(cluster.state(tp).isr) == {1, 2, 3} for tp in tps[-3:]), 10_000)
    cluster.time.run_for(2_000)
    assert all(set(cluster.state(tp).isr) == {1, 2, 3} for tp in tps)


def test_a_record_appended_before_a_storage_failure_is_not_committed() -> None:
    cluster = BrokerCluster((1,))
    cluster.decide(1, 0, (1,), (1,), is_new=True)
    log, partition = cluster[1].log(), cluster[1].node.replica_manager.hosted.online[TP]
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
    partition = cluster[1].node.replica_manager.hosted.online[TP]
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
