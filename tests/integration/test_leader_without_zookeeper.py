"""A leader cut off from ZooKeeper alone does not contradict its successor to callers that believe any answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from paceline.dev.detached_cluster import why_not_serving
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, Node
from paceline.dev.ports import free_plan
from paceline.model.errors import ErrorCode
from paceline.v1 import log_service_pb2 as pb
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from paceline.v1.record_pb2 import Record, RecordList
from paceline_client import Admin
from tests.integration.tcp_proxy import TcpProxy
from tests.support.waiting import eventually

TOPIC = "told"
BROKERS = (1, 2, 3)
SESSION_MS = 4_000
ROUNDS = 3
READERS = 2
LONG_S = 120.0
PRODUCER_ID = 900_000


class ProxiedCluster(LocalCluster):
    """A cluster in which each broker reaches ZooKeeper through a proxy of its own."""

    proxies: dict[int, TcpProxy]

    def command_of(self, node: Node) -> list[str]:
        if node.kind != "broker":
            return node.argv
        return [*node.argv, f"--zookeeper-connect={self.proxies[node.node_id].address}/paceline"]


class Callers:
    """A writer of idempotent batches and readers that ask every broker in turn, whatever they know about leaders."""

    def __init__(self, addresses: dict[int, str]) -> None:
        self._channels = {one: grpc.insecure_channel(address) for one, address in addresses.items()}
        self._stubs = {one: LogServiceStub(channel) for one, channel in self._channels.items()}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.written = 0
        """Records acknowledged with acks=all."""
        self._told = 0
        self.answers: dict[int, int] = dict.fromkeys(addresses, 0)
        """End offsets that each broker has told."""
        self.contradictions: list[str] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._write)]
        threads += [threading.Thread(target=self._read) for _ in range(READERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
            for channel in self._channels.values():
                channel.close()

    def _write(self) -> None:
        while not self._over.is_set():
            records = RecordList(
                records=[Record(value=b"x")], producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=self.written
            )
            part = pb.ProducePartition(topic=TOPIC, partition=0, records=records)
            request = pb.ProduceRequest(acks=pb.ACKS_ALL, timeout_ms=400, partitions=[part])
            for one, stub in self._stubs.items():
                try:
                    error = stub.Produce(request, timeout=LONG_S).partitions[0].error
                except grpc.RpcError:
                    continue
                if error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    self._contradicts(one, f"refuses the valid sequence {self.written}: {error.message}")
                elif not error.code:
                    self.written += 1
                    break

    def _read(self) -> None:
        latest = pb.ListOffsetsPartition(topic=TOPIC, partition=0, spec=pb.OFFSET_SPEC_LATEST)
        while not self._over.is_set():
            for one, stub in self._stubs.items():
                try:
                    told = self._told
                    end = stub.ListOffsets(pb.ListOffsetsRequest(partitions=[latest]), timeout=LONG_S).partitions[0]
                    if not end.error.code:
                        self._ends(one, "LATEST", end.offset, told)
                    told = self._told
                    position = pb.FetchPartition(topic=TOPIC, partition=0, fetch_offset=told)
                    request = pb.FetchRequest(partitions=[position], max_wait_ms=0)
                    read = stub.Fetch(request, timeout=LONG_S).partitions[0]
                except grpc.RpcError:
                    continue
                if read.error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._contradicts(one, f"has no offset {told}: {read.error.message}")
                elif not read.error.code:
                    self._ends(one, "a high watermark", read.high_watermark, told)

    def _ends(self, broker_id: int, kind: str, offset: int, told: int) -> None:
        """Compare an end offset with the largest one told before its request was sent."""
        if offset < told:
            self._contradicts(broker_id, f"tells {kind} of {offset} after {told}")
        with self._lock:
            self._told = max(self._told, offset)
            self.answers[broker_id] += 1

    def _contradicts(self, broker_id: int, what: str) -> None:
        with self._lock:
            self.contradictions.append(f"broker {broker_id} {what}")


def leader_of(cluster: LocalCluster, asked: int) -> int:
    """Return the leader in a broker's metadata, 0 without one."""
    with Admin(cluster.broker(asked).client_address) as admin:
        return admin.describe_topics([TOPIC])[0].partitions[0].leader or 0


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_a_leader_without_zookeeper_and_its_successor_do_not_contradict_each_other(tmp_path: Path) -> None:
    settings = {
        "zookeeper.session.timeout.ms": str(SESSION_MS),
        "controller.broker.lease.ms": "9000",
        "auto.leader.rebalance.enable": "false",
    }
    plan = free_plan(1, len(BROKERS))
    cluster = ProxiedCluster(
        tmp_path, CONFIG_FILE, brokers=len(BROKERS), controllers=1, settings=settings, ports=plan, heap_mib=64
    )
    cluster.proxies = {one: TcpProxy("127.0.0.1", plan.zookeeper) for one in BROKERS}
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({TOPIC: (1, 3, {"min.insync.replicas": "2"})})
        callers = Callers({one: cluster.broker(one).client_address for one in BROKERS})
        with callers.running():
            eventually(lambda: callers.written > 10, LONG_S, "records are written")
            for _ in range(ROUNDS):
                old = leader_of(cluster, BROKERS[0])
                other = next(one for one in BROKERS if one != old)
                cluster.proxies[old].cut()
                eventually(lambda: leader_of(cluster, other) not in (0, old), LONG_S, "a successor is elected")  # noqa: B023
                with grpc.insecure_channel(cluster.broker(old).client_address) as channel:
                    eventually(lambda: why_not_serving(channel), LONG_S, "the old leader's proof is too old")
                written = callers.written
                eventually(lambda: callers.written > written, LONG_S, "the successor accepts records")  # noqa: B023
                cluster.proxies[old].heal()
                cluster.proxies[old].sever()
                eventually(lambda: leader_of(cluster, old) not in (0, old), LONG_S, "the old leader follows")  # noqa: B023
        assert not callers.contradictions, f"{len(callers.contradictions)}: {callers.contradictions[:5]}"
        assert all(callers.answers[one] for one in BROKERS if one == old) and callers.written
    finally:
        cluster.stop()
        for proxy in cluster.proxies.values():
            proxy.close()
