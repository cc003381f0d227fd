"""A leader that cannot prove its leadership does not answer as leader; an outage of ZooKeeper alone stops no leader."""

from collections.abc import Callable

import pytest

from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.client_io import (
    DeleteRecordsQuery,
    DeleteRecordsResult,
    EpochQuery,
    Isolation,
    OffsetKind,
    OffsetQuery,
    PartitionFailure,
    ProduceData,
    ProduceResult,
    RequiredAcks,
)
from paceline.model.errors import ErrorCode, RequestTimedOutError
from paceline.model.identifiers import NO_LEADER
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster, batch

SESSION_MS, LEASE_MS, REPLICA_LAG_MS = 6_000, 9_000, 10_000


def led_by_1(isr: tuple[int, ...] = (1, 2, 3), cuts: frozenset[tuple[int, int]] = frozenset()) -> BrokerCluster:
    """Return a cluster in which broker 1 leads, with one committed record."""
    cluster = BrokerCluster(
        zookeeper_session_timeout_ms=SESSION_MS,
        controller_broker_lease_ms=LEASE_MS,
        replica_lag_time_max_ms=REPLICA_LAG_MS,
    )
    cluster.cuts |= cuts
    cluster.decide(1, 0, isr, is_new=True)
    cluster.time.run_for(500)
    answer = cluster[1].produce(b"a")
    cluster.time.run_for(500)
    assert answer[0].failure is None
    return cluster


def lose_zookeeper(cluster: BrokerCluster, broker_id: int = 1) -> None:
    """Cut a broker off from ZooKeeper."""
    cluster[broker_id].zookeeper.link.cut()
    cluster[broker_id].zookeeper.disconnect()


def cut_off(cluster: BrokerCluster) -> None:
    """Cut broker 1 off from ZooKeeper, controllers and brokers; clients still reach it."""
    lose_zookeeper(cluster)
    cluster[1].transport.heartbeat_answer = RequestTimedOutError("cut off")
    cluster.cuts |= {(1, 2), (1, 3), (2, 1), (3, 1)}


def failures(cluster: BrokerCluster) -> dict[str, PartitionFailure | None]:
    """Return the failure of broker 1 for each kind of request, None where it answers."""
    node = cluster[1].node
    produced: list[ProduceResult] = []
    numbered = encode_batch([NewRecord(1, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=400)
    node.produce(RequiredAcks.LEADER, 1_000, [ProduceData(TP, None, numbered)], produced.extend)
    deleted: list[DeleteRecordsResult] = []
    node.delete_records([DeleteRecordsQuery(TP, None, 0, None)], 0, deleted.extend)
    return {
        "list offsets": node.list_offsets([OffsetQuery(TP, OffsetKind.LATEST)], Isolation.READ_UNCOMMITTED)[0].failure,
        "fetch": cluster[1].consume(0)[0].results[0].failure,
        "fetch out of range": cluster[1].consume(99)[0].results[0].failure,
        "acks=1": cluster[1].produce(b"b", acks=RequiredAcks.LEADER)[0].failure,
        "out of order": produced[0].failure,
        "epoch end": node.offsets_for_leader_epoch([EpochQuery(TP, 0)], from_client=True)[0].failure,
        "delete records": deleted[0].failure,
        "describe replicas": node.describe_replicas(TP.topic, [TP.partition])[0].failure,
    }


def test_a_leader_that_is_cut_off_refuses_every_leader_request_after_a_session() -> None:
    cluster = led_by_1()
    cut_off(cluster)
    end = cluster[1].log().log_end_offset
    cluster.time.run_for(SESSION_MS + 500)
    for kind, failure in failures(cluster).items():
        assert failure is not None and failure.code is ErrorCode.NOT_LEADER_OR_FOLLOWER, kind
        assert failure.leader is None, f"{kind}: the hint would send the client back"
    assert cluster[1].log().log_end_offset == end
    assert not cluster[1].node.ready


def test_a_leader_that_is_not_cut_off_answers_every_leader_request() -> None:
    found = failures(led_by_1())
    codes = {kind: failure.code for kind, failure in found.items() if failure is not None}
    assert codes == {"fetch out of range": ErrorCode.OFFSET_OUT_OF_RANGE}


@pytest.mark.parametrize("lose", [lose_zookeeper, lambda c: None], ids=["without ZooKeeper", "with ZooKeeper"])
@pytest.mark.parametrize("controller", [True, False], ids=["with a controller", "without controllers"])
def test_a_leader_with_followers_answers_without_zookeeper_and_controllers(
    lose: Callable[[BrokerCluster], None], controller: bool
) -> None:
    cluster = led_by_1()
    lose(cluster)
    if not controller:
        cluster[1].transport.heartbeat_answer = RequestTimedOutError("no controller")
    for _ in range(300):
        cluster.time.run_for(1_000)
        answer = cluster[1].produce(b"b")
        cluster.time.run_for(50)
        assert answer and answer[0].failure is None
        assert cluster[1].node.ready


def test_a_sole_isr_member_answers_without_zookeeper() -> None:
    cluster = led_by_1(isr=(1,), cuts=frozenset({(2, 1), (3, 1)}))
    lose_zookeeper(cluster)
    cluster.time.run_for(300_000)
    assert cluster[1].produce(b"b")[0].failure is None
    assert cluster[1].node.ready


def test_a_leader_stops_answering_when_one_isr_member_no_longer_fetches() -> None:
    cluster = led_by_1()
    lose_zookeeper(cluster)
    cluster.cuts |= {(3, 1)}
    cluster.time.run_for(SESSION_MS + 500)
    assert not cluster[1].node.ready
    cluster.cuts.clear()
    cluster.time.run_until(lambda: cluster[1].node.ready, 10_000)


def regain_contact(cluster: BrokerCluster) -> None:
    """Connect broker 1 to ZooKeeper and the controller again, in a new session; the brokers stay cut off from it."""
    old_epoch = cluster[1].node.broker_epoch
    cluster[1].transport.heartbeat_answer = None
    cluster[1].zookeeper.link.heal()
    cluster.time.run_until(lambda: cluster[1].node.broker_epoch > old_epoch, 20_000)


def test_a_new_session_alone_does_not_prove_leadership() -> None:
    cluster = led_by_1()
    cut_off(cluster)
    cluster.time.run_for(SESSION_MS + 2_000)
    elected = LeaderAndIsr(leader=2, leader_epoch=1, isr=(2, 3), zk_version=0, controller_epoch=1)
    cluster.write_state(elected)
    regain_contact(cluster)
    cluster.time.run_for(4 * LEASE_MS)
    found = failures(cluster)
    assert {failure.code for failure in found.values() if failure} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert found["fetch"] is not None and "its epoch 0 is over" in found["fetch"].message, "contact is not the reason"
    assert cluster.state().leader == 2, "a late LeaderAndIsr leaves the election as it is"


def test_a_write_of_the_unchanged_isr_proves_the_leadership_without_a_cut_off_follower() -> None:
    cluster = led_by_1()
    cut_off(cluster)
    cluster.time.run_for(SESSION_MS + 2_000)
    cluster.cuts -= {(1, 2), (2, 1)}
    regain_contact(cluster)
    assert not cluster[1].node.ready, "broker 3 is alive, has all records and does not fetch"
    cluster.time.run_until(lambda: cluster[1].node.ready, REPLICA_LAG_MS)
    assert not [kind for kind, failure in failures(cluster).items() if failure and kind != "fetch out of range"]
    assert cluster.state().isr == (1, 2, 3), "equal ends stay in the ISR"
    assert not cluster[1].said(StateChangeKind.ISR_SHRUNK, StateChangeKind.ISR_EXPANDED)


@pytest.mark.parametrize(
    "known, code", [(0, ErrorCode.FENCED_LEADER_EPOCH), (1, None), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_a_producers_outdated_leader_epoch_is_fenced(known: int, code: ErrorCode | None) -> None:
    cluster = led_by_1()
    cluster.decide(1, 1, (1, 2, 3))
    end = cluster[1].log().log_end_offset
    answers: list[ProduceResult] = []
    cluster[1].node.produce(RequiredAcks.LEADER, 1_000, [ProduceData(TP, None, batch(b"b"), known)], answers.extend)
    failure = answers[0].failure
    assert (failure and failure.code) is code
    assert cluster[1].log().log_end_offset == end + (code is None)


def test_a_leader_whose_partition_becomes_leaderless_refuses_requests_and_stays_ready() -> None:
    cluster = led_by_1()
    cut_off(cluster)
    cluster.time.run_for(SESSION_MS + LEASE_MS)
    assert not cluster[1].node.ready
    cluster[1].zookeeper.link.heal()
    cluster[1].transport.heartbeat_answer = None
    cluster.decide(NO_LEADER, 1, (2,))
    cluster.time.run_for(2 * LEASE_MS)
    assert cluster[1].node.ready, "no leadership is left to prove"
    assert all(failure is not None for failure in failures(cluster).values())
