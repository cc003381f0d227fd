"""All brokers are killed, or stopped in an orderly way, at the same time under load, and restart."""

import time
from pathlib import Path

import pytest

from paceline.dev.detached_cluster import STOP_SECONDS
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.log.checkpoint import decode_offsets
from paceline.model.identifiers import TopicPartition
from paceline_client import Admin
from tests.soak.kills import BROKERS, PARTITIONS, TOPIC, Load, Outcome, read_back, wait_full_isr
from tests.support.paced_producers import PacedProducers
from tests.support.replica_files import batches
from tests.support.waiting import eventually

CHECKPOINT = "replication-offset-checkpoint"


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_no_acknowledged_record_is_lost_and_no_high_watermark_is_above_its_log_end(tmp_path: Path) -> None:
    cluster = LocalCluster(
        tmp_path, CONFIG_FILE, settings={"replica.high.watermark.checkpoint.interval.ms": "50"}, ports=free_plan(2, 3)
    )
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({TOPIC: (PARTITIONS, BROKERS, {"min.insync.replicas": "2"})})
        load = Load(cluster.bootstrap)
        load.start()
        brokers = [cluster.broker(broker) for broker in range(1, BROKERS + 1)]
        folders = [cluster.directory / f"broker-{broker}" / "data" for broker in range(1, BROKERS + 1)]
        for _ in range(2):
            enough = len(load.acked) + 2_000
            eventually(lambda enough=enough: len(load.acked) > enough, 120.0, "records are acknowledged")  # type: ignore[misc]
            for node in brokers:
                assert node.process is not None
                node.process.kill()
            for node in brokers:
                cluster.kill(node)
            for folder in folders:
                _check_checkpoint(folder)
            time.sleep(0.5)
            for node in brokers:
                cluster.restart(node, wait=False)
            for node in brokers:
                cluster.wait_ready(node, 120.0)
            assert wait_full_isr(cluster, 180.0) is None
        load.stop()
        outcome = Outcome(sent=load.sent, acked=len(load.acked))
        read_back(cluster.bootstrap, load, outcome)
        assert outcome.problems == []
        assert load.failed == {}
        assert outcome.read >= outcome.acked > 4_000
    finally:
        cluster.stop()


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.timeout(900)
def test_no_send_fails_and_no_record_is_doubled_when_all_brokers_stop_in_an_orderly_way_and_start(
    tmp_path: Path,
) -> None:
    cluster = LocalCluster(tmp_path, CONFIG_FILE, ports=free_plan(2, 3))
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({TOPIC: (PARTITIONS, BROKERS, {"min.insync.replicas": "2"})})
        brokers = [cluster.broker(broker) for broker in range(1, BROKERS + 1)]
        with PacedProducers(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            for _ in range(2):
                load.await_progress(1_000)
                for node in brokers:
                    assert node.process is not None
                    node.process.terminate()
                for node in brokers:
                    assert node.process is not None
                    assert node.process.wait(timeout=STOP_SECONDS) == 0
                for node in brokers:
                    cluster.restart(node, wait=False)
                for node in brokers:
                    cluster.wait_ready(node, 120.0)
                assert wait_full_isr(cluster, 180.0) is None
        load.check()
    finally:
        cluster.stop()


def _check_checkpoint(folder: Path) -> None:
    """Check that the checkpoint is a complete file, old or new, without an offset beyond the end of a log."""
    watermarks = decode_offsets((folder / CHECKPOINT).read_bytes())
    assert watermarks, folder
    for partition in range(PARTITIONS):
        tp = TopicPartition(TOPIC, partition)
        end = max((batch.last_offset + 1 for batch in batches(folder, tp)), default=0)
        assert 0 <= watermarks.get(tp, 0) <= end, (folder, tp)
