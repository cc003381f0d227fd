"""Heartbeats go to the active controller, three per lease (docs/decisions/0007-broker-lease.md)."""

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Create
from paceline.internal.v1.controller_service_pb2 import BrokerHeartbeatRequest
from paceline.model.control import BrokerHeartbeatResponse, ControlledShutdownResponse, Endpoint, UpdateMetadataRequest
from paceline.model.errors import ErrorCode, NotControllerError
from paceline.rpc.convert.common import message_of
from paceline.runtime.settings.keys import ControllerKeys
from tests.support.broker_cluster import CONTROL_ADDRESS, CONTROLLER_ID, TP, BrokerCluster

OTHER = Endpoint("CONTROL", "another-controller", 9084)
PERIOD_MS = 3_000


def with_controller_in_zookeeper(**config: object) -> BrokerCluster:
    cluster = BrokerCluster((1,), **config)
    registration = znodes.ControllerRegistration(CONTROLLER_ID, (CONTROL_ADDRESS,), 0)
    cluster.zk(Create(znodes.controller_path(CONTROLLER_ID), znodes.encode_controller_registration(registration)))
    active = znodes.encode_active_controller(znodes.ActiveController(CONTROLLER_ID, 0))
    cluster.zk(Create(znodes.CONTROLLER, active))
    return cluster


def addresses(cluster: BrokerCluster) -> list[str]:
    sent = cluster[1].transport.heartbeats
    found = [endpoint.host for endpoint, _ in sent]
    sent.clear()
    return found


def name_controller(cluster: BrokerCluster, endpoint: Endpoint) -> None:
    stamp = cluster.stamp(1)
    cluster[1].node.handle_control(UpdateMetadataRequest(stamp, cluster.live(), (), (endpoint,)))


def test_three_heartbeats_per_lease_carry_the_broker_epoch() -> None:
    cluster = with_controller_in_zookeeper()
    cluster.time.run_for(3 * PERIOD_MS + 100)
    sent = list(cluster[1].transport.heartbeats)
    assert len(sent) == 3
    assert {request.broker_epoch for _, request in sent} == {cluster[1].node.broker_epoch}


def test_the_broker_tells_for_how_long_no_controller_has_answered() -> None:
    cluster = with_controller_in_zookeeper()
    node = cluster[1].node
    assert node.contacts() == (None, True)
    cluster.time.run_for(PERIOD_MS + 100)
    silent_ms, _ = node.contacts()
    assert silent_ms is not None and 0 < silent_ms <= 100
    cluster[1].transport.heartbeat_answer = ConnectionError("gone")
    cluster.time.run_for(PERIOD_MS)
    assert node.contacts() == (silent_ms + PERIOD_MS, True)


def test_heartbeats_say_whether_the_broker_stops() -> None:
    cluster = with_controller_in_zookeeper()
    cluster.time.run_for(PERIOD_MS + 100)
    cluster[1].transport.shutdown_answers = [ControlledShutdownResponse(remaining=(TP,))] * 3
    cluster[1].node.stop(lambda: None)
    cluster.time.run_for(PERIOD_MS)
    assert [request.shutting_down for _, request in cluster[1].transport.heartbeats] == [False, True]


def test_the_controller_in_the_metadata_is_used_before_zookeeper() -> None:
    cluster = with_controller_in_zookeeper()
    name_controller(cluster, OTHER)
    cluster.time.run_for(PERIOD_MS + 100)
    assert addresses(cluster) == ["another-controller"]


def test_after_a_failure_zookeeper_is_read_and_after_a_success_the_metadata_are_used() -> None:
    cluster = with_controller_in_zookeeper()
    name_controller(cluster, OTHER)
    transport = cluster[1].transport
    old_one = BrokerHeartbeatResponse(ErrorCode.NONE, cluster.controller_epoch - 1)
    cluster.time.run_for(PERIOD_MS // 2)
    for failure in (NotControllerError("not active"), ConnectionError("gone"), old_one):
        transport.heartbeat_answer = failure
        cluster.time.run_for(PERIOD_MS)
        transport.heartbeat_answer = None
        cluster.time.run_for(PERIOD_MS)
        assert addresses(cluster) == ["another-controller", "controller"], failure


def test_a_broker_that_reaches_no_controller_continues_to_serve() -> None:
    cluster = with_controller_in_zookeeper()
    cluster.decide(1, 0, [1])
    cluster[1].transport.heartbeat_answer = ConnectionError("gone")
    cluster.time.run_for(20 * PERIOD_MS + 100)
    assert len(addresses(cluster)) == 20
    answers = cluster[1].produce(b"still here")
    cluster.time.run_until(lambda: bool(answers), 5_000)
    assert answers[0].failure is None and cluster[1].values(TP) == [b"still here"]


def test_without_zookeeper_the_controller_in_the_metadata_is_retried() -> None:
    cluster = with_controller_in_zookeeper()
    name_controller(cluster, OTHER)
    cluster[1].transport.heartbeat_answer = ConnectionError("gone")
    cluster[1].zookeeper.link.cut(requests=True, replies=True)
    cluster.time.run_for(4 * PERIOD_MS + 100)
    assert addresses(cluster) == ["another-controller"] * 2, "every second attempt, between two reads of ZooKeeper"


def test_no_heartbeats_are_sent_without_leases_or_after_the_stop() -> None:
    cluster = with_controller_in_zookeeper(controller_broker_lease_ms=0)
    cluster.time.run_for(5 * PERIOD_MS)
    assert addresses(cluster) == []
    cluster = with_controller_in_zookeeper()
    stopped: list[bool] = []
    cluster[1].node.stop(lambda: stopped.append(True))
    cluster.time.run_until(lambda: bool(stopped), 60_000)
    addresses(cluster)
    cluster.time.run_for(5 * PERIOD_MS)
    assert addresses(cluster) == []


def test_a_heartbeat_of_a_broker_with_thousands_of_leaders_is_within_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = with_controller_in_zookeeper()
    leaders = tuple(range(2**31 - 5_000, 2**31))
    monkeypatch.setattr(cluster[1].node._heartbeats, "_leader_reports", lambda: (leaders,) * 3)
    cluster.time.run_for(PERIOD_MS + 100)
    for _, request in cluster[1].transport.heartbeats:
        assert (
            message_of(BrokerHeartbeatRequest, request).ByteSize()
            <= ControllerKeys.model_fields["control_request_max_bytes"].default
        )
        assert request.broken_leaders == leaders[:250]
    assert cluster[1].transport.heartbeats


def following() -> BrokerCluster:
    """Broker 1 follows a partition that broker 2 leads, and has just sent a heartbeat."""
    cluster = BrokerCluster((1, 2))
    registration = znodes.ControllerRegistration(CONTROLLER_ID, (CONTROL_ADDRESS,), 0)
    cluster.zk(Create(znodes.controller_path(CONTROLLER_ID), znodes.encode_controller_registration(registration)))
    active = znodes.encode_active_controller(znodes.ActiveController(CONTROLLER_ID, 0))
    cluster.zk(Create(znodes.CONTROLLER, active))
    cluster.decide(2, 0, (2, 1), is_new=True)
    cluster.time.run_for(PERIOD_MS + 500)
    cluster[1].transport.heartbeats.clear()
    return cluster


def reports(cluster: BrokerCluster) -> list[tuple[int, ...]]:
    return [request.broken_leaders for _, request in cluster[1].transport.heartbeats]


def test_a_broken_fetch_connection_is_reported_at_once_and_until_it_works() -> None:
    cluster = following()
    cluster[1].transport.broken.add(2)
    cluster.time.run_for(600)
    assert reports(cluster) == [(2,)]
    cluster.time.run_for(PERIOD_MS)
    assert reports(cluster) == [(2,), (2,)]
    cluster[1].transport.broken.clear()
    cluster.time.run_for(2 * PERIOD_MS)
    assert reports(cluster)[-1] == ()


def test_a_leader_that_does_not_answer_in_time_is_not_reported() -> None:
    cluster = following()
    cluster.cuts.add((1, 2))
    cluster.time.run_for(40_000)
    assert set(reports(cluster)) == {()}


def test_a_report_without_an_answer_is_repeated_soon() -> None:
    cluster = following()
    cluster[1].transport.heartbeat_answer = ConnectionError("gone")
    cluster[1].transport.broken.add(2)
    cluster.time.run_for(1_500)
    assert len(reports(cluster)) >= 4
    cluster[1].transport.heartbeat_answer = None
    cluster.time.run_for(500)
    cluster[1].transport.heartbeats.clear()
    cluster.time.run_for(PERIOD_MS - 1_000)
    assert reports(cluster) == [], "answered: the next heartbeat follows after a period"


def test_a_new_controller_receives_broken_connections_at_once() -> None:
    cluster = following()
    cluster[1].transport.broken.add(2)
    cluster.time.run_for(600)
    cluster[1].transport.heartbeats.clear()
    cluster.set_controller_epoch(cluster.controller_epoch + 1)
    cluster.handle(1, UpdateMetadataRequest(cluster.stamp(1), cluster.live(), (), (CONTROL_ADDRESS,)))
    cluster.time.run_for(100)
    assert reports(cluster) == [(2,)]


def test_a_heartbeat_is_sent_at_once_when_the_connection_to_the_controller_closes() -> None:
    cluster = with_controller_in_zookeeper()
    cluster.time.run_for(PERIOD_MS + 500)
    cluster[1].transport.heartbeats.clear()
    cluster[1].node.controller_connection_closed()
    cluster.time.run_for(100)
    assert len(cluster[1].transport.heartbeats) == 1
    cluster.time.run_for(PERIOD_MS - 200)
    assert len(cluster[1].transport.heartbeats) == 1, "the next heartbeat follows a period later"
