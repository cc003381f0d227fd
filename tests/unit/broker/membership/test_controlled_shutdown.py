"""The stop of a broker: controlled shutdown, answers to waiting requests, clean logs."""

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Create
from paceline.log.files import join
from paceline.model.client_io import RequiredAcks
from paceline.model.control import ControlledShutdownResponse
from paceline.model.errors import ErrorCode, RequestTimedOutError, ShuttingDownError
from tests.support.broker_cluster import CONTROL_ADDRESS, CONTROLLER_ID, TP, BrokerCluster, BrokerUnderTest

HIGH_WATERMARKS = "replication-offset-checkpoint"


def with_controller(cluster: BrokerCluster) -> None:
    """Write ``/controller``."""
    cluster.zk(Create(znodes.CONTROLLER, znodes.encode_active_controller(znodes.ActiveController(CONTROLLER_ID, 0))))
    node = znodes.ControllerRegistration(CONTROLLER_ID, (CONTROL_ADDRESS,), 0)
    cluster.zk(Create(znodes.controller_path(CONTROLLER_ID), znodes.encode_controller_registration(node)))


def stop(broker: BrokerUnderTest, max_ms: float = 60_000) -> None:
    done: list[bool] = []
    broker.node.stop(lambda: done.append(True))
    broker.cluster.time.run_until(lambda: bool(done), max_ms)
    assert done == [True]


def test_a_stop_asks_the_controller_answers_waiting_requests_and_leaves_clean_logs() -> None:
    cluster = BrokerCluster()
    with_controller(cluster)
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    cluster.cuts |= {(2, 1), (3, 1)}
    produce = cluster[1].produce(b"b")
    fetch = cluster[1].consume(1, max_wait_ms=600_000)
    stop(cluster[1])
    assert [one.broker_epoch for one in cluster[1].transport.shutdown_requests] == [cluster[1].node.broker_epoch]
    assert produce[0].failure is not None and len(fetch) == 1
    files = cluster[1].files
    assert files.exists("/data/.kafka_cleanshutdown")
    assert b"orders 0 1" in bytes(files.contents[join("/data", HIGH_WATERMARKS)])
    cluster.time.run_for(1_000)
    assert znodes.broker_path(1) not in cluster.paths()
    (answer,) = cluster[1].produce(b"c", acks=RequiredAcks.LEADER)
    assert answer.failure is not None and answer.failure.code is ErrorCode.SHUTTING_DOWN
    with pytest.raises(ShuttingDownError):
        cluster.send(1, cluster.partition(1, 5, (1,)))


def test_the_controller_is_asked_again_while_partitions_remain_and_the_stop_ends_anyway() -> None:
    cluster = BrokerCluster((1,))
    with_controller(cluster)
    cluster[1].transport.shutdown_answers = [
        ControlledShutdownResponse(remaining=(TP,)),
        RequestTimedOutError("no answer"),
        ControlledShutdownResponse(ErrorCode.NOT_CONTROLLER),
    ]
    begin_ms = cluster.time.now_ms()
    stop(cluster[1])
    assert len(cluster[1].transport.shutdown_requests) == 3
    assert 15_000 <= cluster.time.now_ms() - begin_ms < 16_000


def test_a_controlled_shutdown_that_succeeds_at_the_second_attempt_ends_the_stop() -> None:
    cluster = BrokerCluster((1,))
    with_controller(cluster)
    cluster[1].transport.shutdown_answers = [ControlledShutdownResponse(remaining=(TP,))]
    begin_ms = cluster.time.now_ms()
    stop(cluster[1])
    assert 5_000 <= cluster.time.now_ms() - begin_ms < 5_500


@pytest.mark.parametrize("trouble", ["no controller", "zookeeper away"])
def test_a_stop_ends_without_a_controller_and_without_zookeeper(trouble: str) -> None:
    cluster = BrokerCluster((1,))
    if trouble == "zookeeper away":
        cluster[1].zookeeper.link.cut()
    stop(cluster[1], max_ms=16_000)
    assert cluster[1].transport.shutdown_requests == []


def test_a_controller_that_does_not_answer_leaves_time_to_close_the_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = BrokerCluster((1,), shutdown_timeout_ms=20_000)
    with_controller(cluster)
    asked: list[object] = []
    monkeypatch.setattr(cluster[1].transport, "controlled_shutdown", lambda *given: asked.append(given))
    begin_ms = cluster.time.now_ms()
    stop(cluster[1])
    assert len(asked) == 1 and cluster.time.now_ms() - begin_ms == 15_000, "three quarters of shutdown.timeout.ms"
    assert cluster[1].files.exists("/data/.kafka_cleanshutdown")


def test_without_controlled_shutdown_a_stop_is_immediate() -> None:
    cluster = BrokerCluster((1,), controlled_shutdown_enable=False)
    begin_ms = cluster.time.now_ms()
    stop(cluster[1])
    assert cluster.time.now_ms() == begin_ms


def test_a_stopping_broker_adds_no_fetchers() -> None:
    cluster = BrokerCluster((1, 2))
    with_controller(cluster)
    cluster[1].transport.shutdown_answers = [ControlledShutdownResponse(remaining=(TP,))]
    cluster[1].node.stop(lambda: None)
    cluster.time.run_for(100)
    cluster.decide(2, 0, (2,), is_new=True)
    assert cluster[1].node.replica_manager.hosted.online[TP].leader_id == 2
    cluster.time.run_for(1_000)
    assert cluster[1].transport.fetches == []
