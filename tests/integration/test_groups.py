"""Consumer groups on real processes: members that join, leave and fail, and a coordinator that is killed."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.model.errors import InvalidRequestError
from paceline.v1.group_service_pb2 import FindCoordinatorRequest
from paceline.v1.group_service_pb2_grpc import GroupServiceStub
from paceline_client import (
    Admin,
    CommitFailedError,
    Consumer,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(240)

QUICK = {"heartbeat_interval_ms": 200, "session_timeout_ms": 3_000, "auto_commit_interval_ms": 200}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = LocalCluster(tmp_path_factory.mktemp("groups"), CONFIG_FILE, ports=free_plan(2, 3), heap_mib=64)
    running.start()
    yield running
    running.stop(force=True)


def topic_with(cluster: LocalCluster, name: str, partitions: int, records: int = 0) -> str:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions=partitions, replication_factor=3)])
    produce(cluster, name, range(records), partitions)
    return name


def produce(cluster: LocalCluster, topic: str, values: Sequence[int], partitions: int) -> None:
    with Producer(cluster.bootstrap) as producer:
        for value in values:
            producer.send(topic, b"%d" % value, partition=value % partitions)
        producer.flush()


class Member(threading.Thread):
    """A consumer that polls on its own thread until `stop`, which leaves the group, or `die`, which does not."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: object) -> None:
        super().__init__(daemon=True)
        self.consumer = Consumer(bootstrap, group_id=group, **{**QUICK, **settings})  # type: ignore[arg-type]
        self.seen: Counter[bytes] = Counter()
        self.failed: Exception | None = None
        self._topic, self._over = topic, threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self.consumer.subscribe([self._topic])
            while not self._over.is_set():
                for records in self.consumer.poll(100).values():
                    self.seen.update(record.value for record in records if record.value is not None)
        except Exception as error:
            self.failed = error

    @property
    def owned(self) -> list[int]:
        return sorted(tp.partition for tp in self.consumer.assignment())

    def stop(self) -> None:
        self._over.set()
        self.join(10)
        self.consumer.close()
        assert self.failed is None, self.failed

    def die(self) -> None:
        """Stop polls and heartbeats without leaving the group, as a killed process does."""
        self._over.set()
        self.join(10)
        group = self.consumer._group
        assert group is not None
        assert group._heartbeats is not None
        group._heartbeats.close()


def shared(members: Sequence[Member], partitions: int) -> bool:
    owned = [index for member in members for index in member.owned]
    return sorted(owned) == list(range(partitions)) and all(member.owned for member in members)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_members_share_the_partitions_as_they_join_leave_and_die(cluster: LocalCluster, assignor: str) -> None:
    topic = topic_with(cluster, f"shared-{assignor}", 6, 60)
    strategy = {"partition_assignment_strategy": [assignor]}
    first = Member(cluster.bootstrap, topic, topic, **strategy)
    eventually(lambda: len(first.seen) == 60, 30, "all records were read")
    second, third = (Member(cluster.bootstrap, topic, topic, **strategy) for _ in range(2))
    eventually(lambda: shared([first, second, third], 6), 30, "the partitions are shared")
    third.stop()
    eventually(lambda: shared([first, second], 6), 30, "the partitions are shared")
    second.die()
    eventually(lambda: shared([first], 6), 30, "the partitions are shared")
    produce(cluster, topic, range(60, 90), 6)
    eventually(lambda: len(first.seen) == 90, 30, "all records were read")
    first.stop()
    assert set(first.seen.values()) == {1}, "no record was handed out twice to the member that stayed"


def test_new_consumer_begins_where_the_group_has_committed(cluster: LocalCluster) -> None:
    topic = topic_with(cluster, "resumed", 2, 20)
    with Consumer(cluster.bootstrap, group_id="resumed", enable_auto_commit=False, **QUICK) as consumer:  # type: ignore[arg-type]
        consumer.subscribe([topic])
        seen = 0
        while seen < 20:
            seen += sum(map(len, consumer.poll(500).values()))
        tp = TopicPartition(topic, 0)
        consumer.commit({tp: OffsetAndMetadata(4, "half way"), TopicPartition(topic, 1): 10})
        assert consumer.committed([tp]) == {tp: OffsetAndMetadata(4, "half way", None)}
    with Consumer(cluster.bootstrap, group_id="resumed", **QUICK) as consumer:  # type: ignore[arg-type]
        consumer.subscribe([topic])
        records = [record.offset for _ in range(4) for one in consumer.poll(500).values() for record in one]
    assert records == [4, 5, 6, 7, 8, 9]


def test_records_that_iteration_has_not_yielded_are_not_committed(cluster: LocalCluster) -> None:
    topic = topic_with(cluster, "iterated", 1, 10)
    for expected in ([b"0", b"1", b"2"], [b"3", b"4", b"5"]):
        found = []
        with Consumer(cluster.bootstrap, group_id="iterated", **QUICK) as consumer:  # type: ignore[arg-type]
            consumer.subscribe([topic])
            for record in consumer:
                found.append(record.value)
                if len(found) == 3:
                    break
        assert found == expected


def test_asynchronous_commits_arrive_in_order_and_call_back(cluster: LocalCluster) -> None:
    topic = topic_with(cluster, "asynchronous", 1, 5)
    tp = TopicPartition(topic, 0)
    told: list[tuple[int, object]] = []
    with Consumer(cluster.bootstrap, group_id="asynchronous", enable_auto_commit=False, **QUICK) as consumer:  # type: ignore[arg-type]
        consumer.subscribe([topic])
        while not consumer.poll(500):
            pass
        for offset in range(1, 6):
            consumer.commit_async({tp: offset}, lambda offsets, error: told.append((offsets[tp].offset, error)))
        eventually(lambda: consumer.poll(50) is not None and len(told) == 5, 10, "records were polled")
        assert told == [(offset, None) for offset in range(1, 6)]
        assert consumer.committed([tp])[tp] == OffsetAndMetadata(5)


def test_listener_is_called_and_pattern_finds_later_topics(cluster: LocalCluster) -> None:
    topic_with(cluster, "pattern-1", 1, 3)

    class Listener(RebalanceListener):
        def __init__(self) -> None:
            self.calls: list[tuple[str, list[str]]] = []

        def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            self.calls.append(("assigned", sorted(one.topic for one in partitions)))

        def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            self.calls.append(("revoked", sorted(one.topic for one in partitions)))

    listener = Listener()
    consumer = Consumer(cluster.bootstrap, group_id="pattern", metadata_max_age_ms=500, **QUICK)  # type: ignore[arg-type]
    consumer.subscribe(pattern=r"pattern-\d", listener=listener)
    eventually(lambda: bool(consumer.poll(200)), 20, "records were polled")
    topic_with(cluster, "pattern-2", 1, 3)
    eventually(lambda: any(tp.topic == "pattern-2" for tp in consumer.poll(200)), 20, "records were polled")
    consumer.close()
    assert listener.calls[:3] == [
        ("assigned", ["pattern-1"]),
        ("revoked", ["pattern-1"]),
        ("assigned", ["pattern-1", "pattern-2"]),
    ]
    assert listener.calls[-1] == ("revoked", ["pattern-1", "pattern-2"])


def test_member_that_polls_too_seldom_loses_its_partitions(cluster: LocalCluster) -> None:
    topic = topic_with(cluster, "seldom", 2, 4)
    settings = {**QUICK, "max_poll_interval_ms": 1_000}
    slow = Consumer(cluster.bootstrap, group_id="seldom", enable_auto_commit=False, **settings)  # type: ignore[arg-type]
    slow.subscribe([topic])
    eventually(lambda: bool(slow.poll(200)), 20, "records were polled")
    other = Member(cluster.bootstrap, "seldom", topic)
    eventually(lambda: shared([other], 2), 20, "the partitions are shared")
    with pytest.raises(CommitFailedError):
        slow.commit({TopicPartition(topic, 0): 2})
    eventually(lambda: slow.poll(100) is not None and len(slow.assignment()) == 1, 20, "records were polled")
    slow.close()
    other.stop()


def test_static_member_that_restarts_causes_no_rebalance(cluster: LocalCluster) -> None:
    topic = topic_with(cluster, "static", 4, 4)
    stays = Member(cluster.bootstrap, "static", topic, group_instance_id="a", session_timeout_ms=20_000)
    restarts = Member(cluster.bootstrap, "static", topic, group_instance_id="b", session_timeout_ms=20_000)
    eventually(lambda: shared([stays, restarts], 4), 30, "the partitions are shared")
    before, owned = stays.consumer.generation, restarts.owned
    restarts.stop()
    again = Member(cluster.bootstrap, "static", topic, group_instance_id="b", session_timeout_ms=20_000)
    eventually(lambda: again.owned == owned, 20, "the member owns its partitions again")
    assert stays.consumer.generation == again.consumer.generation == before
    again.stop()
    stays.stop()


def test_group_survives_the_death_of_its_coordinator(cluster: LocalCluster) -> None:
    topic = topic_with(cluster, "bereaved", 4, 40)
    with Consumer(cluster.bootstrap) as probe:
        stub = GroupServiceStub(probe._channels.get(cluster.bootstrap.split(",")[0]))
        members = [Member(cluster.bootstrap, "bereaved", topic) for _ in range(2)]
        eventually(
            lambda: shared(members, 4) and sum(len(one.seen) for one in members) >= 40, 40, "the partitions are shared"
        )
        coordinator = stub.FindCoordinator(FindCoordinatorRequest(group_id="bereaved")).broker_id
    committed_before = members[0].consumer.committed([TopicPartition(topic, index) for index in range(4)])
    node = cluster.nodes[f"broker-{coordinator}"]
    cluster.kill(node)
    try:
        with Producer(cluster.bootstrap) as producer:
            for value in range(40, 80):
                producer.send(topic, b"%d" % value, partition=value % 4)
            producer.flush()
        eventually(lambda: len(members[0].seen | members[1].seen) == 80, 60, "all records were read")
        committed = members[0].consumer.committed(committed_before)
        for tp, before in committed_before.items():
            after = committed[tp]
            assert before is None or (after is not None and after.offset >= before.offset), tp
        eventually(lambda: shared(members, 4), 30, "the partitions are shared")
    finally:
        cluster.restart(node)
        cluster.wait_ready(node, 60)
    for member in members:
        member.stop()


def test_invalid_calls_are_refused_at_once(cluster: LocalCluster) -> None:
    for settings in ({"group_id": ""}, {"group_id": "g", "heartbeat_interval_ms": 50_000}):
        with pytest.raises(InvalidRequestError):
            Consumer(cluster.bootstrap, **settings)  # type: ignore[arg-type]
    with Consumer(cluster.bootstrap) as consumer:
        with pytest.raises(InvalidRequestError, match="group_id"):
            consumer.commit()
        with pytest.raises(InvalidRequestError, match="group_id"):
            consumer.subscribe(pattern="x")
    with Consumer(cluster.bootstrap, group_id="g") as consumer, pytest.raises(InvalidRequestError, match="pattern"):
        consumer.subscribe(["a"], pattern="b")


def test_rebalance_with_all_members_alive_ends_within_two_heartbeats(cluster: LocalCluster) -> None:
    topic = topic_with(cluster, "prompt", 4)
    first = Member(cluster.bootstrap, "prompt", topic, heartbeat_interval_ms=2_000, session_timeout_ms=10_000)
    eventually(lambda: shared([first], 4), 20, "the partitions are shared")
    begin = time.monotonic()
    second = Member(cluster.bootstrap, "prompt", topic, heartbeat_interval_ms=2_000, session_timeout_ms=10_000)
    eventually(lambda: shared([first, second], 4), 20, "the partitions are shared")
    assert time.monotonic() - begin < 2 * 2.0
    second.stop()
    first.stop()


def test_cluster_of_one_broker_has_groups(tmp_path: Path) -> None:
    """One broker serves groups although the defaults are three replicas and min.insync.replicas=2."""
    alone = LocalCluster(tmp_path, CONFIG_FILE, brokers=1, controllers=1, ports=free_plan(1, 1), heap_mib=64)
    alone.start()
    try:
        with Admin(alone.bootstrap) as admin:
            new = NewTopic("solo", partitions=1, replication_factor=1, configs={"min.insync.replicas": "1"})
            admin.create_topics([new])
        produce(alone, "solo", range(3), 1)
        member = Member(alone.bootstrap, "solo", "solo")
        eventually(lambda: len(member.seen) == 3, 30, "all records were read")
        member.consumer.commit({TopicPartition("solo", 0): 2})
        member.stop()
    finally:
        alone.stop(force=True)
