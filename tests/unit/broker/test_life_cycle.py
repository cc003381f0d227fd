"""Restarts, storage failures and producer ids of one broker core."""

import pytest

from paceline.broker.metrics import label_families_of
from paceline.coordination import znodes
from paceline.coordination.interface import SetData
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.model.client_io import RequiredAcks
from paceline.model.errors import ErrorCode, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster, BrokerUnderTest
from tests.unit.log.memory_files import MemoryFiles

OTHER = TopicPartition("payments", 0)


def stop(broker: BrokerUnderTest, max_ms: float = 60_000) -> None:
    done: list[bool] = []
    broker.node.stop(lambda: done.append(True))
    broker.cluster.time.run_until(lambda: bool(done), max_ms)
    assert done == [True]


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


@pytest.mark.origin("S2-1")
def test_a_failed_directory_takes_exactly_its_own_partitions_offline() -> None:
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
    assert list(manager.hosted.offline) == [TP] and list(manager.hosted.online) == [OTHER]
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
    counted = broker.node.replica_manager.hosted.traffic.of(TP.topic)
    assert counted.messages_in == 1 and counted.replication_bytes_in > 0
    failing(broker.files, broker.log().directory.path)
    for _ in range(100):
        broker.produce(b"b")
    cluster.time.run_for(1_000)
    assert list(broker.node.replica_manager.hosted.online) == [followed]
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
    assert list(cluster[2].node.replica_manager.hosted.offline) == [TP]
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
