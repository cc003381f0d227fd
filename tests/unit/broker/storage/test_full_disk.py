"""Brokers whose disk becomes full and gets room again: docs/protocol/log-format.md#full-disk."""

import errno
import logging

import pytest

from paceline.broker.metrics import label_families_of
from paceline.coordination import znodes
from paceline.log.checkpoint import LOG_START_CHECKPOINT
from paceline.log.directory_space import Room
from paceline.log.log_config import LogConfig
from paceline.model.client_io import DeleteRecordsQuery, DeleteRecordsResult, ProduceResult, RequiredAcks
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import EPOCH_DURING_DELETE
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster, BrokerUnderTest
from tests.unit.broker.isr_cluster import LAG_MAX_MS, leader, make

SIZE = 200_000
"""Bytes of a small disk: the limit is 10,000 bytes, the reserve 2,500."""


def leave_free(broker: BrokerUnderTest, free_bytes: int) -> None:
    """Give the broker a small disk, on which another program leaves so many bytes free."""
    files = broker.files
    files.limit_bytes, files.other_bytes = SIZE, 0
    files.other_bytes = SIZE - free_bytes - files.used_bytes


def room(broker: BrokerUnderTest) -> Room:
    return broker.logs.spaces["/data"].room


def answer_of(cluster: BrokerCluster, answers: list[ProduceResult]) -> ProduceResult:
    cluster.time.run_until(lambda: bool(answers), 60_000)
    return answers[0]


def test_produce_on_a_short_disk_is_refused_with_disk_directory_and_broker(caplog: pytest.LogCaptureFixture) -> None:
    cluster = make()
    broker = cluster[1]
    leave_free(broker, 9_000)
    with caplog.at_level(logging.WARNING, logger="paceline.broker.storage"):
        cluster.time.run_for(1_100)
        refused = answer_of(cluster, broker.produce(b"refused"))
        leave_free(broker, 14_000)
        cluster.time.run_for(1_100)
        assert answer_of(cluster, broker.produce(b"also refused")).failure is not None
        leave_free(broker, 16_000)
        cluster.time.run_for(1_100)
    assert refused.failure is not None and refused.failure.code is ErrorCode.LOG_DIR_FULL
    assert refused.failure.message.startswith(f"broker 1 has no room for {TP}: disk /disk of log directory /data has ")
    assert answer_of(cluster, broker.produce(b"taken")).failure is None
    cluster.until_in_sync(1, 2, 3)
    assert cluster[2].values() == [b"a", b"taken"]
    told = broker.said(StateChangeKind.LOG_DIR_SHORT, StateChangeKind.LOG_DIR_ROOMY)
    assert [(one.kind.value, one.log_dir) for one in told] == [("log-dir-short", "/data"), ("log-dir-roomy", "/data")]
    logged = [record.getMessage() for record in caplog.records if "room=" in record.getMessage()]
    assert [line.split(": ")[0] for line in logged] == [
        "log directory is short of room",
        "log directory has more room",
    ]


def test_appends_alone_make_a_disk_short_before_the_next_measurement() -> None:
    cluster = make()
    broker = cluster[1]
    leave_free(broker, 14_000)
    cluster.time.run_for(1_100)
    codes = []
    for _ in range(10):
        answers = broker.produce(b"x" * 1_000, acks=RequiredAcks.LEADER)
        codes.append(None if answers[0].failure is None else answers[0].failure.code)
    assert codes == [None] * 4 + [ErrorCode.LOG_DIR_FULL] * 6


def test_a_follower_uses_the_rest_of_its_disk_then_leaves_the_isr_and_returns_by_itself() -> None:
    cluster = make()
    leave_free(cluster[3], 9_000)
    cluster.time.run_for(1_100)
    assert room(cluster[3]) is Room.SHORT
    assert answer_of(cluster, cluster[1].produce(b"copied")).failure is None
    cluster.until_in_sync(1, 2, 3)
    leave_free(cluster[3], 1_000)
    cluster.time.run_for(1_100)
    begin_ms = cluster.time.now_ms()
    assert answer_of(cluster, cluster[1].produce(b"not on 3")).failure is None
    assert LAG_MAX_MS <= cluster.time.now_ms() - begin_ms <= 2 * LAG_MAX_MS
    assert sorted(leader(cluster).isr) == [1, 2]
    assert TP not in cluster[3].node.replica_manager.hosted.offline
    assert not cluster[3].said(StateChangeKind.FETCHER_FAILED)
    # While there is no room a small fetch now and then shows the high watermark and the log start.
    before = len(cluster[3].transport.fetches)
    leader(cluster).delete_records(1)
    cluster.time.run_for(10_000)
    fetches = cluster[3].transport.fetches[before:]
    assert 5 <= len(fetches) <= 25
    assert {one.max_bytes for _, request in fetches for one in request.partitions} == {1}
    assert cluster[3].log().log_start_offset == 1 and cluster[3].log().log_end_offset == 2
    leave_free(cluster[3], 50_000)
    cluster.time.run_until(lambda: sorted(leader(cluster).isr) == [1, 2, 3], 10_000)
    assert cluster[3].values() == [b"copied", b"not on 3"]


def test_a_full_follower_that_was_killed_learns_the_high_watermark_below_which_retention_deletes() -> None:
    config = LogConfig(segment_bytes=400, file_delete_delay_ms=1_000, retention_ms=-1)
    cluster = BrokerCluster((1, 2), log_config=config, replica_lag_time_max_ms=LAG_MAX_MS)
    cluster.decide(1, 0, (1, 2), is_new=True)
    cluster.time.run_for(50)
    for _ in range(50):
        assert answer_of(cluster, cluster[1].produce(b"x" * 200)).failure is None
    cluster[2].crash()
    files = cluster[2].files
    files.contents.pop("/data/replication-offset-checkpoint", None)
    files.locked.clear()
    again = cluster.boot(2, files)
    cluster.time.run_until(lambda: again.node.ready, 60_000)
    answer_of(cluster, cluster[1].produce(b"y"))
    leave_free(again, 0)
    cluster.update_metadata()
    cluster.decide(1, 1, (1,), (1, 2))
    cluster.time.run_for(2_000)
    assert room(again) is Room.FULL and again.log().log_end_offset == 50
    again.log().config = LogConfig(
        segment_bytes=400, file_delete_delay_ms=1_000, retention_bytes=2_000, retention_ms=-1
    )
    cluster.time.run_for(15_000)
    assert again.log().size_bytes < 3_000 < cluster[1].log().size_bytes


@pytest.mark.parametrize("broker_id", [1, 3])
def test_a_write_without_room_takes_neither_the_directory_nor_the_broker_down(broker_id: int) -> None:
    """The disk is full without a warning, as when another program fills it within a second."""
    cluster = make()
    broker = cluster[broker_id]
    leave_free(broker, 30)
    answers = cluster[1].produce(b"b" * 100)
    cluster.time.run_for(3 * LAG_MAX_MS)
    assert broker.logs.live_log_dirs == ["/data"] and room(broker) is Room.FULL
    if broker_id == 1:
        failure = answers[0].failure
        assert failure is not None and failure.code is ErrorCode.LOG_DIR_FULL
        assert broker.values() == [b"a"]
    else:
        assert answers[0].failure is None and sorted(leader(cluster).isr) == [1, 2]
    leave_free(broker, 100_000)
    cluster.time.run_for(12_000)
    assert answer_of(cluster, cluster[1].produce(b"c")).failure is None
    cluster.until_in_sync(1, 2, 3)
    cluster.time.run_until(lambda: sorted(leader(cluster).isr) == [1, 2, 3], 10_000)


def test_checkpoints_and_the_clean_stop_of_a_broker_with_a_full_disk_lose_nothing() -> None:
    cluster = make(controlled_shutdown_enable=False)
    broker = cluster[1]
    leave_free(broker, 0)
    cluster.time.run_for(120_000)
    assert broker.logs.live_log_dirs == ["/data"] and broker.node.ready
    done: list[bool] = []
    broker.node.stop(lambda: done.append(True))
    cluster.time.run_until(lambda: bool(done), 60_000)
    cluster.time.run_for(1_000)
    again = cluster.boot(1, broker.files)
    cluster.time.run_until(lambda: again.node.ready, 10_000)
    assert again.logs.live_log_dirs == ["/data"] and room(again) is Room.FULL
    cluster.decide(1, 1, (1, 2, 3))
    assert again.values() == [b"a"]


def test_retention_runs_at_once_and_often_while_a_disk_is_short() -> None:
    config = LogConfig(segment_bytes=400, file_delete_delay_ms=1_000, retention_ms=-1)
    cluster = BrokerCluster((1,), log_config=config, log_retention_check_interval_ms=300_000)
    cluster.decide(1, 0, (1,), is_new=True)
    cluster.time.run_for(40_000)
    for _ in range(50):
        assert answer_of(cluster, cluster[1].produce(b"x" * 200)).failure is None
    leave_free(cluster[1], 9_000)
    cluster.time.run_for(2_000)
    assert room(cluster[1]) is Room.SHORT
    for log in cluster[1].logs.all_logs():
        log.config = LogConfig(segment_bytes=400, file_delete_delay_ms=1_000, retention_bytes=2_000, retention_ms=-1)
    cluster.time.run_for(12_000)
    assert cluster[1].log().size_bytes < 3_000
    assert room(cluster[1]) is Room.ROOMY
    assert answer_of(cluster, cluster[1].produce(b"taken")).failure is None


def test_deleted_records_without_room_for_the_new_log_start_are_not_confirmed() -> None:
    config = LogConfig(segment_bytes=300, file_delete_delay_ms=1_000)
    cluster = BrokerCluster((1,), log_config=config)
    cluster.decide(1, 0, (1,), is_new=True)
    cluster.time.run_for(50)
    for _ in range(10):
        cluster[1].produce(b"x" * 100)

    def trim() -> DeleteRecordsResult:
        answers: list[DeleteRecordsResult] = []
        query = DeleteRecordsQuery(TP, None, 5)
        cluster[1].node.proved_calls.delete_records([query], 5_000, answers.extend)
        cluster.time.run_until(lambda: bool(answers), 6_000)
        return answers[0]

    def fails(operation: str, path: str) -> bool:
        if operation == "create" and LOG_START_CHECKPOINT in path:
            raise OSError(errno.ENOSPC, "no space left on device", path)
        return False

    cluster[1].files.fails = fails
    failure = trim().failure
    assert failure is not None and failure.code is ErrorCode.KAFKA_STORAGE_ERROR and "no room" in failure.message
    assert cluster[1].logs.live_log_dirs == ["/data"]
    cluster[1].files.fails = lambda _operation, _path: False
    assert trim().failure is None


def test_free_bytes_and_limits_are_listed_and_measured() -> None:
    cluster = make()
    leave_free(cluster[1], 9_000)
    cluster.time.run_for(1_100)
    (view,) = cluster[1].node.describe_log_dirs(None)
    assert view.space is not None
    assert (view.space.total_bytes, view.space.min_free_bytes, view.space.reserve_bytes) == (SIZE, 10_000, 2_500)
    assert 8_000 < view.space.free_bytes <= 9_000 and view.space.room == Room.SHORT
    rows = label_families_of(cluster[1].node.replica_manager, 10)
    assert rows["log_directory_free_bytes"] == {("/data",): view.space.free_bytes}
    assert rows["log_directory_min_free_bytes"] == {("/data",): 10_000}
    assert rows["log_directory_reserve_bytes"] == {("/data",): 2_500}
    assert rows["log_directory_total_bytes"] == {("/data",): SIZE}
    assert rows["log_directory_room"] == {("/data",): 2}


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_replica_whose_log_could_not_be_created_is_readmitted_or_deleted(is_deleted: bool) -> None:
    cluster = BrokerCluster((1,))
    broker = cluster[1]

    def fails(operation: str, path: str) -> bool:
        if operation == "make_directory" and path != "/data":
            raise OSError(errno.ENOSPC, "no space left on device", path)
        return False

    broker.files.fails = fails
    answer = cluster.send(1, cluster.partition(1, 0, (1,), is_new=True))
    assert answer.partition_errors[TP] is ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.logs.live_log_dirs == ["/data"] and TP in broker.node.replica_manager.hosted.offline
    broker.files.fails = lambda _operation, _path: False
    if is_deleted:
        answer = cluster.stop_replica(1, EPOCH_DURING_DELETE, delete=True)
        assert answer.partition_errors[TP] is ErrorCode.NONE
        assert TP not in broker.node.replica_manager.hosted.offline
        return
    before = len(list_events(cluster))
    cluster.time.run_for(12_000)
    assert TP not in broker.node.replica_manager.hosted.offline
    assert len(list_events(cluster)) == before + 1
    cluster.decide(1, 1, (1,))
    assert answer_of(cluster, broker.produce(b"a")).failure is None


def list_events(cluster: BrokerCluster) -> list[str]:
    return [path for path in cluster.paths() if path.startswith(znodes.LOG_DIR_EVENT_PREFIX)]
