"""Attack a secure cluster of three brokers while a producer writes, and print what other callers notice.

``python -m tests.soak.hostile silent|headers|inflate|none``. The attacker has half a core where a CPU cgroup can be
created (root); otherwise it competes freely.
"""

import argparse
import contextlib
import datetime
import gzip
import itertools
import json
import multiprocessing
import os
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, remove
from paceline.model.identity import Identity, Role
from paceline.model.tls import TlsFiles
from paceline.security.certificates import CertificateAuthority
from paceline_client import Admin, NewTopic, Producer

SOCKETS, STREAMS, SENDERS, INFLATED_BYTES = 4_400, 200, 12, 60 << 20
_GROUP = Path("/sys/fs/cgroup/cpu/paceline-hostile")
_CALLS = {
    "broker-1 CONTROL": "/paceline.internal.v1.ReplicaManagerService/LeaderAndIsr",
    "broker-1 REPLICATION": "/paceline.internal.v1.ReplicationService/Fetch",
    "controller-1000000 CONTROL": "/paceline.internal.v1.ControllerService/BrokerHeartbeat",
    "controller-1000001 CONTROL": "/paceline.internal.v1.ControllerService/BrokerHeartbeat",
}
Ports, Attack = dict[str, int], Callable[[dict[str, int], TlsFiles, TlsFiles], None]


def main() -> None:
    """Run one attack and print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.hostile", description=__doc__)
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--directory", type=Path, default=Path("build/hostile"))
    asked = parser.parse_args()
    remove(asked.directory)
    cluster = LocalCluster(asked.directory, CONFIG_FILE, secure=True)
    cluster.start()
    try:
        print(json.dumps({"attack": asked.attack, **measure(cluster, asked.attack, asked.seconds)}))
    finally:
        cluster.stop(force=True)


def measure(cluster: LocalCluster, attack: str, seconds: float) -> dict[str, Any]:
    """Produce records one by one, connect as a new client every second, and sample the memory of every process."""
    assert cluster.client_tls is not None and cluster.ports is not None
    plans = {f"broker-{number}": plan for number, plan in enumerate(cluster.ports.brokers, 1)}
    plans |= {f"controller-{number}": plan for number, plan in enumerate(cluster.ports.controllers, 1_000_000)}
    ports = {f"{node} {name}": port for node, plan in plans.items() for name, port in plan.listeners.items()}
    foreign = CertificateAuthority.load(cluster.certificates).issue(
        Identity("0" * 32, Role.CONTROLLER, "1000000"), [], cluster.directory / "foreign", datetime.timedelta(days=1)
    )
    stranger = TlsFiles(cluster.client_tls.ca, foreign.certificate, foreign.key)
    attacked = cluster.broker(1).client_address
    rss_mib: dict[str, int] = {}
    new_clients_s, ended = [0.0], threading.Event()

    def sample() -> None:
        while not ended.wait(0.1):
            for name, node in cluster.nodes.items():
                assert node.process is not None
                pages = int(Path(f"/proc/{node.process.pid}/statm").read_text().split()[1])
                rss_mib[name] = max(rss_mib.get(name, 0), pages * os.sysconf("SC_PAGESIZE") >> 20)

    def connect() -> None:
        while not ended.wait(1.0):
            begin = time.monotonic()
            with contextlib.suppress(Exception), Admin(attacked, tls=cluster.client_tls) as new:
                new.describe_cluster()
            new_clients_s.append(time.monotonic() - begin)

    def leaders() -> list[Any]:
        return [(one.partition, one.leader_epoch) for one in admin.describe_topics(["rides"])[0].partitions]

    spawn = multiprocessing.get_context("spawn")
    attacker = spawn.Process(target=_attack, args=(attack, ports, stranger, cluster.client_tls), daemon=True)
    threads = [threading.Thread(target=one) for one in (sample, connect)]
    with (
        Admin(cluster.bootstrap, tls=cluster.client_tls) as admin,
        Producer(cluster.bootstrap, tls=cluster.client_tls, linger_ms=0) as producer,
    ):
        admin.create_topics([NewTopic("rides", 3, 3)])
        before, calm_ms = leaders(), _latencies_ms(producer, 10.0)
        attacker.start()
        for thread in threads:
            thread.start()
        attacked_ms = _latencies_ms(producer, seconds)
        attacker.kill()
        ended.set()
        for thread in threads:
            thread.join()
        moves = sum(old != new for old, new in zip(before, leaders(), strict=True))
    return {
        "calm p99 ms": round(statistics.quantiles(calm_ms, n=100)[98], 1),
        "p99 ms": round(statistics.quantiles(attacked_ms, n=100)[98], 1),
        "worst ms": round(max(attacked_ms)),
        "worst new client ms": round(max(new_clients_s) * 1e3),
        "leader moves": moves,
        "rss MiB": rss_mib,
    }


def _latencies_ms(producer: Producer, seconds: float) -> list[float]:
    found, end = [], time.monotonic() + seconds
    while (begin := time.monotonic()) < end:
        producer.send("rides", b"x" * 100).result(60)
        found.append((time.monotonic() - begin) * 1e3)
        time.sleep(0.01)
    return found


def _attack(attack: str, ports: Ports, stranger: TlsFiles, client: TlsFiles) -> None:
    with contextlib.suppress(OSError):
        _GROUP.mkdir(exist_ok=True)
        (_GROUP / "cpu.cfs_quota_us").write_text("50000")
        (_GROUP / "cgroup.procs").write_text(str(os.getpid()))
    ATTACKS[attack](ports, stranger, client)


def _silent(ports: Ports, stranger: TlsFiles, client: TlsFiles) -> None:
    """Hold ``SOCKETS`` connections to each of two listeners, and replace closed connections."""
    held: list[socket.socket] = []
    while True:
        for port in (ports["broker-1 CLIENT"], ports["broker-1 REPLICATION"]):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), 1.0))
                held[-1].setblocking(False)
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


def _headers(ports: Ports, stranger: TlsFiles, client: TlsFiles) -> None:
    """Begin ``STREAMS`` calls without a message per second, with a certificate of another cluster, at each listener."""
    open_now: dict[str, ssl.SSLSocket] = {}
    for count in itertools.count():
        for name, path in _CALLS.items():
            try:
                if name not in open_now:
                    open_now[name] = _connected(ports[name], stranger)
                streams = range(count * STREAMS, (count + 1) * STREAMS)
                open_now[name].sendall(b"".join(_call_headers(2 * stream + 1, path) for stream in streams))
                open_now[name].settimeout(0.01)
                with contextlib.suppress(TimeoutError):
                    while open_now[name].recv(65_536):
                        pass
            except OSError:
                open_now.pop(name, None)
        time.sleep(1.0)


def _inflate(ports: Ports, stranger: TlsFiles, client: TlsFiles) -> None:
    """Send 60 KB that inflate a thousandfold, ``SENDERS`` at a time, with a client's certificate."""
    zipped = gzip.compress(bytes(INFLATED_BYTES), 9)
    message = b"\1" + len(zipped).to_bytes(4, "big") + zipped
    pieces = [message[start : start + 16_384] for start in range(0, len(message), 16_384)]
    data = b"".join(_frame(0, piece is pieces[-1], 1, piece) for piece in pieces)
    while True:
        for name, path in _CALLS.items():
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                crowd = [stack.enter_context(_connected(ports[name], client)) for _ in range(SENDERS)]
                for one in crowd:
                    one.sendall(_call_headers(1, path) + data)
                time.sleep(0.5)


ATTACKS: dict[str, Attack] = {"none": lambda *_: None, "silent": _silent, "headers": _headers, "inflate": _inflate}

if __name__ == "__main__":
    main()
