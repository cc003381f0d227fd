"""A broker whose disk becomes full under load: it stays up, and shorter retention alone brings it back."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from paceline.coordination.errors import JavaNotFoundError
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.model.errors import LogDirFullError
from paceline.runtime.embedded_zookeeper import java_path
from paceline.testing import PATIENT
from paceline_client import Admin, Consumer, DeliveryFailedError, NewTopic, Producer, TopicPartition

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

LONG_S = 120.0
TOPIC = "rides"
DISK_BYTES = 24 << 20
VALUE = b"x" * 20_000
BATCH = 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small file system at the data directory of broker 1."""
    data = tmp_path / "broker-1" / "data"
    data.mkdir(parents=True)
    options = f"size={DISK_BYTES},uid={os.getuid()},mode=0700"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(data)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        reason = f"this process may not mount a small file system: {mounted.stderr.strip()}"
        print(f"skipped: {reason}", file=sys.stderr)
        pytest.skip(reason)
    yield data
    subprocess.run(["umount", "--lazy", str(data)], check=True)


@pytest.fixture
def cluster(small_disk: Path, tmp_path: Path) -> Iterator[LocalCluster]:
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    settings = {
        **PATIENT,
        "replica.lag.time.max.ms": "5000",
        "log.segment.delete.delay.ms": "100",
        "log.retention.check.interval.ms": "1000",
    }
    running = LocalCluster(
        tmp_path, CONFIG_FILE, brokers=2, controllers=1, settings=settings, ports=free_plan(1, 2), heap_mib=64
    )
    running.start()
    yield running
    running.stop()


class Load(threading.Thread):
    """Sends numbered records until `stopped`; ``acknowledged`` has the number of each acknowledged record by offset."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="load")
        self.address = bootstrap
        self.acknowledged: dict[int, int] = {}
        self.errors: list[Exception] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        number = 0
        with Producer(self.address, batch_size=100_000, delivery_timeout_ms=2_000) as producer:
            while not self.stopped.is_set():
                sent = [producer.send(TOPIC, b"%08d" % (number + one) + VALUE, partition=0) for one in range(BATCH)]
                for one, future in enumerate(sent):
                    try:
                        self.acknowledged[future.result(60.0).offset] = number + one
                    except Exception as error:
                        self.errors.append(error)
                number += BATCH
                if self.errors:
                    time.sleep(0.2)  # the other broker leads while broker 1 is down, and its disk is large


def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def row_of_small_disk(cluster: LocalCluster) -> dict[str, object]:
    result = CliRunner().invoke(cli, ["broker", "logdirs", "1", "-o", "json", "-b", cluster.bootstrap])
    rows: list[dict[str, object]] = json.loads(result.stdout or "[]")
    return rows[0] if rows else {"state": f"the broker does not answer: {result.output}"}


def retry(cluster: LocalCluster, broker_id: int, path: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        cli, ["broker", "logdirs", str(broker_id), "--retry", path, "-o", "json", "-b", cluster.bootstrap]
    )
    return result.exit_code, result.output


def test_a_disk_that_fills_under_load_is_brought_back_by_shorter_retention(
    cluster: LocalCluster, small_disk: Path
) -> None:
    with Admin(cluster.bootstrap) as admin:
        configs = {"segment.bytes": "1000000", "min.insync.replicas": "1"}
        admin.create_topics([NewTopic(TOPIC, assignments=((1, 2),), configs=configs)])
    load = Load(cluster.bootstrap)
    load.start()
    try:
        until(lambda: row_of_small_disk(cluster)["state"] == "short", lambda: f"{row_of_small_disk(cluster)}")
        until(lambda: bool(load.errors), lambda: f"acknowledged {len(load.acknowledged)}")
        failed = load.errors[-1]
        assert isinstance(failed, DeliveryFailedError) and isinstance(failed.cause, LogDirFullError)
        where = f"broker 1 has no room for {TOPIC}/0: disk {small_disk} of log directory {small_disk} has"
        assert where in str(failed) and failed.definite

        # Another program takes the rest, and the broker is killed: it starts on a disk without a free byte.
        with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(b"0" * 4_096)
        cluster.kill(cluster.broker(1))
        cluster.restart(cluster.broker(1))
        until(lambda: row_of_small_disk(cluster)["state"] == "full", lambda: f"{row_of_small_disk(cluster)}")
        before = len(load.acknowledged)

        altered = CliRunner().invoke(
            cli, ["topic", "alter", TOPIC, "--set", "retention.bytes=5000000", "-b", cluster.bootstrap]
        )
        assert altered.exit_code == 0, altered.output
        until(lambda: row_of_small_disk(cluster)["state"] == "online", lambda: f"{row_of_small_disk(cluster)}")
        with Admin(cluster.bootstrap) as admin:
            until(
                lambda: sorted(admin.describe_topics([TOPIC])[0].partitions[0].isr) == [1, 2],
                lambda: f"{admin.describe_topics([TOPIC])}",
            )
        until(lambda: len(load.acknowledged) > before + 5 * BATCH, lambda: f"acknowledged {len(load.acknowledged)}")
    finally:
        load.stopped.set()
        load.join()
    assert [node.name for node in cluster.nodes.values() if not node.running] == []
    assert retry(cluster, 1, str(small_disk))[0] == 0, "a directory that is online stays"
    assert "LOG_DIR_NOT_FOUND" in retry(cluster, 1, "/elsewhere")[1]
    assert "BROKER_NOT_AVAILABLE" in retry(cluster, 9, str(small_disk))[1]

    found: dict[int, int] = {}
    last = max(load.acknowledged)
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(TOPIC, 0)])

        def read_to_the_end() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                found.update({record.offset: int((record.value or b"")[:8]) for record in records})
            return last in found

        until(read_to_the_end, lambda: f"read up to {max(found, default=-1)} of {last}")
    kept = {offset: number for offset, number in load.acknowledged.items() if offset >= min(found)}
    assert kept and kept.items() <= found.items(), "an acknowledged record is missing or differs"
