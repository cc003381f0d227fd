"""Rows S1-12, S3-1 and S3-7 to S3-9 on real processes: brokers that end, and partitions with one replica."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from kazoo.client import KazooClient

from paceline.coordination import znodes
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.model.errors import LeaderNotAvailableError
from paceline.model.settings import BrokerConfig
from paceline.model.state_change import StateChangeKind
from paceline.v1 import errors_pb2, log_service_pb2_grpc, metadata_service_pb2_grpc
from paceline.v1 import log_service_pb2 as log_pb
from paceline.v1 import metadata_service_pb2 as metadata_pb
from paceline_client import Admin, NewTopic, Producer, RecordFuture
from tests.integration.test_broker_process import (
    LONG_S,
    SHORT_SESSION_MS,
    Broker,
    Process,
    Stubs,
    started,
    until,
    wait_for_controller,
)
from tests.support.embedded_zookeeper import embedded_zookeeper
from tests.support.stub_client import StubClient

TICK_MS = 500
SLACK_S = 40.0
"""A busy machine stretches everything."""
IN_FLIGHT = 5


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[str]:
    with embedded_zookeeper(tmp_path / "zookeeper") as server:
        yield server.address


@pytest.mark.origin("S3-1")
@pytest.mark.cluster
@pytest.mark.zookeeper
def test_a_killed_brokers_node_is_deleted_with_its_session_and_a_stopped_ones_at_once(
    zookeeper: str, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        client = KazooClient(zookeeper, timeout=30.0)
        client.start(timeout=60)
        stack.callback(client.close)
        stack.callback(client.stop)
        connect = f"{zookeeper}/rows"
        session = f"--zookeeper-session-timeout-ms={SHORT_SESSION_MS}"
        controller = started(stack, Process("controller", tmp_path, connect, "--controller-id=1000000"))
        brokers = {
            number: started(stack, Broker(tmp_path, connect, f"b{number}", f"--broker-id={number}", session))
            for number in (1, 2, 3)
        }
        addresses = {number: broker.ready().client for number, broker in brokers.items()}
        wait_for_controller(Stubs(stack), addresses[1])

        def node(number: int) -> str:
            return f"/rows/brokers/ids/{number}"

        for number in brokers:
            data, stat = client.get(node(number))
            assert stat.ephemeralOwner and json.loads(data)["endpoints"]
        assert sorted(client.get_children("/rows/brokers/ids")) == ["1", "2", "3"]

        killed_s = time.monotonic()
        brokers[1].popen.send_signal(signal.SIGKILL)
        brokers[1].popen.wait(LONG_S)
        assert client.exists(node(1)), "the node outlives the process"
        until(lambda: client.exists(node(1)) is None)
        took_s = time.monotonic() - killed_s
        # The last heartbeat may have come up to a third of the timeout before the end, and later on a busy machine.
        assert SHORT_SESSION_MS * 0.4 <= took_s * 1000 <= SHORT_SESSION_MS + TICK_MS + SLACK_S * 1000
        controller.wait_said(r"dead=\[1\]")

        stopped_s = time.monotonic()
        assert brokers[2].stop() == 0
        assert client.exists(node(2)) is None, "the node is deleted before the process ends"
        assert time.monotonic() - stopped_s < LONG_S
        controller.wait_said(r"dead=\[2\]")
        assert client.get_children("/rows/brokers/ids") == ["3"]


@pytest.mark.origin("S3-9")
@pytest.mark.cluster
@pytest.mark.zookeeper
def test_a_sigterm_moves_leaders_before_the_broker_leaves_and_single_replicas_do_not_delay_it(
    zookeeper: str, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        client = KazooClient(zookeeper, timeout=30.0)
        client.start(timeout=60)
        stack.callback(client.close)
        stack.callback(client.stop)
        connect = f"{zookeeper}/shutdown"
        session = "--zookeeper-session-timeout-ms=30000"
        started(stack, Process("controller", tmp_path, connect, "--controller-id=1000000"))
        brokers = {
            number: started(stack, Broker(tmp_path, connect, f"b{number}", f"--broker-id={number}", session))
            for number in (1, 2)
        }
        for broker in brokers.values():
            broker.ready()
        for topic, replicas in ("both", [2, 1]), ("single", [2]):
            data = json.dumps({"version": 1, "partitions": {"0": replicas}}).encode()
            client.create(f"/shutdown/brokers/topics/{topic}", data)

        def state_of(topic: str) -> tuple[dict[str, Any], Any]:
            data, stat = client.get(f"/shutdown/brokers/topics/{topic}/partitions/0/state")
            return json.loads(data), stat

        def is_led_by_2(topic: str) -> bool:
            path = f"/shutdown/brokers/topics/{topic}/partitions/0/state"
            return client.exists(path) is not None and state_of(topic)[0]["leader"] == 2

        until(lambda: is_led_by_2("both") and is_led_by_2("single"))
        until(lambda: sorted(state_of("both")[0]["isr"]) == [1, 2])
        stopped_s = time.monotonic()
        assert brokers[2].stop() == 0
        assert time.monotonic() - stopped_s < LONG_S
        moved, moved_stat = state_of("both")
        assert (moved["leader"], moved["isr"]) == (1, [1])
        _, registrations = client.get("/shutdown/brokers/ids")
        assert moved_stat.mzxid < registrations.pzxid, "the leader had moved before the registration was deleted"
        assert state_of("single")[0]["isr"] == [2], "the only replica stays in the ISR, so that it can lead again"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One controller and three brokers."""
    running = LocalCluster(
        tmp_path_factory.mktemp("cluster"),
        CONFIG_FILE,
        controllers=1,
        settings={"replica.lag.time.max.ms": "15000"},
        ports=free_plan(1, 3),
        heap_mib=64,
    )
    running.start()
    try:
        yield running
    finally:
        running.stop(force=True)


def single_replica(topic: str, broker_id: int) -> NewTopic:
    return NewTopic(topic, assignments=[[broker_id]], configs={"min.insync.replicas": "1"})


def described(address: str, topic: str) -> metadata_pb.PartitionDescription:
    """Partition 0 in the metadata of one broker."""
    with grpc.insecure_channel(address) as channel:
        asked = metadata_pb.DescribeTopicsRequest(topics=[topic])
        (found,) = metadata_service_pb2_grpc.MetadataServiceStub(channel).DescribeTopics(asked, timeout=LONG_S).topics
    return found.partitions[0]


def written(address: str, topic: str) -> errors_pb2.PartitionError:
    """Send one write to one broker; return the error of its answer."""
    request = log_pb.ProduceRequest(
        acks=log_pb.ACKS_ALL, timeout_ms=1_000, partitions=[log_pb.ProducePartition(topic=topic)]
    )
    request.partitions[0].records.records.add(value=b"refused")
    with grpc.insecure_channel(address) as channel:
        (result,) = log_service_pb2_grpc.LogServiceStub(channel).Produce(request, timeout=LONG_S).partitions
    return result.error


@pytest.mark.origin("S3-7")
@pytest.mark.cluster
@pytest.mark.zookeeper
def test_every_broker_answers_leader_not_available_until_the_single_replica_returns(cluster: LocalCluster) -> None:
    state_path = f"{znodes.TOPICS}/one/partitions/0/state"
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(Admin(cluster.bootstrap))
        admin.create_topics([single_replica("one", 3)])
        producer = stack.enter_context(Producer(cluster.bootstrap, linger_ms=0))
        assert producer.send("one", b"a").result(LONG_S).offset == 0
        others = [cluster.broker(number).client_address for number in (1, 2)]
        cluster.kill(cluster.broker(3))
        for address in others:
            until(lambda at=address: not described(at, "one").HasField("leader"))  # type: ignore[misc]
            partition = described(address, "one")
            assert partition.error.code == errors_pb2.ERROR_CODE_LEADER_NOT_AVAILABLE
            assert (list(partition.isr), list(partition.offline_replicas)) == ([3], [3])
            refused = written(address, "one")
            assert refused.code == errors_pb2.ERROR_CODE_LEADER_NOT_AVAILABLE and not refused.HasField("current_leader")
        client = KazooClient(cluster.zookeeper_connect, timeout=30.0)
        client.start(timeout=60)
        stack.callback(client.close)
        stack.callback(client.stop)
        state = json.loads(client.get(state_path)[0])
        assert state == {**state, "leader": -1, "leader_epoch": 1, "isr": [3]}
        # A producer receives the same error, and one that may wait longer continues when the replica returns.
        with Producer(cluster.bootstrap, linger_ms=0, delivery_timeout_ms=4_000, request_timeout_ms=2_000) as hasty:
            failure = hasty.send("one", b"never").exception(LONG_S)
            assert failure is not None and isinstance(failure.__cause__, LeaderNotAvailableError)
        waiting = producer.send("one", b"b")
        assert not waiting.done()
        cluster.restart(cluster.broker(3))
        assert waiting.result(LONG_S).offset == 1
        state = json.loads(client.get(state_path)[0])
        assert state == {**state, "leader": 3, "leader_epoch": 2, "isr": [3]}


class Load:
    """Keeps `IN_FLIGHT` batches of one record in flight to a partition, in its own thread, while the block runs."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.sent: list[tuple[bytes, RecordFuture]] = []
        self._producer = producer
        self._topic = topic
        self._free = threading.Semaphore(IN_FLIGHT)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(LONG_S)

    def _run(self) -> None:
        while not self._over.is_set():
            if self._free.acquire(timeout=1.0):
                value = b"%07d" % len(self.sent)
                future = self._producer.send(self._topic, value, partition=0, on_delivery=self._delivered)
                self.sent.append((value, future))

    def _delivered(self, _metadata: object, _error: object) -> None:
        self._free.release()

    def writes(self, count: int) -> None:
        """Wait for more acknowledged records."""
        end = len(self.sent) + count + IN_FLIGHT

        def written() -> bool:
            if self._thread.is_alive():
                return len(self.sent) >= end
            raise AssertionError(f"the producer ended with {self.sent[-1][1].exception(LONG_S)}")

        until(written)


@pytest.mark.origin("S3-8")
@pytest.mark.cluster
@pytest.mark.zookeeper
def test_a_single_replica_moves_under_load_and_its_broker_stops_without_an_error_of_a_client(
    cluster: LocalCluster,
) -> None:
    """The new replica needs several fetches, and several batches of one producer are in flight.

    tests/containers/test_operations.py moves partitions of a cluster of containers.
    """
    old = [b"old-%d" % number + b"x" * 10_000 for number in range(600)]
    assert sum(map(len, old)) > 5 * BrokerConfig(1).replica_fetch_max_bytes
    with (
        Admin(cluster.bootstrap) as admin,
        Producer(cluster.bootstrap, linger_ms=0, max_in_flight=IN_FLIGHT) as producer,
    ):
        admin.create_topics([single_replica("moving", 1)])
        for value in old:
            producer.send("moving", value, partition=0)
        producer.flush()
        with Load(producer, "moving") as load:
            load.writes(200)
            admin.alter_partition_reassignments({("moving", 0): [2]})
            until(lambda: not admin.list_partition_reassignments([("moving", 0)]))
            moved = admin.describe_topics(["moving"], from_controller=True)[0].partitions[0]
            assert (moved.leader, moved.replicas, moved.isr) == (2, (2,), (2,))
            load.writes(200)
            try:
                assert cluster.terminate(cluster.broker(1)) == 0
                load.writes(200)
            finally:
                cluster.restart(cluster.broker(1))
        offsets = [future.result(LONG_S).offset for _, future in load.sent]
    assert offsets == list(range(len(old), len(old) + len(offsets))), "each record once, in the order of its send"
    with StubClient(cluster.bootstrap.split(",")) as reader:
        read = reader.read_all("moving", 0, len(old) + len(offsets))
    assert [read[offset] for offset in sorted(read)] == old + [value for value, _ in load.sent]


def changes(cluster: LocalCluster, broker_id: int, kind: StateChangeKind, topic: str) -> list[dict[str, Any]]:
    """The state changes of one kind that a broker has logged about partition 0, oldest first."""
    text = (cluster.directory / f"broker-{broker_id}" / "state-change.log").read_text(encoding="utf-8")
    found = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [one for one in found if (one.get("kind"), one.get("topic"), one.get("partition")) == (kind.value, topic, 0)]


@pytest.mark.origin("S1-12")
@pytest.mark.cluster
@pytest.mark.zookeeper
def test_an_orderly_stop_moves_the_leader_and_then_closes(
    cluster: LocalCluster, record_property: Callable[[str, object], None]
) -> None:
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topics([NewTopic("stopped", assignments=[[2, 1, 3]])])
        producer.send("stopped", b"before").result(LONG_S)
        until(lambda: len(admin.describe_topics(["stopped"])[0].partitions[0].isr) == 3)
        begun_ms = time.time() * 1_000
        assert cluster.terminate(cluster.broker(2)) == 0
        ended_ms = time.time() * 1_000
        try:
            until(lambda: bool(changes(cluster, 1, StateChangeKind.BECAME_LEADER, "stopped")))
            (moved,) = changes(cluster, 1, StateChangeKind.BECAME_LEADER, "stopped")
            # All clocks are this machine's; a state change has whole milliseconds.
            assert begun_ms - 1 <= moved["wall_ms"] <= ended_ms
            producer.send("stopped", b"after").result(LONG_S)
        finally:
            cluster.restart(cluster.broker(2))
    record_property("real processes, orderly stop: leader moved (ms)", round(moved["wall_ms"] - begun_ms))
    record_property("real processes, orderly stop: closed (ms)", round(ended_ms - moved["wall_ms"]))


LONGER_THAN_A_FETCH_WAITS_MS = 1_000


def since_last_fetches(address: str, leader: int, topic: str) -> list[int]:
    """Return how many milliseconds ago each follower of partition 0 fetched, as its leader says."""
    request = metadata_pb.DescribeReplicasRequest(topic=topic, partitions=[0])
    with grpc.insecure_channel(address) as channel:
        answer = metadata_service_pb2_grpc.MetadataServiceStub(channel).DescribeReplicas(request, timeout=LONG_S)
    return [one.last_fetch_ago_ms for one in answer.partitions[0].replicas if one.broker_id != leader]


@pytest.mark.origin("S1-12")
@pytest.mark.cluster
@pytest.mark.zookeeper
def test_a_leader_that_returns_truncates_what_its_successor_lacks(
    cluster: LocalCluster, record_property: Callable[[str, object], None]
) -> None:
    followers = [cluster.broker(number) for number in (1, 2)]
    address = cluster.bootstrap.split(",")[2]
    with (
        Admin(cluster.bootstrap) as admin,
        Producer(cluster.bootstrap) as producer,
        Producer(cluster.bootstrap, acks="leader", linger_ms=0) as alone,
    ):
        admin.create_topics([NewTopic("truncated", assignments=[[3, 1, 2]])])
        # `alone` finds the leader now: later it would ask brokers that stand still, until the ISR is the leader alone.
        alone.send("truncated", b"first").result(LONG_S)
        producer.send("truncated", b"committed").result(LONG_S)
        until(lambda: len(admin.describe_topics(["truncated"])[0].partitions[0].isr) == 3)
        for follower in followers:
            cluster.pause(follower)
        try:
            # The leader has answered the fetches that waited: none of them carries the next record to a follower.
            until(lambda: min(since_last_fetches(address, 3, "truncated")) > LONGER_THAN_A_FETCH_WAITS_MS)
            assert alone.send("truncated", b"uncommitted").result(LONG_S).offset == 2
            cluster.kill(cluster.broker(3))
        finally:
            for follower in followers:
                cluster.resume(follower)
        assert producer.send("truncated", b"after").result(LONG_S).offset == 2
        cluster.restart(cluster.broker(3))
        until(lambda: bool(changes(cluster, 3, StateChangeKind.TRUNCATED, "truncated")))
        (truncated,) = changes(cluster, 3, StateChangeKind.TRUNCATED, "truncated")
        following = changes(cluster, 3, StateChangeKind.BECAME_FOLLOWER, "truncated")[-1]
        assert truncated["leader_epoch"] == following["leader_epoch"] > 0
        until(lambda: 3 in admin.describe_topics(["truncated"])[0].partitions[0].isr)
    with StubClient(cluster.bootstrap.split(",")) as reader:
        assert list(reader.read_all("truncated", 0, 3).values()) == [b"first", b"committed", b"after"]
    record_property("real processes, truncation (ms)", truncated["wall_ms"] - following["wall_ms"])
