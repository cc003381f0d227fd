"""Registration, sessions, stop, storage failures and producer ids of one broker core."""

import pytest

from paceline.broker.membership.registration import ForeignZooKeeperError
from paceline.broker.metrics import label_families_of
from paceline.coordination import znodes
from paceline.coordination.errors import DuplicateBrokerIdError
from paceline.coordination.interface import Create, Exists, GetData, SetData
from paceline.log.files import join
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.session_file import SESSION_FILE
from paceline.model.client_io import RequiredAcks
from paceline.model.control import ControlledShutdownResponse, Endpoint
from paceline.model.errors import ErrorCode, InvalidConfigError, PacelineError, RequestTimedOutError, ShuttingDownError
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import CONTROL_ADDRESS, CONTROLLER_ID, TP, BrokerCluster, BrokerUnderTest
from tests.support.zookeeper.data_tree import DataTree
from tests.support.zookeeper.link import is_write
from tests.unit.log.memory_files import MemoryFiles

OTHER = TopicPartition("payments", 0)
HIGH_WATERMARKS = "replication-offset-checkpoint"


def registration(cluster: BrokerCluster, broker_id: int) -> znodes.BrokerRegistration:
    path = znodes.broker_path(broker_id)
    return znodes.decode_broker(path, cluster.zk(GetData(path)).data, broker_id)  # type: ignore[attr-defined]


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
    assert cluster[1].node.replica_manager.partitions[TP].is_leader
    assert not cluster[
        1
    ].node.ready  # The end of the session may have deposed the leader; fetches of its followers prove otherwise.
    cluster.time.run_until(lambda: cluster[1].node.ready, 2_000)
    assert cluster.zk(Exists(znodes.broker_epoch_path(1))).stat.version == 2  # type: ignore[attr-defined]
    answer = cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    assert answer[0].failure is None
    assert cluster[1].said(StateChangeKind.SESSION_CHANGED)


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
    assert cluster[1].node.replica_manager.partitions[TP].leader_id == 2
    cluster.time.run_for(1_000)
    assert cluster[1].transport.fetches == []


def test_high_watermarks_of_partitions_without_a_leader_survive_a_restart() -> None:
    cluster = BrokerCluster((1,), controlled_shutdown_enable=False)
    cluster.decide(1, 0, (1,), is_new=True)
    cluster[1].produce(b"a", b"b")
    stop(cluster[1])
    cluster.time.run_for(1_000)
    again = cluster.boot(1, cluster[1].files)
    cluster.time.run_until(lambda: again.node.ready, 5_000)
    cluster.send(1, cluster.partition(-1, 1, (1,)))
    cluster.time.run_for(10_000)
    assert again.log().high_watermark == 2
    stop(again)
    third = LogManager(again.files, ["/data"], LogConfig(), on_dir_failure=lambda *_: None, boot_id="boot")
    third.load(0)
    log = third.get(TP)
    assert log is not None and log.high_watermark == 2


def failing(files: MemoryFiles, folder: str) -> None:
    files.fails = lambda operation, path: (
        path.startswith(folder) and operation in ("append", "sync", "rename", "create")
    )


def test_s2_1_a_failed_directory_takes_exactly_its_own_partitions_offline() -> None:
    cluster = BrokerCluster((2,))
    broker = cluster.boot(1, dirs=("/one", "/two"))
    cluster.time.run_until(lambda: broker.node.ready, 5_000)
    cluster.update_metadata()
    for tp in (TP, OTHER):
        cluster.decide(1, 0, (1,), (1,), tp=tp, is_new=True)
        assert broker.produce(b"a", tp=tp)[0].failure is None
    assert {broker.log(tp).directory.path for tp in (TP, OTHER)} == {"/one", "/two"}
    folder = broker.log(TP).directory.path
    failing(broker.files, folder)
    for _ in range(100):
        (answer,) = broker.produce(b"b")
        assert answer.failure is not None and answer.failure.code is ErrorCode.KAFKA_STORAGE_ERROR
    cluster.time.run_for(1_000)
    manager = broker.node.replica_manager
    assert list(manager.offline) == [TP] and list(manager.partitions) == [OTHER]
    assert broker.produce(b"b", tp=OTHER)[0].failure is None
    families = label_families_of(manager, 10)
    assert families["partition_log_end_offset"] == {(OTHER.topic, str(OTHER.partition)): 2}, "its metrics are removed"
    assert [change.cause for change in broker.said(StateChangeKind.LOG_DIR_FAILED)] == [folder]
    events = [path for path in cluster.paths() if path.startswith(znodes.LOG_DIR_EVENT_PREFIX)]
    assert len(events) == 1 and broker.fatal == []
    assert cluster.send(1, cluster.partition(1, 5, (1,), (1,))).partition_errors[TP] is ErrorCode.KAFKA_STORAGE_ERROR
    assert cluster.stop_replica(1, -2, True).partition_errors[TP] is ErrorCode.KAFKA_STORAGE_ERROR
    (response,) = broker.consume(0)
    failure = response.results[0].failure
    assert failure is not None and failure.code is ErrorCode.KAFKA_STORAGE_ERROR
    # After a repair and a restart, the next LeaderAndIsr hosts it again.
    broker.crash()
    broker.files.fails = lambda _operation, _path: False
    cluster.server.expire(broker.zookeeper.session_id)
    again = cluster.boot(1, broker.files, dirs=("/one", "/two"))
    cluster.time.run_until(lambda: again.node.ready, 5_000)
    assert cluster.send(1, cluster.partition(1, 5, (1,), (1,))).partition_errors[TP] is ErrorCode.NONE
    assert again.values() == [b"a"]


def test_a_failed_directory_removes_the_metrics_of_the_lost_role() -> None:
    cluster = BrokerCluster((2,))
    broker = cluster.boot(1, dirs=("/one", "/two"))
    cluster.time.run_until(lambda: broker.node.ready, 5_000)
    cluster.update_metadata()
    followed = TopicPartition(TP.topic, 1)
    cluster.decide(1, 0, (1,), (1, 2), is_new=True)
    cluster.decide(2, 0, (1, 2), (1, 2), tp=followed, is_new=True)
    broker.produce(b"a")
    cluster[2].produce(b"a", tp=followed)
    cluster.time.run_for(1_000)
    counted = broker.node.replica_manager.traffic.of(TP.topic)
    assert counted.messages_in == 1 and counted.replication_bytes_in > 0
    failing(broker.files, broker.log().directory.path)
    for _ in range(100):
        broker.produce(b"b")
    cluster.time.run_for(1_000)
    assert list(broker.node.replica_manager.partitions) == [followed]
    assert counted.messages_in == counted.replication_bytes_out == 0 and counted.replication_bytes_in > 0


def test_an_existing_replica_is_not_re_created_in_another_directory_but_a_new_one_is_created() -> None:
    cluster = BrokerCluster((2,))
    broker = cluster.boot(1, dirs=("/one", "/two"))
    cluster.time.run_until(lambda: broker.node.ready, 5_000)
    cluster.decide(1, 0, (1,), (1,), is_new=True)
    failing(broker.files, broker.log().directory.path)
    broker.produce(b"a")
    cluster.time.run_for(100)
    lost = cluster.send(1, cluster.partition(1, 0, (1,), (1,), tp=OTHER))
    new = cluster.send(1, cluster.partition(1, 0, (1,), (1,), tp=TopicPartition("new", 0), is_new=True))
    assert list(lost.partition_errors.values()) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert list(new.partition_errors.values()) == [ErrorCode.NONE]


def test_a_broker_ends_when_its_last_directory_fails() -> None:
    cluster = BrokerCluster((1,))
    cluster.decide(1, 0, (1,), is_new=True)
    failing(cluster[1].files, "/data")
    cluster[1].produce(b"a")
    cluster.time.run_for(100)
    assert len(cluster[1].fatal) == 1


def test_a_followers_failed_directory_stops_its_fetching() -> None:
    cluster = BrokerCluster((1, 2))
    cluster.decide(1, 0, (1, 2), is_new=True)
    cluster.time.run_for(50)
    failing(cluster[2].files, "/data")
    cluster[1].produce(b"a", acks=RequiredAcks.LEADER)
    cluster.time.run_for(2_000)
    assert list(cluster[2].node.replica_manager.offline) == [TP]
    assert cluster[2].node.replica_manager.fetchers.state(TP) is None


def take_ids(broker: BrokerUnderTest, count: int) -> list[int]:
    found: list[int] = []

    def reply(answer: tuple[int, int] | PacelineError) -> None:
        assert isinstance(answer, tuple) and answer[1] == 0
        found.append(answer[0])

    for _ in range(count):
        broker.node.init_producer_id(reply)
    broker.cluster.time.run_until(lambda: len(found) == count, 10_000)
    return found


def test_producer_ids_are_unique_across_brokers_blocks_and_restarts() -> None:
    cluster = BrokerCluster((1, 2))
    ids = take_ids(cluster[1], 1_500) + take_ids(cluster[2], 10)
    ids += take_ids(cluster.restart(1), 10)
    assert len(set(ids)) == len(ids) == 1_520


def test_requests_that_wait_for_a_producer_id_are_answered_when_the_broker_stops() -> None:
    cluster = BrokerCluster((1,), controlled_shutdown_enable=False)
    cluster[1].zookeeper.link.cut()
    answers: list[object] = []
    cluster[1].node.init_producer_id(answers.append)
    stop(cluster[1])
    assert isinstance(answers[0], PacelineError) and len(answers) == 1


def test_a_deleted_state_node_ends_the_isr_writes() -> None:
    cluster = BrokerCluster(replica_lag_time_max_ms=2_000)
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster.cuts.add((3, 1))
    cluster[1].produce(b"a", acks=RequiredAcks.LEADER)
    cluster.delete(znodes.partition_state_path(TP))
    cluster.time.run_for(20_000)
    assert cluster[1].node.metrics_snapshot()["failed_isr_updates_total"] == 1


def test_an_isr_write_is_retried_until_a_malformed_state_node_is_repaired() -> None:
    cluster = BrokerCluster(replica_lag_time_max_ms=2_000)
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    state = cluster.state()
    cluster.cuts.add((3, 1))
    cluster[1].produce(b"a", acks=RequiredAcks.LEADER)
    cluster.zk(SetData(znodes.partition_state_path(TP), b"{"))
    cluster.time.run_for(5_000)
    assert cluster[1].said(StateChangeKind.ISR_UNKNOWN)
    cluster.write_state(state)
    cluster.time.run_until(lambda: cluster.state().isr == (1, 2), 10_000)
