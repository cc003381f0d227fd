"""Replicas of a leader and of a follower move to another disk while their broker is killed (KIP-113)."""

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from paceline.coordination.errors import JavaNotFoundError
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.model.identifiers import TopicPartition
from paceline.runtime.embedded_zookeeper import java_path
from paceline.testing import PATIENT
from paceline_client import Admin, NewTopic, Producer
from tests.support.replica_files import read_high_watermarks
from tests.support.stub_client import StubClient
from tests.support.verified_load import VerifiedLoad
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.origin("S2-4")]

LONG_S = 120.0
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
BYTES = 1_000_000
NAMES = (f"moving-{number}" for number in count())
ROLES = {"leader": 0, "follower": 1}
"""Partition of the topic whose replica on broker 1 has this role."""


class Disks:
    """The two log directories of broker 1, and the directories of one partition in them."""

    def __init__(self, cluster: LocalCluster, topic: str, partition: int) -> None:
        self.old = cluster.directory / "broker-1" / "data"
        self.new = cluster.directory / "broker-1" / "data2"
        self.partition = TopicPartition(topic, partition)
        self.name = f"{topic}-{partition}"

    def future(self) -> Path | None:
        return next(self.new.glob(f"{self.name}.*-future"), None)

    def copied(self, share: float) -> bool:
        future = self.future()
        if future is None:
            return False
        try:
            return sum(path.stat().st_size for path in future.glob("*.log")) >= share * BYTES
        except FileNotFoundError:
            return False

    def deleted(self) -> bool:
        return any(self.old.glob(f"{self.name}.*-delete"))

    def high_watermark(self) -> int:
        """The highest checkpointed high watermark of the partition's current log."""
        found = [read_high_watermarks(one) for one in (self.old, self.new) if (one / self.name).exists()]
        return max(known.get(self.partition, -1) for known in found)

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in (*self.old.glob(f"{self.name}*"), *self.new.glob(f"{self.name}.*")))


POINTS: dict[str, Callable[[Disks], bool]] = {
    "the future log appears": lambda disks: disks.future() is not None,
    "the first batch is copied": lambda disks: disks.copied(0.0001),
    "a quarter is copied": lambda disks: disks.copied(0.25),
    "half is copied": lambda disks: disks.copied(0.5),
    "the checkpoint lists the future log": lambda disks: disks.partition in read_high_watermarks(disks.new),
    "most is copied": lambda disks: disks.copied(0.9),
    "the copy names its origin": lambda disks: bool(
        (future := disks.future() or disks.new / disks.name) and (future / "moved-from").exists()
    ),
    "the copy has its final name": lambda disks: (disks.new / disks.name).exists(),
    "the old log is marked for deletion": Disks.deleted,
    "the old log is deleted": lambda disks: (disks.new / disks.name).exists() and not disks.leftovers(),
}
"""Each condition is polled without a pause; the broker is killed when it holds."""
QUICK = {("leader", "half is copied"), ("follower", "the copy has its final name")}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    settings = {
        **PATIENT,
        "log.segment.delete.delay.ms": "1000",
        "replica.high.watermark.checkpoint.interval.ms": "500",
    }
    directory = tmp_path_factory.mktemp("disks")
    running = LocalCluster(directory, CONFIG_FILE, controllers=1, settings=settings, ports=free_plan(1, 3), heap_mib=64)
    running.start()
    node = running.broker(1)
    second = directory / "broker-1" / "data2"
    second.mkdir(mode=0o700)
    node.argv = [f"{one},{second}" if one.startswith("--log-dirs=") else one for one in node.argv]
    running.terminate(node)
    running.restart(node)
    yield running
    running.stop()


def fill(cluster: LocalCluster, topic: str) -> list[dict[int, bytes]]:
    """Write `BYTES` to each partition; return the values by offset."""
    values = [b"fill-%06d" % number + b"x" * 990 for number in range(BYTES // 1_000)]
    with Producer(cluster.bootstrap, batch_size=16_384) as producer:
        for partition in ROLES.values():
            producer.send_many(topic, [(None, value) for value in values], partition=partition).result(LONG_S)
    return [dict(enumerate(values)) for _ in ROLES]


@pytest.mark.parametrize(
    ("role", "point"),
    [
        pytest.param(role, point, marks=() if (role, point) in QUICK else pytest.mark.slow)
        for point in POINTS
        for role in ROLES
    ],
)
def test_a_broker_killed_in_a_move_loses_nothing(cluster: LocalCluster, role: str, point: str) -> None:
    topic, node = next(NAMES), cluster.broker(1)
    disks = Disks(cluster, topic, ROLES[role])
    with Admin(cluster.bootstrap) as admin:
        # Before the rest, so that the broker certainly has the rate when the move begins.
        admin.alter_broker_configs({1: {RATE: "60000" if "copied" in point or "lists" in point else "8000000"}})
        config = {"min.insync.replicas": "2", "segment.bytes": "200000"}
        admin.create_topics([NewTopic(topic, assignments=((1, 2, 3), (2, 1, 3)), configs=config)])
        eventually(lambda: len(directories(admin, topic)) == len(ROLES), LONG_S, "the replicas are created")
        admin.alter_replica_log_dirs({(topic, index, 1): str(disks.old) for index in ROLES.values()})
        eventually(lambda: set(directories(admin, topic)) == {str(disks.old)}, LONG_S, "both are in one directory")
        filled = fill(cluster, topic)
        eventually(lambda: disks.high_watermark() >= len(filled[0]), LONG_S, "the high watermark is checkpointed")
        committed = disks.high_watermark()
        with VerifiedLoad(cluster.bootstrap.split(","), topic, len(ROLES), idempotent=True) as load:
            eventually(lambda: load.count() > 100, LONG_S, "the load writes")
            move_until(admin, disks, POINTS[point])
            cluster.kill(node)
            assert disks.high_watermark() >= committed
            cluster.restart(node)
            admin.alter_broker_configs({1: {RATE: None}})
            before = load.count()
            eventually(lambda: load.count() > before + 100, LONG_S, "the load writes again")
            eventually(lambda: (disks.new / disks.name).exists(), LONG_S, "the move is completed")
            eventually(lambda: not disks.leftovers(), LONG_S, "only the moved copy is left")
        admin.alter_partition_reassignments({(topic, 1): (1, 2, 3)})
        eventually(lambda: is_led_by_broker_1(admin, topic), LONG_S, "broker 1 leads, so that reads are of its copy")
    acknowledged = load.acknowledged[ROLES[role]] | filled[ROLES[role]]
    with StubClient(cluster.bootstrap.split(",")) as reader:
        there = reader.read_all(topic, ROLES[role], max(acknowledged) + 1)
    assert {offset: there.get(offset) for offset in acknowledged} == acknowledged
    assert len(there.values()) == len(set(there.values())), "no record is there twice"


def move_until(admin: Admin, disks: Disks, is_reached: Callable[[Disks], bool]) -> None:
    """Move the replica until a condition holds; a short-lived condition may be missed, then move it again."""
    replica = (*disks.partition, 1)
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        admin.alter_replica_log_dirs({replica: str(disks.new)})
        while time.monotonic() < deadline:
            if is_reached(disks):
                return
            if (disks.new / disks.name).exists() and not disks.leftovers():
                break
        admin.alter_replica_log_dirs({replica: str(disks.old)})
        eventually(lambda: not (disks.new / disks.name).exists(), LONG_S, "the replica has moved back")
        eventually(lambda: (disks.old / disks.name).exists(), LONG_S, "the replica has moved back")
    raise AssertionError(f"the condition was never seen; there is {disks.leftovers()}")


def directories(admin: Admin, topic: str) -> list[str]:
    """Return the directories of broker 1 that hold replicas of the topic, one for each."""
    (broker,) = admin.describe_log_dirs([1])
    return [
        log_dir.path
        for log_dir in broker.log_dirs
        for replica in log_dir.replicas
        if replica.topic_partition.topic == topic and not replica.is_future
    ]


def is_led_by_broker_1(admin: Admin, topic: str) -> bool:
    admin.elect_leaders("preferred", [(topic, index) for index in ROLES.values()], raise_errors=False)
    (described,) = admin.describe_topics([topic])
    return [one.leader for one in described.partitions] == [1, 1]
