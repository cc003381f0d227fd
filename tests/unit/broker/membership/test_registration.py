"""A broker's registration in ZooKeeper: sessions, restarts, duplicate ids and addresses, other clusters."""

import pytest

from paceline.broker.membership.registration import ForeignZooKeeperError
from paceline.coordination import znodes
from paceline.coordination.errors import DuplicateBrokerIdError
from paceline.coordination.interface import Create, Exists, GetData
from paceline.log.session_file import SESSION_FILE
from paceline.model.control import Endpoint
from paceline.model.errors import ErrorCode, InvalidConfigError, PacelineError
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster
from tests.support.zookeeper.data_tree import DataTree
from tests.support.zookeeper.link import is_write


def registration(cluster: BrokerCluster, broker_id: int) -> znodes.BrokerRegistration:
    path = znodes.broker_path(broker_id)
    return znodes.decode_broker(path, cluster.zk(GetData(path)).data, broker_id)  # type: ignore[attr-defined]


def test_a_broker_registers_and_its_epoch_is_the_nodes_czxid() -> None:
    cluster = BrokerCluster((1,))
    stat = cluster.zk(Exists(znodes.broker_path(1))).stat  # type: ignore[attr-defined]
    assert cluster[1].node.broker_epoch == stat.czxid and stat.version == 1
    assert registration(cluster, 1).endpoints == cluster[1].endpoints
    assert cluster.zk(Exists(znodes.broker_epoch_path(1))).stat.version == 1  # type: ignore[attr-defined]
    assert cluster[1].node.cluster_id is not None
    assert all(path in cluster.paths() for path in znodes.PERSISTENT_NODES)


def test_all_brokers_have_the_same_cluster_id_and_write_it_to_their_directories() -> None:
    cluster = BrokerCluster()
    ids = {broker.node.cluster_id for broker in cluster.brokers.values()}
    assert len(ids) == 1
    (meta,) = cluster[2].logs.read_meta_properties().values()
    assert meta is not None and (meta.broker_id, meta.cluster_id) == (2, ids.pop())


def test_directories_of_another_cluster_are_refused() -> None:
    files = BrokerCluster((1,))[1].files
    files.locked.clear()
    other = BrokerCluster((2,))
    data = bytes(files.contents["/data/meta.properties"]).replace(b"cluster.id=", b"cluster.id=x")
    files.contents["/data/meta.properties"] = bytearray(data)
    broker = other.boot(1, files)
    other.time.run_for(1_000)
    assert not broker.node.ready and isinstance(broker.fatal[0], InvalidConfigError)


def test_a_wiped_zookeeper_is_refused_and_nothing_is_deleted() -> None:
    cluster = BrokerCluster((1,))
    cluster.decide(1, 0, (1,), is_new=True)
    cluster[1].produce(b"a")
    cluster.server.tree = DataTree()
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_for(5_000)
    assert isinstance(cluster[1].fatal[0], ForeignZooKeeperError)
    assert cluster[1].values() == [b"a"] and znodes.broker_path(1) not in cluster.paths()


def test_a_zookeeper_without_the_controller_epoch_is_refused() -> None:
    cluster = BrokerCluster((1,))
    cluster.set_controller_epoch(5)
    cluster.send(1, cluster.partition(1, 0, (1,), is_new=True))
    cluster.set_controller_epoch(4)
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_for(5_000)
    assert isinstance(cluster[1].fatal[0], ForeignZooKeeperError)


def test_a_new_session_changes_only_the_broker_epoch() -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    old_epoch = cluster[1].node.broker_epoch
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_until(lambda: cluster[1].node.broker_epoch > old_epoch, 5_000)
    assert cluster[1].node.replica_manager.hosted.online[TP].is_leader
    assert not cluster[
        1
    ].node.ready  # The end of the session may have deposed the leader; fetches of its followers prove otherwise.
    cluster.time.run_until(lambda: cluster[1].node.ready, 2_000)
    assert cluster.zk(Exists(znodes.broker_epoch_path(1))).stat.version == 2  # type: ignore[attr-defined]
    answer = cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    assert answer[0].failure is None
    states = [change.to_state for change in cluster[1].said(StateChangeKind.SESSION_CHANGED)]
    assert states == ["CONNECTED", "DISCONNECTED", "EXPIRED", "CONNECTED"]


def test_a_new_registration_after_a_lost_session_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = BrokerCluster((1,))
    caplog.set_level("INFO", logger="paceline.broker.membership")
    old_epoch = cluster[1].node.broker_epoch
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_until(lambda: cluster[1].node.broker_epoch > old_epoch, 5_000)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"registered in ZooKeeper: broker=1 broker_epoch={cluster[1].node.broker_epoch} session=0x")


def test_a_broken_connection_does_not_change_the_broker_epoch() -> None:
    cluster = BrokerCluster((1,))
    epoch = cluster[1].node.broker_epoch
    cluster[1].zookeeper.disconnect()
    cluster.time.run_for(2_000)
    assert cluster[1].node.broker_epoch == epoch and len(cluster[1].said(StateChangeKind.BROKER_REGISTERED)) == 1
    states = [change.to_state for change in cluster[1].said(StateChangeKind.SESSION_CHANGED)]
    assert states == ["CONNECTED", "DISCONNECTED", "CONNECTED"]


@pytest.mark.parametrize("losses", [1, 2])
def test_a_lost_reply_to_the_registration_leaves_the_broker_registered(losses: int) -> None:
    cluster = BrokerCluster((1,))
    broker = cluster.boot(2)
    for _ in range(losses):
        broker.zookeeper.link.lose_next_reply(is_write)
    cluster.time.run_until(lambda: broker.node.ready, 10_000)
    stat = cluster.zk(Exists(znodes.broker_path(2))).stat  # type: ignore[attr-defined]
    assert broker.node.broker_epoch == stat.czxid


def test_a_session_whose_handshake_was_lost_does_not_prevent_the_registration() -> None:
    cluster = BrokerCluster((1,))
    broker = cluster.boot(2)
    broker.zookeeper.link.lose_next_handshake()
    cluster.time.run_until(lambda: broker.node.ready, 60_000)


def test_a_broker_that_restarts_at_once_replaces_its_dead_predecessors_registration() -> None:
    cluster = BrokerCluster((1, 2), zookeeper_session_timeout_ms=60_000)
    before = cluster[2].node.broker_epoch
    cluster[2].crash()
    broker = cluster.boot(2, cluster[2].files)
    cluster.time.run_until(lambda: broker.node.ready, 1_000)
    assert broker.node.broker_epoch > before
    cluster.time.run_for(70_000)
    assert znodes.broker_path(2) in cluster.paths(), "the end of the old session does not delete the new registration"


def test_a_restarted_broker_without_proof_waits_for_its_predecessors_session_to_end() -> None:
    cluster = BrokerCluster((1, 2), zookeeper_session_timeout_ms=6_000)
    cluster[2].crash()
    files = cluster[2].files
    del files.contents[next(path for path in files.contents if path.endswith(SESSION_FILE))]
    broker = cluster.boot(2, files)
    cluster.time.run_for(3_000)
    assert not broker.node.ready and not broker.fatal
    cluster.time.run_until(lambda: broker.node.ready, 10_000)


def test_a_second_broker_with_the_same_id_stops() -> None:
    cluster = BrokerCluster((1,), zookeeper_session_timeout_ms=6_000)
    first = cluster[1]
    second = cluster.boot(1)
    cluster.time.run_for(15_000)
    assert not second.node.ready and isinstance(second.fatal[0], DuplicateBrokerIdError)
    assert first.node.ready


def test_an_address_that_another_broker_advertises_is_refused() -> None:
    cluster = BrokerCluster((1,), zookeeper_session_timeout_ms=6_000)
    path = znodes.broker_path(7)
    taken = znodes.BrokerRegistration(7, (Endpoint("CLIENT", "broker2", 9092),), 0)
    cluster.zk(Create(path, znodes.encode_broker(taken)))
    broker = cluster.boot(2)
    cluster.time.run_for(15_000)
    assert isinstance(broker.fatal[0], InvalidConfigError) and "broker2:9092" in str(broker.fatal[0])
    assert znodes.broker_path(2) not in cluster.paths()


def test_before_its_registration_a_broker_refuses_requests_with_retriable_errors() -> None:
    cluster = BrokerCluster((1,))
    broker = cluster.boot(2)
    (answer,) = broker.produce(b"a")
    (response,) = broker.consume(0)
    assert answer.failure is not None and answer.failure.code is ErrorCode.BROKER_NOT_AVAILABLE
    assert response.failure is not None and response.failure.code is ErrorCode.BROKER_NOT_AVAILABLE
    ids: list[object] = []
    broker.node.init_producer_id(ids.append)
    assert isinstance(ids[0], PacelineError) and ids[0].retriable
