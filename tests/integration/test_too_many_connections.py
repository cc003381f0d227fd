"""Many connections do not use up the file descriptors that the log needs."""

import contextlib
import resource
import socket
import urllib.request
from pathlib import Path

import grpc

from paceline.v1 import admin_service_pb2 as admin_pb
from paceline.v1 import errors_pb2
from paceline.v1 import log_service_pb2 as log_pb
from tests.integration.test_broker_process import (
    LONG_S,
    Broker,
    Process,
    Stubs,
    processes,
    produce,
    started,
    until,
    zookeeper,
)

__all__ = ["processes", "zookeeper"]

DESCRIPTORS = 300
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server has closed the connection."""
    try:
        return connection.recv(4_096) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_broker_continues_to_write_with_more_connections_than_descriptors(
    zookeeper: str, tmp_path: Path, processes: contextlib.ExitStack
) -> None:
    connect = f"{zookeeper}/connections"
    controller = started(processes, Process("controller", tmp_path, connect))
    flags = ("--broker-id=1", "--metrics-port=0", "--log-segment-bytes=1000", "--min-insync-replicas=1")
    broker = started(processes, Broker(tmp_path, connect, "data", *flags))
    resource.prlimit(broker.popen.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    broker.ready()
    stubs = Stubs(processes)
    topic = admin_pb.NewTopic(name="rides", partitions=1, replication_factor=1)
    request = admin_pb.CreateTopicsRequest(topics=[topic], timeout_ms=int(LONG_S * 1000))
    address = controller.wait_said(r"CLIENT://([^,\s]+)")[1]

    def is_created() -> bool:
        try:
            (created,) = stubs.admin(address).CreateTopics(request, timeout=LONG_S).topics
        except grpc.RpcError:  # no controller is active yet, or it does not know the broker
            return False
        return not created.HasField("error") or created.error.code == errors_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS

    until(is_created)
    write = log_pb.ProduceRequest(partitions=[log_pb.ProducePartition(topic="rides")])
    write.partitions[0].records.records.add(value=bytes(600))
    assert produce(stubs, broker.client, write) == 0

    host, _, port = broker.client.rpartition(":")
    crowd = []
    for _ in range(DESCRIPTORS + 50):
        connection = processes.enter_context(socket.create_connection((host, int(port)), timeout=0.05))
        with contextlib.suppress(OSError):
            connection.sendall(HTTP2_HELLO)
        crowd.append(connection)
    until(lambda: any(map(is_closed, crowd)), 10.0)

    for offset in range(1, 40):  # each batch opens a new segment
        assert produce(stubs, broker.client, write) == offset
    metrics = broker.wait_said(r"metrics=(\d+)")[1]

    def text() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=LONG_S) as answer:
            found: str = answer.read().decode()
            return found

    def number(name: str) -> float:
        lines = dict(line.rsplit(" ", 1) for line in text().splitlines())
        return float(lines.get(f'{name}{{listener="CLIENT"}}', 0))

    assert f"process_max_fds {DESCRIPTORS}.0" in text()
    assert "paceline_offline_log_directories 0.0" in text()
    until(lambda: number("paceline_connections") > 0)  # connections are counted once a second
    assert number("paceline_connections") <= number("paceline_connections_max") < DESCRIPTORS / 2
    assert broker.popen.poll() is None
