"""Attacks on a secure cluster, one for each way in which a caller could stall or kill a node; see `tests.soak.hostile`.

Each runs until its process ends, and counts its connections, streams, messages or calls.
"""

import contextlib
import gzip
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from paceline.model.tls import TlsFiles
from paceline.rpc.channels import open_channel
from paceline.rpc.security.client_tls import client_credentials
from paceline.v1 import group_service_pb2 as group_pb
from paceline.v1 import log_service_pb2 as log_pb
from paceline_client import Admin, Producer

SOCKETS, STREAMS, SENDERS, INFLATED_BYTES = 4_400, 200, 12, 60 << 20
NOISE, NOISE_PARTITIONS = "noise", 200
"""The topic of the attacker, besides the one of the bystander."""
GROUPS, UNKNOWN_TOPICS, WAITING_FETCHES = 8, 5_000, 400
MEMBER_BYTES = (60 << 10, 60 << 10, 60 << 10, 3_500_000)
_CALLS = {
    "broker-1 CONTROL": "/paceline.internal.v1.ReplicaManagerService/LeaderAndIsr",
    "broker-1 REPLICATION": "/paceline.internal.v1.ReplicationService/Fetch",
    "controller-1000000 CONTROL": "/paceline.internal.v1.ControllerService/BrokerHeartbeat",
    "controller-1000001 CONTROL": "/paceline.internal.v1.ControllerService/BrokerHeartbeat",
}


@dataclass(frozen=True)
class Target:
    """A cluster to attack."""

    ports: dict[str, int]
    """Ports such as ``broker-1 CLIENT``."""
    stranger: TlsFiles
    """A certificate of another cluster."""
    client: TlsFiles
    """The certificate of a client."""
    done: Any
    """A shared counter of the attacker's actions."""

    def count(self, number: int = 1) -> None:
        """Count actions; also from threads of gRPC."""
        with self.done.get_lock():
            self.done.value += number

    @property
    def addresses(self) -> list[str]:
        """Addresses for clients."""
        return [f"127.0.0.1:{port}" for name, port in self.ports.items() if name.endswith(" CLIENT") and "br" in name]


def _silent(target: Target) -> None:
    """Hold ``SOCKETS`` connections to each of two listeners, and replace closed connections."""
    held: list[socket.socket] = []
    while True:
        for port in (target.ports["broker-1 CLIENT"], target.ports["broker-1 REPLICATION"]):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), 1.0))
                held[-1].setblocking(False)
                target.count()
        if len(held) % 500 < 2 or len(held) > 2 * SOCKETS:
            held = [one for one in held if not _is_closed(one)]


def _is_closed(connection: socket.socket) -> bool:
    try:
        connection.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        pass
    connection.close()
    return True


def _connected(port: int, files: TlsFiles) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(str(files.certificate), files.key)
    context.set_alpn_protocols(["h2"])
    raw = socket.create_connection(("127.0.0.1", port), 10.0)
    connection = context.wrap_socket(raw, server_hostname="127.0.0.1")
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
    return connection


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _call_headers(stream: int, path: str) -> bytes:
    """Return the HEADERS frame of a call whose messages are compressed, as HPACK literals."""
    pairs = {":method": "POST", ":scheme": "https", ":path": path, ":authority": "127.0.0.1", "te": "trailers"}
    pairs |= {"content-type": "application/grpc", "grpc-encoding": "gzip"}
    texts = [text.encode() for pair in pairs.items() for text in pair]
    sized = [bytes((len(text),)) + text for text in texts]
    return _frame(1, 4, stream, b"".join(b"\0" + name + value for name, value in zip(*[iter(sized)] * 2, strict=True)))


def _headers(target: Target) -> None:
    """Begin ``STREAMS`` calls without a message per second, with a certificate of another cluster, at each listener."""
    open_now: dict[str, ssl.SSLSocket] = {}
    for count in itertools.count():
        for name, path in _CALLS.items():
            try:
                if name not in open_now:
                    open_now[name] = _connected(target.ports[name], target.stranger)
                streams = range(count * STREAMS, (count + 1) * STREAMS)
                open_now[name].sendall(b"".join(_call_headers(2 * stream + 1, path) for stream in streams))
                target.count(STREAMS)
                open_now[name].settimeout(0.01)
                with contextlib.suppress(TimeoutError):
                    while open_now[name].recv(65_536):
                        pass
            except OSError:
                open_now.pop(name, None)
        time.sleep(1.0)


def _inflate(target: Target) -> None:
    """Send 60 KB that inflate a thousandfold, ``SENDERS`` at a time, with a client's certificate."""
    zipped = gzip.compress(bytes(INFLATED_BYTES), 9)
    message = b"\1" + len(zipped).to_bytes(4, "big") + zipped
    pieces = [message[start : start + 16_384] for start in range(0, len(message), 16_384)]
    data = b"".join(_frame(0, piece is pieces[-1], 1, piece) for piece in pieces)
    while True:
        for name, path in _CALLS.items():
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                crowd = [stack.enter_context(_connected(target.ports[name], target.client)) for _ in range(SENDERS)]
                for one in crowd:
                    one.sendall(_call_headers(1, path) + data)
                target.count(SENDERS)
                time.sleep(0.5)


def _channel(target: Target, address: str) -> Any:
    return open_channel(address, own_connection=True, tls=client_credentials(target.client, {}))


def _flood(target: Target, calls: Iterable[tuple[Any, bytes]], at_once: int) -> None:
    """Call each method with its encoded request, ``at_once`` at a time; answers are not decoded."""
    places = threading.Semaphore(at_once)

    def ended(_call: Any) -> None:
        target.count()
        places.release()

    for method, request in calls:
        places.acquire()
        method.future(request, timeout=30.0).add_done_callback(ended)


def _coordinators(target: Target) -> dict[str, Any]:
    """Return the channel of the coordinator of each of ``GROUPS`` groups."""
    channels = {address: _channel(target, address) for address in target.addresses}
    ask = next(iter(channels.values())).unary_unary("/paceline.v1.GroupService/FindCoordinator")
    found: dict[str, Any] = {}
    while len(found) < GROUPS:
        group = f"hostile-{len(found)}"
        with contextlib.suppress(grpc.RpcError):
            answer = ask(group_pb.FindCoordinatorRequest(group_id=group).SerializeToString(), timeout=10.0)
            port = group_pb.FindCoordinatorResponse.FromString(answer).port
            found[group] = channels[f"127.0.0.1:{port}"]
            continue
        time.sleep(0.2)
    return found


def _offsets(target: Target) -> None:
    """Commit for unknown topics, and as much text as is allowed; request all offsets without paging."""
    absent = [group_pb.OffsetToCommit(topic=f"absent-{n}", offset=1) for n in range(UNKNOWN_TOPICS)]
    known = [
        group_pb.OffsetToCommit(topic=NOISE, partition=n, offset=1, metadata="x" * 4_000)
        for n in range(NOISE_PARTITIONS)
    ]
    calls = []
    for group, channel in _coordinators(target).items():
        commit = channel.unary_unary("/paceline.v1.GroupService/CommitOffsets")
        fetch = channel.unary_unary("/paceline.v1.GroupService/FetchOffsets")
        for offsets in (absent, known):
            calls.append((commit, group_pb.CommitOffsetsRequest(group_id=group, offsets=offsets).SerializeToString()))
            calls += [(fetch, group_pb.FetchOffsetsRequest(group_id=group).SerializeToString())] * 2
    _flood(target, itertools.cycle(calls), 8)


def _members(target: Target) -> None:
    """Join groups with large subscriptions, as a new member each time."""
    calls = []
    for group, channel in _coordinators(target).items():
        join = channel.unary_unary("/paceline.v1.GroupService/JoinGroup")
        for size in MEMBER_BYTES:
            protocol = group_pb.GroupProtocol(name="range")
            protocol.subscription.user_data = bytes(size)
            request = group_pb.JoinGroupRequest(group_id=group, session_timeout_ms=6_000, protocols=[protocol])
            calls.append((join, request.SerializeToString()))
    _flood(target, itertools.cycle(calls), 200)


def _fetches(target: Target) -> None:
    """Hold ``WAITING_FETCHES`` fetches for a mebibyte on two connections, and append one byte at a time."""

    def append() -> None:
        with Producer(target.addresses, tls=target.client, linger_ms=0) as producer:
            while True:
                with contextlib.suppress(Exception):
                    producer.send(NOISE, b"x", partition=0).result(30)
                    target.count()
                time.sleep(0.005)

    with Admin(target.addresses, tls=target.client) as admin:
        leader = admin.describe_topics([NOISE])[0].partitions[0].leader
    threading.Thread(target=append, daemon=True).start()
    request = log_pb.FetchRequest(
        max_wait_ms=5_000,
        min_bytes=1 << 20,
        format=log_pb.FETCH_FORMAT_BATCHES,
        partitions=[log_pb.FetchPartition(topic=NOISE, max_bytes=1 << 20)],
    ).SerializeToString()
    channels = [_channel(target, f"127.0.0.1:{target.ports[f'broker-{leader} CLIENT']}") for _ in range(2)]
    methods = [channel.unary_unary("/paceline.v1.LogService/Fetch") for channel in channels]
    _flood(target, itertools.cycle((method, request) for method in methods), WAITING_FETCHES)


ATTACKS: dict[str, Callable[[Target], None]] = {
    "none": lambda _target: None,
    "silent": _silent,
    "headers": _headers,
    "inflate": _inflate,
    "offsets": _offsets,
    "members": _members,
    "fetches": _fetches,
}
