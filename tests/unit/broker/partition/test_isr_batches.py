"""Many ISR writes in one transaction: conflicts, lost replies, and sessions that end."""

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Multi, SetData
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import BrokerCluster
from tests.support.zookeeper.link import is_write

TPS = [TopicPartition("many", index) for index in range(60)]


def returning() -> tuple[BrokerCluster, list[object]]:
    """A cluster whose broker 3 is about to join the ISR of every partition, and the writes of the leader from then."""
    cluster = BrokerCluster((1, 3))
    cluster.cuts.add((3, 1))
    for tp in TPS:
        cluster.decide(1, 0, (1,), tp=tp, is_new=True)
    cluster.time.run_for(3_000)
    writes: list[object] = []
    submit = cluster[1].zookeeper.submit

    def spy(requests, on_done):  # type: ignore[no-untyped-def]
        writes.extend(request for request in requests if is_write(request))
        submit(requests, on_done)

    cluster[1].zookeeper.submit = spy  # type: ignore[method-assign]
    cluster.cuts.clear()
    return cluster, writes


def isr(cluster: BrokerCluster, tp: TopicPartition) -> tuple[int, ...]:
    return cluster[1].node.replica_manager.hosted.online[tp].isr


def until_joined(cluster: BrokerCluster, tps: list[TopicPartition] = TPS) -> None:
    cluster.time.run_until(lambda: all(isr(cluster, tp) == (1, 3) for tp in tps), 20_000)
    for tp in tps:
        partition = cluster[1].node.replica_manager.hosted.online[tp]
        assert (partition.isr, partition.zk_version) == (cluster.state(tp).isr, cluster.state(tp).zk_version)


def test_the_replicas_of_a_returning_broker_join_in_few_transactions() -> None:
    cluster, writes = returning()
    until_joined(cluster)
    multis = [write for write in writes if isinstance(write, Multi)]
    assert len(multis) <= 3 and len(writes) <= 6
    assert cluster[1].node.metrics_snapshot()["isr_expands_total"] == len(TPS)
    assert set(cluster[1].node.replica_manager.hosted.isr_updates.propagation.pending) <= set(TPS)


def test_one_conflict_does_not_prevent_the_other_writes() -> None:
    cluster, _ = returning()
    cluster.write_state(LeaderAndIsr(1, 0, (1,), 0, 1), TPS[7])
    cluster.write_state(LeaderAndIsr(3, 4, (3,), 0, 1), TPS[8])
    until_joined(cluster, [tp for tp in TPS if tp != TPS[8]])
    assert isr(cluster, TPS[8]) == (1,) and cluster.state(TPS[8]).leader == 3


def test_after_a_conflict_between_read_and_write_each_write_is_repeated_alone() -> None:
    cluster, writes = returning()
    cluster.time.run_until(lambda: bool(writes), 5_000)
    # The transaction is in flight; another write is applied before it.
    state = znodes.encode_partition_state(LeaderAndIsr(1, 0, (1,), 0, 1))
    cluster.server.tree.apply(SetData(znodes.partition_state_path(TPS[5]), state), 0, cluster.server.zxid)
    until_joined(cluster)


@pytest.mark.parametrize("losses", [1, 2])
def test_a_lost_reply_to_a_batch_is_resolved_for_every_partition(losses: int) -> None:
    cluster, _ = returning()
    for _ in range(losses):
        cluster[1].zookeeper.link.lose_next_reply(lambda request: isinstance(request, Multi))
    until_joined(cluster)
    assert not cluster[1].said(StateChangeKind.ISR_REFUSED)


def test_a_batch_does_not_admit_a_broker_that_registered_again() -> None:
    cluster, _ = returning()
    cluster.time.run_until(
        lambda: all(cluster[1].node.replica_manager.hosted.online[tp].proposal is not None for tp in TPS), 5_000
    )
    cluster[1].zookeeper.link.cut()
    cluster.cuts |= {(3, 1), (1, 3)}
    cluster.restart(3, wipe=True)
    cluster[1].zookeeper.link.heal()
    cluster.time.run_until(
        lambda: all(cluster[1].node.replica_manager.hosted.online[tp].proposal is None for tp in TPS), 20_000
    )
    assert {cluster.state(tp).isr for tp in TPS} == {(1,)}


def test_writes_of_a_session_that_ended_are_completed_in_the_next_session() -> None:
    cluster, writes = returning()
    cluster.time.run_until(
        lambda: all(cluster[1].node.replica_manager.hosted.online[tp].proposal is not None for tp in TPS), 5_000
    )
    cluster[1].zookeeper.link.cut()
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_for(1_000)
    cluster[1].zookeeper.link.heal()
    until_joined(cluster)
    assert writes


def test_a_state_of_the_expected_version_with_another_leadership_is_not_overwritten() -> None:
    cluster, _ = returning()
    state = cluster.state(TPS[9])
    cluster.delete(znodes.partition_state_path(TPS[9]))
    assert cluster.write_state(LeaderAndIsr(3, 0, (3,), 0, 1), TPS[9]) == state.zk_version
    until_joined(cluster, [tp for tp in TPS if tp != TPS[9]])
    assert isr(cluster, TPS[9]) == (1,) and cluster.state(TPS[9]).leader == 3
