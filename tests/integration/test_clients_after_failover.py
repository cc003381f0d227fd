"""Clients continue soon after a partition's leader is killed, because closed connections make them refresh metadata.

No other event can move the clients in time: the session of the dead broker, the request timeout and the metadata age of
the clients are all longer than the tests allow.
"""

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, Node
from paceline.dev.ports import free_plan
from paceline_client import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 120.0
BOUND_S = 50.0
"""Longest time from the kill to the first record written to, or read from, the next leader."""
LONGER_MS = 100_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {
        "zookeeper.session.timeout.ms": str(LONGER_MS),
        "controller.broker.lease.ms": str(LONGER_MS),
        "replica.lag.time.max.ms": "60000",
    }
    running = LocalCluster(
        tmp_path_factory.mktemp("cluster"),
        CONFIG_FILE,
        brokers=3,
        controllers=1,
        settings=settings,
        ports=free_plan(1, 3),
        heap_mib=64,
    )
    running.start()
    try:
        yield running
    finally:
        running.stop(force=True)


def create(cluster: LocalCluster, topic: str) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 3, configs={"min.insync.replicas": "2"})])


def leader_in_full_isr(cluster: LocalCluster, topic: str) -> Node:
    """Wait until every replica is in sync, and return the process that leads partition 0."""
    with Admin(cluster.bootstrap) as admin:

        def leader() -> int | None:
            partition = admin.describe_topics([topic])[0].partitions[0]
            return partition.leader if len(partition.isr) == 3 else None

        found = eventually(leader, LONG_S, "every replica is in the ISR")
        assert found is not None
        return cluster.broker(found)


@contextlib.contextmanager
def killed(cluster: LocalCluster, node: Node) -> Iterator[float]:
    """Kill a process, yield the monotonic time of the kill, and restart the process after the block."""
    cluster.kill(node)
    try:
        yield time.monotonic()
    finally:
        cluster.restart(node)


def test_the_python_producer_and_consumer_continue_at_the_next_leader(cluster: LocalCluster) -> None:
    create(cluster, "python")
    with (
        Producer(cluster.bootstrap, request_timeout_ms=LONGER_MS, delivery_timeout_ms=2 * LONGER_MS) as producer,
        Consumer(cluster.bootstrap, request_timeout_ms=LONGER_MS, metadata_max_age_ms=10 * LONGER_MS) as consumer,
    ):
        consumer.assign([TopicPartition("python", 0)])
        seen: list[bytes] = []

        def read() -> list[bytes]:
            for records in consumer.poll(timeout_ms=200).values():
                seen.extend(record.value or b"" for record in records)
            return seen

        producer.send("python", b"before").result(LONG_S)
        eventually(lambda: b"before" in read(), LONG_S, "the first record is read", pause_s=0.0)
        with killed(cluster, leader_in_full_isr(cluster, "python")) as begin_s:
            producer.send("python", b"after").result(BOUND_S)
            written_s = time.monotonic() - begin_s
            eventually(lambda: b"after" in read(), BOUND_S - written_s, "a record of the next leader is read", 0.0)
            print(f"written after {written_s:.2f} s, read after {time.monotonic() - begin_s:.2f} s")
        assert seen == [b"before", b"after"]


@pytest.mark.spark
def test_a_spark_task_that_was_planned_before_the_kill_reads_from_the_next_leader(cluster: LocalCluster) -> None:
    from paceline.pipeline.data_source import PacelineDataSource
    from paceline_client.process_channels import close_channels

    create(cluster, "spark")
    with Producer(cluster.bootstrap) as producer:
        producer.send_many("spark", [(None, b"%d" % number) for number in range(1_000)]).result(LONG_S)
    node = leader_in_full_isr(cluster, "spark")
    source = PacelineDataSource({"paceline.bootstrap.servers": cluster.bootstrap, "subscribe": "spark"})
    reader = source.reader(source.schema())
    planned = reader.partitions()
    try:
        with killed(cluster, node) as begin_s:
            rows = sum(batch.num_rows for task in planned for batch in reader.read(task))
            took_s = time.monotonic() - begin_s
    finally:
        close_channels()
    print(f"read after {took_s:.2f} s")
    assert rows == 1_000
    assert took_s < BOUND_S


@pytest.fixture(scope="module")
def go_samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the Go samples and return their directory."""
    if shutil.which("go") is None:
        pytest.skip("the Go toolchain is not installed")
    directory = tmp_path_factory.mktemp("go")
    command = ["go", "build", "-o", f"{directory}/", "./samples/failover", "./samples/consume"]
    built = subprocess.run(command, cwd=ROOT / "clients" / "go", capture_output=True, text=True, timeout=500)
    assert built.returncode == 0, built.stderr
    return directory


@pytest.mark.go
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_the_go_producer_and_consumer_continue_at_the_next_leader(cluster: LocalCluster, go_samples: Path) -> None:
    topic = ["-bootstrap", cluster.bootstrap, "-topic", "go"]
    programs: list[subprocess.Popen[str]] = []
    highest = [-1]
    """Largest offset of partition 0 that the consumer has printed."""

    def start(*command: str) -> subprocess.Popen[str]:
        programs.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return programs[-1]

    def follow(program: subprocess.Popen[str]) -> None:
        assert program.stdout is not None
        for line in program.stdout:
            partition, _, offset = line.partition(" ")[0].partition("/")
            if partition == "0":
                highest[0] = int(offset)

    def first_of_next_leader(epoch: int) -> int | None:
        """Return the start offset of the next leader's epoch in partition 0, None while no later leader responds."""
        found = admin.describe_leaders(admin.describe_topics(["go"]), timeout_ms=5_000).get(("go", 0))
        return None if found is None or found.leader_epoch <= epoch else found.leader_epoch_start_offset

    reader = None
    try:
        start(str(go_samples / "failover"), *topic, "-count", "1000000", "-rate", "500")
        with Admin(cluster.bootstrap) as admin:
            eventually(lambda: "go" in admin.list_topics(), LONG_S, "the producer has created the topic")
            reader = threading.Thread(target=follow, args=(start(str(go_samples / "consume"), *topic),))
            reader.start()
            eventually(lambda: highest[0] >= 10, LONG_S, "records are read")
            node = leader_in_full_isr(cluster, "go")
            epoch = admin.describe_topics(["go"])[0].partitions[0].leader_epoch
            with killed(cluster, node) as begin_s:
                first = eventually(lambda: first_of_next_leader(epoch), BOUND_S, "another broker leads")
                assert first is not None
                left_s = BOUND_S - (time.monotonic() - begin_s)
                eventually(lambda: highest[0] >= first, left_s, f"a record of the next leader is read, from {first} on")
                print(f"written and read after {time.monotonic() - begin_s:.2f} s")
        assert [program.poll() for program in programs] == [None, None]
    finally:
        for program in programs:
            program.kill()
            program.wait(timeout=60)
        if reader is not None:
            reader.join(60)
        for program in programs:
            assert program.stdout is not None
            program.stdout.close()
