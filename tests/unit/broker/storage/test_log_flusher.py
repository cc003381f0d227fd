"""Flushes and checkpoints in the background."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.broker.node import BrokerNode
from paceline.broker.storage.log_flusher import _Flushes
from paceline.log.checkpoint import read_offsets
from paceline.log.files import join
from paceline.log.log_config import LogConfig
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.client_io import ProduceData, ProduceResult, RequiredAcks
from paceline.model.identifiers import TopicPartition
from tests.support.broker_cluster import TP, BrokerCluster

RECOVERY_POINTS = join("/data", "recovery-point-offset-checkpoint")


def test_a_rolled_segment_is_made_durable_and_the_recovery_point_moves() -> None:
    cluster = BrokerCluster((1,), log_config=LogConfig(segment_bytes=300))
    cluster.decide(1, 0, (1,), is_new=True)
    for index in range(10):
        cluster[1].produce(b"x" * 50 + b"%d" % index)
    assert len(cluster[1].log().segments) > 1 and cluster[1].log().recovery_point == 0
    cluster.time.run_for(5_001)
    assert cluster[1].log().recovery_point == 10
    cluster.time.run_for(60_000)
    assert read_offsets(cluster[1].files, RECOVERY_POINTS)[TP] == 10


def test_a_flush_follows_flush_ms_within_one_check() -> None:
    cluster = BrokerCluster((1,), log_config=LogConfig(flush_ms=7_000))
    cluster.decide(1, 0, (1,), is_new=True)
    cluster[1].produce(b"a")
    cluster.time.run_until(lambda: cluster[1].log().recovery_point == 1, 20_000)


def test_an_epoch_without_records_is_durable_after_the_next_checkpoint() -> None:
    cluster = BrokerCluster((1,))
    cluster.decide(1, 0, (1,), is_new=True)
    cluster[1].produce(b"a")
    cluster.decide(1, 3, (1,))
    assert cluster[1].log().epochs.dirty
    cluster.time.run_for(60_100)
    assert not cluster[1].log().epochs.dirty


def test_a_producer_that_was_idle_for_too_long_is_removed_and_a_busy_one_is_not() -> None:
    hour_ms, look_ms = 3_600_000, 600_000
    cluster = BrokerCluster((1, 2), transactional_id_expiration_ms=hour_ms)
    cluster.decide(1, 0, (1, 2), is_new=True)

    def write(producer_id: int, sequence: int, timestamp_ms: int) -> None:
        record = NewRecord(timestamp_ms, None, b"a")
        data = encode_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        results: list[ProduceResult] = []
        cluster[1].node.produce(RequiredAcks.LEADER, 1_000, [ProduceData(TP, None, data)], results.extend)
        assert results[0].failure is None

    def known(broker_id: int) -> list[int]:
        return [entry.producer_id for entry in cluster[broker_id].log().producers.entries]

    write(7, 0, cluster.time.wall_ms())
    for step in range(14):
        # A producer of old records is not idle: the time of the append counts.
        write(8, step, 1_000)
        cluster.time.run_for(look_ms // 2)
        if step == 9:
            assert known(1) == known(2) == [7, 8], "an hour has not passed"
    assert known(1) == known(2) == [8]
    cluster.time.run_for(2 * look_ms)
    assert known(1) == known(2) == []
    write(8, 99, 1_000)


class Elsewhere:
    """Background work that the test runs itself."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], None], Callable[[Exception | None], None]]] = []

    def run(self, work: Callable[[], None], on_done: Callable[[Exception | None], None]) -> None:
        self.jobs.append((work, on_done))


def test_logs_are_flushed_together_although_one_is_deleted_meanwhile() -> None:
    cluster = BrokerCluster((1,), log_config=LogConfig(flush_ms=0))
    broker = cluster[1]
    elsewhere = Elsewhere()
    broker.node.replica_manager.hosted.stopped = True
    broker.zookeeper.close()
    broker.files.locked.clear()
    cluster.time.run_for(100)
    other = cluster.boot(1, broker.files)
    other.node._flusher.stop(lambda: None)
    other.node = BrokerNode(
        other.config,
        other.endpoints,
        cluster.time,
        other.zookeeper,
        other.logs,
        other.transport,
        random.Random(1),
        other.changes.append,
        other.fatal.append,
        elsewhere,
        elsewhere,
        elsewhere,
    )
    other.zookeeper._started = False
    other.node.start(lambda: None)
    cluster.time.run_until(lambda: other.node.ready, 10_000)
    tps = [TopicPartition("many", index) for index in range(100)]
    for tp in tps:
        cluster.send(1, cluster.partition(1, 0, (1,), (1,), tp=tp, is_new=True))
    cluster.time.run_for(10)
    for tp in tps:
        other.produce(b"a", tp=tp)
    cluster.time.run_for(10_000)
    assert len(elsewhere.jobs) == 1
    cluster.stop_replica(1, -2, True, tp=tps[1])
    rounds = 0
    while elsewhere.jobs:
        rounds += 1
        (work, on_done) = elsewhere.jobs.pop()
        work()
        on_done(None)
        assert len(elsewhere.jobs) <= 1
    assert rounds == 2
    assert [other.log(tp).recovery_point for tp in tps if tp != tps[1]] == [1] * 99
    cluster.time.run_for(10_000)
    assert other.fatal == []


def test_a_stop_waits_for_the_flush_in_progress_before_it_closes_the_logs() -> None:
    cluster = BrokerCluster((1,), log_config=LogConfig(flush_ms=0))
    cluster.decide(1, 0, (1,), is_new=True)
    broker = cluster[1]
    elsewhere = Elsewhere()
    broker.node._flusher._background = elsewhere
    broker.produce(b"a")
    cluster.time.run_until(lambda: bool(elsewhere.jobs), 20_000)
    broker.produce(b"b")
    stopped: list[bool] = []
    broker.node.stop(lambda: stopped.append(True))
    cluster.time.run_for(30_000)
    marker = join("/data", ".kafka_cleanshutdown")
    assert stopped == [] and not broker.files.exists(marker)
    ((work, on_done),) = elsewhere.jobs
    work()
    on_done(None)
    cluster.time.run_until(lambda: stopped == [True], 1_000)
    assert broker.files.exists(marker)
    assert read_offsets(broker.files, RECOVERY_POINTS)[TP] == 2, (
        "records appended after the start of the flush are durable, too"
    )


def test_a_flush_that_raises_is_reported_and_the_next_flush_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = SimpleNamespace(topic_partition=TP)

    def surprise() -> None:
        raise ValueError("nobody thought of it")

    flushes = _Flushes()
    broken, good = SimpleNamespace(run=surprise), SimpleNamespace(run=lambda: None)
    flushes.begun = cast(Any, [(log, broken), (log, good)])
    flushes.run()
    assert flushes.done == [(log, good)]
    assert str(TP) in caplog.text and "nobody thought of it" in caplog.text


@pytest.mark.parametrize("error", [OSError(5, "input/output error"), ValueError("nobody thought of it")])
def test_a_failed_flush_takes_its_directory_offline(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    cluster = BrokerCluster((), log_config=LogConfig(flush_ms=0))
    broker = cluster.boot(1, dirs=("/one", "/two"))
    cluster.time.run_until(lambda: broker.node.ready, 10_000)
    cluster.update_metadata()
    other = TopicPartition("payments", 3)
    for tp in (TP, other):
        cluster.decide(1, 0, (1,), (1,), tp=tp, is_new=True)
        broker.produce(b"a", tp=tp)
    failing = broker.log()
    assert failing.directory is not broker.log(other).directory

    def fails(operation: str, path: str) -> bool:
        if operation == "sync" and path.startswith(failing.path):
            raise error
        return False

    broker.files.fails = fails
    cluster.time.run_for(20_000)
    assert failing.directory.is_offline and failing.recovery_point == 0
    assert list(broker.node.replica_manager.hosted.offline) == [TP]
    assert broker.log(other).recovery_point == 1 and broker.fatal == []
    assert ("nobody thought of it" in caplog.text) == isinstance(error, ValueError)
