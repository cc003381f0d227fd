"""DescribeLogDirs and AlterReplicaLogDirs at a broker: replicas per directory, and refusals."""

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Create
from paceline.log.directory_loader import BOOT_ID_FILE
from paceline.log.load_report import UNCLEAN_RESTART
from paceline.model.errors import (
    ErrorCode,
    InvalidRequestError,
    KafkaStorageError,
    LogDirNotFoundError,
    PacelineError,
    ReplicaNotAvailableError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.log_dirs import ReplicaLogDir, ReplicaOnDisk
from tests.support.broker_cluster import TP, BrokerCluster

OTHER = TopicPartition("payments", 3)


def two_directories() -> BrokerCluster:
    """Broker 1 with two directories and a replica in each."""
    cluster = BrokerCluster(())
    cluster.boot(1, dirs=("/one", "/two"))
    cluster.time.run_until(lambda: cluster[1].node.ready, 10_000)
    cluster.update_metadata()
    cluster.decide(1, 0, (1,), (1,), is_new=True)
    cluster.decide(1, 0, (1,), (1,), tp=OTHER, is_new=True)
    return cluster


def where(cluster: BrokerCluster) -> dict[TopicPartition, str]:
    views = cluster[1].node.describe_log_dirs(None)
    return {replica.topic_partition: view.path for view in views for replica in view.replicas}


def one(cluster: BrokerCluster, *requested: tuple[TopicPartition, str]) -> list[PacelineError | None]:
    return cluster[1].node.alter_replica_log_dirs([ReplicaLogDir(tp, path) for tp, path in requested])


def test_every_directory_lists_its_replicas_with_their_sizes() -> None:
    cluster = two_directories()
    answer = cluster[1].produce(b"x" * 1_000)
    cluster.time.run_until(lambda: bool(answer), 1_000)
    views = cluster[1].node.describe_log_dirs(None)
    assert [view.path for view in views] == ["/one", "/two"]
    assert [len(view.replicas) for view in views] == [1, 1]
    sizes = {replica.topic_partition: replica.size_bytes for view in views for replica in view.replicas}
    assert sizes[OTHER] == 0
    assert 1_000 < sizes[TP] == len(cluster[1].log().read(0, 10_000, 1))


def test_only_the_requested_replicas_are_listed_with_every_directory() -> None:
    cluster = two_directories()
    views = cluster[1].node.describe_log_dirs([OTHER, TopicPartition("nobody", 0)])
    assert [view.replicas for view in views if view.replicas] == [(ReplicaOnDisk(OTHER, 0, 0),)]
    assert len(views) == 2


def test_the_lag_of_a_follower_is_listed() -> None:
    cluster = BrokerCluster((1, 2), replica_fetch_max_bytes=1_000, replica_fetch_response_max_bytes=1_000)
    cluster.decide(1, 0, (1,), (1,), is_new=True)
    for _ in range(10):
        cluster[1].produce(b"x" * 900)
    cluster[2].transport.hold = lambda _leader, _answer: bool(cluster[2].values()[2:])
    cluster.decide(1, 1, (1,), (1, 2))
    cluster.time.run_for(500)
    ((replica,),) = (view.replicas for view in cluster[2].node.describe_log_dirs(None))
    held = len(cluster[2].values())
    assert 0 < held < 10
    assert replica.offset_lag == 10 - held
    ((leader,),) = (view.replicas for view in cluster[1].node.describe_log_dirs(None))
    assert leader.offset_lag == 0


def test_a_failed_directory_is_listed_with_its_error_and_without_replicas() -> None:
    cluster = two_directories()
    failed = where(cluster)[TP]
    cluster[1].log().directory.fail(KafkaStorageError("broken"))
    cluster[1].node.replica_manager.storage.take_failed_dirs_offline()
    views = {view.path: view for view in cluster[1].node.describe_log_dirs(None)}
    assert isinstance(views[failed].error, KafkaStorageError)
    assert views[failed].replicas == ()
    assert isinstance(one(cluster, (OTHER, failed))[0], KafkaStorageError)
    assert isinstance(one(cluster, (TP, where(cluster)[OTHER]))[0], KafkaStorageError)


def test_a_move_to_the_present_directory_is_accepted() -> None:
    cluster = two_directories()
    assert one(cluster, *where(cluster).items()) == [None, None]


def test_unknown_replicas_and_directories_are_refused_with_their_own_errors() -> None:
    cluster = two_directories()
    errors = one(cluster, (TP, "/three"), (TopicPartition("nobody", 0), "/one"))
    assert [type(error) for error in errors] == [LogDirNotFoundError, ReplicaNotAvailableError]
    assert "it has /one, /two" in str(errors[0])


def test_a_replica_named_twice_is_refused_twice() -> None:
    cluster = two_directories()
    errors = one(cluster, (TP, "/one"), (TP, "/two"))
    assert [type(error) for error in errors] == [InvalidRequestError, InvalidRequestError]


def test_a_report_that_zookeeper_refuses_is_repeated() -> None:
    """Without it the controller leaves the leaders on a failed log directory."""
    cluster = two_directories()
    cluster.delete(znodes.LOG_DIR_EVENT_NOTIFICATION)
    cluster[1].files.fails = lambda _operation, path: path.startswith("/two")
    cluster[1].node.replica_manager.logs.checkpoint_high_watermarks()
    cluster[1].node.replica_manager.storage.take_failed_dirs_offline()
    cluster.time.run_for(5_000)
    assert [view.error is None for view in cluster[1].node.describe_log_dirs(None)] == [True, False]
    assert not any(path.startswith(znodes.LOG_DIR_EVENT_NOTIFICATION) for path in cluster.paths())
    cluster.zk(Create(znodes.LOG_DIR_EVENT_NOTIFICATION, None))
    cluster.time.run_until(lambda: any(path.startswith(znodes.LOG_DIR_EVENT_PREFIX) for path in cluster.paths()), 5_000)


def failed_directory() -> tuple[BrokerCluster, str]:
    """Broker 1 with two directories; that of TP has failed and holds a record."""
    cluster = two_directories()
    broker, path = cluster[1], where(cluster)[TP]
    broker.produce(b"kept")
    broker.files.fails = lambda operation, name: name.startswith(path) and operation in ("append", "sync")
    broker.produce(b"refused")
    cluster.time.run_for(1_000)
    assert list(broker.node.replica_manager.hosted.offline) == [TP]
    return cluster, path


def test_a_failed_directory_is_taken_back_without_a_restart() -> None:
    cluster, path = failed_directory()
    broker = cluster[1]
    assert ("forget", path) in broker.files.operations, "its file system can be unmounted and repaired"
    still = cluster[1].retry_log_dir(path)
    assert isinstance(still, KafkaStorageError) and "injected" in str(still)
    assert list(broker.node.replica_manager.hosted.offline) == [TP]
    broker.files.fails = lambda _operation, _name: False
    assert cluster[1].retry_log_dir(path) is None
    assert broker.logs.live_log_dirs == ["/one", "/two"] and not broker.node.replica_manager.hosted.offline
    assert not any("probe" in name for name in broker.files.contents)
    cluster.decide(1, 1, (1,), (1,))
    assert broker.values() == [b"kept"]
    assert broker.produce(b"new")[0].failure is None and broker.values() == [b"kept", b"new"]
    assert broker.produce(b"other", tp=OTHER)[0].failure is None
    # The directory can fail, and be taken back, once more.
    broker.files.fails = lambda operation, name: name.startswith(path) and operation == "append"
    broker.produce(b"refused")
    cluster.time.run_for(1_000)
    assert broker.logs.live_log_dirs == [one for one in ("/one", "/two") if one != path]
    assert path not in broker.files.locked and f"{path}/.lock" not in broker.files.locked
    broker.files.fails = lambda _operation, _name: False
    assert cluster[1].retry_log_dir(path) is None and broker.logs.live_log_dirs == ["/one", "/two"]


def test_a_directory_is_loaded_once_however_many_callers_ask_for_it() -> None:
    cluster, path = failed_directory()
    broker = cluster[1]
    broker.directory_work.is_held = True
    assert all(broker.node.retry_log_dir(path, is_repeated) for is_repeated in (False, False, True, False))
    broker.directory_work.run_next()
    assert not broker.directory_work.jobs
    cluster.time.run_for(10)
    for _caller in range(2):
        with pytest.raises(KafkaStorageError, match="injected"):
            broker.node.retry_log_dir(path, is_repeated=True)
    broker.files.fails = lambda _operation, _name: False
    assert broker.node.retry_log_dir(path, is_repeated=False), "a new request begins a new attempt"
    broker.directory_work.run_next()
    cluster.time.run_for(10)
    assert not broker.node.retry_log_dir(path, is_repeated=True) and path in broker.logs.live_log_dirs


def test_a_directory_that_no_request_has_found_failed_is_taken_back() -> None:
    cluster = two_directories()
    broker, path = cluster[1], where(cluster)[TP]
    broker.files.fails = lambda _operation, name: name.startswith(f"{path}/recovery-point")
    broker.logs.checkpoint_recovery_points()
    broker.files.fails = lambda _operation, _name: False
    assert TP in broker.node.replica_manager.hosted.online, "no append and no read has met the failure"
    assert broker.retry_log_dir(path) is None
    assert broker.produce(b"early")[0].failure is not None, "its role comes with the next LeaderAndIsr"
    cluster.time.run_for(1_000)
    cluster.decide(1, 1, (1,), (1,))
    assert broker.produce(b"new")[0].failure is None and broker.values() == [b"new"]
    assert not broker.node.replica_manager.hosted.offline


def test_only_failed_directories_of_the_broker_are_taken_back() -> None:
    cluster, path = failed_directory()
    assert isinstance(cluster[1].retry_log_dir("/elsewhere"), LogDirNotFoundError)
    assert cluster[1].retry_log_dir("/one" if path == "/two" else "/two") is None
    cluster[1].files.fails = lambda _operation, _name: False
    lock = cluster[1].files.lock(f"{path}/.lock")
    assert lock is not None
    assert "locked" in str(cluster[1].retry_log_dir(path))
    lock.release()
    assert cluster[1].retry_log_dir(path) is None


def test_a_topic_deleted_while_its_directory_was_offline_is_deleted_when_it_returns() -> None:
    cluster, path = failed_directory()
    broker = cluster[1]
    assert cluster.stop_replica(1, -2, True).partition_errors == {TP: ErrorCode.KAFKA_STORAGE_ERROR}
    broker.files.fails = lambda _operation, _name: False
    assert broker.retry_log_dir(path) is None
    assert cluster.stop_replica(1, -2, True).partition_errors == {TP: ErrorCode.NONE}
    cluster.time.run_for(broker.logs.default_config.file_delete_delay_ms + 1_000)
    assert broker.logs.get(TP) is None and not any("orders-0" in name for name in broker.files.contents)


def test_a_replica_moved_away_while_its_directory_was_offline_is_set_aside_when_it_returns() -> None:
    """As at a start, where the first metadata shows it; nothing else would ever remove its log."""
    cluster, path = failed_directory()
    broker = cluster[1]
    cluster.decide(2, 5, (2, 3), (2, 3), to=())
    assert isinstance(broker.retry_log_dir(path), KafkaStorageError) and broker.logs.set_aside == []
    broker.files.fails = lambda _operation, _name: False
    assert broker.retry_log_dir(path) is None
    assert broker.logs.get(TP) is None and not broker.node.replica_manager.hosted.offline
    (aside,) = broker.logs.set_aside
    assert aside.startswith(path) and aside.endswith("-stray") and broker.logs.get(OTHER) is not None


@pytest.mark.parametrize("damage", ["a changed byte", "a lost batch"])
def test_a_directory_that_lacks_acknowledged_records_needs_a_restart(damage: str) -> None:
    """The restart registers as unclean, so that the controller does not elect the replica as the last in-sync one."""
    cluster, path = failed_directory()
    files, log = cluster[1].files, cluster[1].log()
    files.fails = lambda _operation, _name: False
    for segment in log.segments:
        if damage == "a changed byte":
            files.contents[segment.log_path][-1] ^= 1
        else:
            files.contents[segment.log_path].clear()
    assert "restart the broker" in str(cluster[1].retry_log_dir(path))
    assert path not in cluster[1].logs.live_log_dirs and f"{path}/.lock" not in files.locked
    assert bytes(files.contents[f"{path}/{BOOT_ID_FILE}"]).decode().strip() == UNCLEAN_RESTART
