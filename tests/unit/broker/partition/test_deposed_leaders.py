"""A leader that cannot prove its leadership does not answer as leader; an outage of ZooKeeper alone stops no leader."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from paceline.broker.requests.fetch import EXPECTED_WAIT_MS
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.client_io import (
    DeleteRecordsQuery,
    EpochQuery,
    FetchRequest,
    FetchResponse,
    OffsetKind,
    OffsetQuery,
    PartitionFailure,
    ProduceData,
    ProduceResult,
    RequiredAcks,
)
from paceline.model.control import BrokerHeartbeatResponse, UpdateMetadataRequest
from paceline.model.errors import ErrorCode, RequestTimedOutError
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import NO_LEADER
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import CONTROL_ADDRESS, TP, BrokerCluster, batch

SESSION_MS, LEASE_MS, REPLICA_LAG_MS = 6_000, 9_000, 10_000


def led_by_1(isr: tuple[int, ...] = (1, 2, 3), cuts: frozenset[tuple[int, int]] = frozenset()) -> BrokerCluster:
    """Return a cluster in which broker 1 leads, with one committed record of producer 7."""
    cluster = BrokerCluster(
        zookeeper_session_timeout_ms=SESSION_MS,
        controller_broker_lease_ms=LEASE_MS,
        replica_lag_time_max_ms=REPLICA_LAG_MS,
    )
    cluster.cuts |= cuts
    cluster.decide(1, 0, isr, is_new=True)
    cluster.time.run_for(500)
    answer: list[ProduceResult] = []
    cluster[1].node.produce(RequiredAcks.ALL, 1_000, [ProduceData(TP, None, numbered(0))], answer.extend)
    cluster.time.run_for(500)
    assert answer[0].failure is None
    return cluster


def numbered(sequence: int) -> bytes:
    """Return a batch of producer 7 with one record."""
    return encode_batch([NewRecord(1, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=sequence)


def lose_zookeeper(cluster: BrokerCluster, broker_id: int = 1) -> None:
    """Cut a broker off from ZooKeeper."""
    cluster[broker_id].zookeeper.link.cut()
    cluster[broker_id].zookeeper.disconnect()


def cut_off(cluster: BrokerCluster) -> None:
    """Cut broker 1 off from ZooKeeper, controllers and brokers; clients still reach it."""
    lose_zookeeper(cluster)
    cluster[1].transport.heartbeat_answer = RequestTimedOutError("cut off")
    cluster.cuts |= {(1, 2), (1, 3), (2, 1), (3, 1)}


Failures = dict[str, list[PartitionFailure | None]]
"""For each kind of request the failure, or None after a success; the list is empty until the response arrives."""


def ask(cluster: BrokerCluster, timeout_ms: int = 30_000) -> Failures:
    """Send broker 1 one request of each kind."""
    node = cluster[1].node
    found: Failures = {}

    def noted(kind: str) -> Callable[[Sequence[Any]], None]:
        found[kind] = []
        return lambda results: found[kind].append(results[0].failure)

    def fetch(offset: int) -> FetchRequest:
        position = FetchPosition(TP, None, offset, 1_000)
        return FetchRequest(0, 1, 1_000, [position], proof_timeout_ms=timeout_ms)

    for kind in OffsetKind:
        query = OffsetQuery(TP, kind, timestamp_ms=0)
        node.proved_calls.list_offsets([query], timeout_ms, noted(f"list {kind.name}"))
    for kind, offset in ("fetch", 0), ("fetch out of range", 99):
        told = noted(kind)
        node.fetch(fetch(offset), lambda response, told=told: told(response.results))
    data = [ProduceData(TP, None, batch(b"b"))]
    node.produce(RequiredAcks.LEADER, timeout_ms, data, noted("acks=1"))
    node.produce(RequiredAcks.LEADER, timeout_ms, [ProduceData(TP, None, numbered(400))], noted("out of order"))
    node.proved_calls.offsets_for_leader_epoch([EpochQuery(TP, 0)], timeout_ms, noted("epoch end"))
    node.proved_calls.delete_records([DeleteRecordsQuery(TP, None, 99, None)], timeout_ms, noted("delete records"))
    noted("describe replicas")(node.describe_replicas(TP.topic, [TP.partition]))
    return found


def failures(cluster: BrokerCluster) -> dict[str, PartitionFailure | None]:
    """Return the failure of broker 1 for each kind of request, None where it answers; no request waits."""
    return {kind: failure for kind, (failure,) in ask(cluster).items()}


FINAL = {
    "fetch out of range": ErrorCode.OFFSET_OUT_OF_RANGE,
    "out of order": ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    "delete records": ErrorCode.OFFSET_OUT_OF_RANGE,
}
"""Correct errors of a leader; every other request succeeds."""
NO_WAIT = {"acks=1", "describe replicas"}
"""Requests that need no proof later than their arrival: their answers end nothing."""


def codes(found: Failures) -> dict[str, ErrorCode | None]:
    """Return the error code, or None for a success, of each request that has an answer."""
    return {kind: failure and failure.code for kind, told in found.items() for failure in told}


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
    found = codes(ask(led_by_1()))
    assert {kind: code for kind, code in found.items() if code is not None} == FINAL


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


def with_controller() -> BrokerCluster:
    """Return a cluster whose leader sends heartbeats to a controller."""
    cluster = led_by_1()
    cluster.handle(1, UpdateMetadataRequest(cluster.stamp(1), cluster.live(), (), (CONTROL_ADDRESS,)))
    return cluster


def test_a_leader_that_does_not_receive_a_request_is_out_of_contact_after_a_lease() -> None:
    """The request may name its successor."""
    cluster = with_controller()
    cluster.cuts |= {(2, 1), (3, 1)}
    for age_ms in range(0, LEASE_MS, 500):
        assert {kind: failure.code for kind, failure in failures(cluster).items() if failure} == FINAL
        answer = BrokerHeartbeatResponse(ErrorCode.NONE, cluster.controller_epoch, age_ms)
        cluster[1].transport.heartbeat_answer = answer
        cluster.time.run_for(500)
    cluster.time.run_for(900)
    told = {failure and failure.code for failure in failures(cluster).values()}
    assert told == {ErrorCode.NOT_LEADER_OR_FOLLOWER} and not cluster[1].node.ready
    cluster[1].transport.heartbeat_answer = None
    cluster.cuts.clear()
    cluster.time.run_until(lambda: cluster[1].node.ready, LEASE_MS)


def test_a_leader_with_a_busy_controller_stays_in_contact() -> None:
    cluster = with_controller()
    busy = BrokerHeartbeatResponse(ErrorCode.NONE, cluster.controller_epoch, LEASE_MS // 2)
    cluster[1].transport.heartbeat_answer = busy
    for _ in range(100):
        cluster.time.run_for(300)
        assert cluster[1].node.replica_manager.hosted.in_contact(), "each request is answered in time"


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


def test_a_repeated_leader_and_isr_does_not_prove_leadership() -> None:
    """It may have waited on its way while a successor was elected."""
    cluster = led_by_1()
    cut_off(cluster)
    cluster.time.run_for(SESSION_MS + 2_000)
    cluster.write_state(LeaderAndIsr(leader=2, leader_epoch=1, isr=(2, 3), zk_version=0, controller_epoch=1))
    regain_contact(cluster)
    late = cluster.send(1, cluster.partition(1, 0, (1, 2, 3)))
    assert late.partition_errors == {TP: ErrorCode.STALE_CONTROLLER_EPOCH}
    assert {failure.code for failure in failures(cluster).values() if failure} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_a_write_of_the_unchanged_isr_proves_the_leadership_without_a_cut_off_follower() -> None:
    cluster = led_by_1()
    cut_off(cluster)
    cluster.time.run_for(SESSION_MS + 2_000)
    cluster.cuts -= {(1, 2), (2, 1)}
    regain_contact(cluster)
    assert not cluster[1].node.ready, "broker 3 is alive, has all records and does not fetch"
    cluster.time.run_until(lambda: cluster[1].node.ready, REPLICA_LAG_MS)
    assert {kind: failure.code for kind, failure in failures(cluster).items() if failure} == FINAL
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


# Answers that wait for a later proof

FETCH_WAIT_MS, RECENT_MS = 500, SESSION_MS // 3


def without_zookeeper(isr: tuple[int, ...] = (1, 2, 3)) -> BrokerCluster:
    """Return a cluster whose leader is cut off from ZooKeeper alone, for longer than a session."""
    cluster = led_by_1(isr)
    lose_zookeeper(cluster)
    cluster.time.run_for(SESSION_MS + 500)
    return cluster


def test_without_contact_an_answer_takes_one_round_trip_to_each_isr_member() -> None:
    cluster = without_zookeeper()
    told = cluster[1].list_offsets(OffsetQuery(TP, OffsetKind.LATEST))
    cluster.time.run_for(2)
    assert not told
    cluster.time.run_for(2)
    assert [one.offset for one in told] == [1], "the followers' waiting fetches were not answered"


def test_without_contact_every_answer_that_ends_something_waits_for_the_isr() -> None:
    cluster = without_zookeeper()
    found = ask(cluster)
    assert set(codes(found)) == NO_WAIT
    assert cluster[1].node.metrics_snapshot()["proof_waits_total"] == len(found) - len(NO_WAIT)
    cluster.time.run_for(EXPECTED_WAIT_MS + 5)
    assert {kind: code for kind, code in codes(found).items() if code is not None} == FINAL
    assert set(codes(found)) == set(found)


@pytest.mark.parametrize("silent", [2, 3])
def test_without_contact_a_fetch_of_every_isr_member_is_needed(silent: int) -> None:
    cluster = without_zookeeper()
    cluster.cuts.add((silent, 1))
    found = ask(cluster)
    cluster.time.run_for(RECENT_MS - FETCH_WAIT_MS)
    assert set(codes(found)) == NO_WAIT
    assert cluster[1].node.ready, "without a reader the leadership would still count as proved"
    cluster.time.run_for(FETCH_WAIT_MS + 1)
    answered = codes(found)
    assert {answered[kind] for kind in found if kind not in NO_WAIT} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_a_fetch_that_was_sent_before_the_request_arrived_is_no_proof_for_it() -> None:
    cluster = without_zookeeper()
    for follower in (2, 3):
        cluster[follower].transport.delay_ms = 100  # a fetch of each follower arrives soon, sent before the request
    cluster.time.run_for(FETCH_WAIT_MS + 50)
    found = ask(cluster)
    cluster.cuts |= {(2, 1), (3, 1)}
    cluster.time.run_for(RECENT_MS + 1)
    answered = codes(found)
    assert {answered[kind] for kind in found if kind not in NO_WAIT} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_at_the_callers_deadline_an_unproved_answer_is_not_leader() -> None:
    cluster = without_zookeeper()
    cluster.cuts |= {(2, 1), (3, 1)}
    found = ask(cluster, timeout_ms=300)
    cluster.time.run_for(299)
    assert set(codes(found)) == NO_WAIT
    cluster.time.run_for(1)
    answered = codes(found)
    assert {answered[kind] for kind in found if kind not in NO_WAIT} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert all(told[0].leader is None for kind, told in found.items() if kind not in NO_WAIT if told[0])


def test_a_deposed_leader_says_nothing_final_and_no_end_offset() -> None:
    cluster = without_zookeeper()
    cluster.decide(2, 1, (2, 3), to=[2, 3])
    found = ask(cluster)
    cluster.time.run_for(RECENT_MS + 1)
    answered = codes(found)
    assert {answered[kind] for kind in found if kind not in NO_WAIT} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_a_new_role_answers_the_waiting_requests_at_once() -> None:
    cluster = without_zookeeper()
    cluster.cuts |= {(2, 1), (3, 1)}
    found = ask(cluster)
    cluster.decide(2, 1, (2, 3))
    answered = codes(found)
    assert {answered[kind] for kind in found if kind not in NO_WAIT} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_a_sole_isr_member_answers_at_once_without_contact() -> None:
    cluster = led_by_1(isr=(1,), cuts=frozenset({(2, 1), (3, 1)}))
    lose_zookeeper(cluster)
    cluster.time.run_for(SESSION_MS + 500)
    found = codes(ask(cluster))
    assert {kind: code for kind, code in found.items() if code is not None} == FINAL


def test_with_contact_no_answer_waits_and_no_fetch_of_a_follower_ends() -> None:
    cluster = led_by_1()
    held = cluster[1].node.metrics_snapshot()["fetch_purgatory_size"]
    found = ask(cluster)
    del found["acks=1"]  # its record ends the fetches
    assert all(found.values())
    assert held == 2


def test_a_request_of_a_caller_that_left_is_dropped() -> None:
    cluster = without_zookeeper()
    answers: list[object] = []
    query = OffsetQuery(TP, OffsetKind.LATEST)
    cancel = cluster[1].node.proved_calls.list_offsets([query], 30_000, answers.extend)
    assert cancel is not None
    cancel()
    cluster.time.run_for(RECENT_MS + 1)
    assert not answers
    assert cluster[1].node.replica_manager.hosted.waiting_for_proofs.delayed_count == 0


def test_a_fetch_session_waits_for_the_proof_of_all_its_partitions() -> None:
    cluster = led_by_1()
    answers: list[FetchResponse] = []
    request = FetchRequest(0, 1, 1_000, [FetchPosition(TP, None, 0, 1_000)], session_epoch=0)
    cluster[1].node.fetch(request, answers.append)
    lose_zookeeper(cluster)
    cluster.time.run_for(SESSION_MS + 500)
    cluster.cuts |= {(2, 1), (3, 1)}
    following = FetchRequest(0, 1, 1_000, [], session_id=answers[0].session_id, session_epoch=1)
    cluster[1].node.fetch(following, answers.append)
    assert len(answers) == 1
    cluster.time.run_for(RECENT_MS + 1)
    assert [one.failure and one.failure.code for one in answers[1].results] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
