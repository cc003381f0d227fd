"""Attack a secure cluster of three brokers while a producer writes, and print what other callers notice.

``python -m tests.soak.hostile silent|headers|inflate|offsets|members|fetches|none [--seconds 60] [--runs 3]``

Each run has a cluster of its own and prints one JSON object; the last line has the medians of several runs. The
attacker has half a core where a CPU cgroup can be created (root); otherwise it competes freely, and ``half a core`` is
0. Every wait has a deadline, and so has a run.
"""

import argparse
import contextlib
import datetime
import json
import multiprocessing
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, remove
from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.internal.v1.replica_manager_service_pb2_grpc import ReplicaManagerServiceStub
from paceline.model.identity import Identity, Role
from paceline.model.tls import TlsFiles
from paceline.rpc.channels import open_channel
from paceline.rpc.security.client_tls import client_credentials
from paceline.security.certificates import CertificateAuthority
from paceline_client import Admin, NewTopic, Producer
from tests.soak.attacks import ATTACKS, NOISE, NOISE_PARTITIONS, Target

CALM_S = 10.0
_TOPIC = "rides"
_START_S, _STOP_S, _CALL_S = 300, 60, 60.0
"""Longest start and end of a cluster, and longest call of a bystander."""
_GROUP = Path("/sys/fs/cgroup/cpu/paceline-hostile")


def main() -> None:
    """Run one attack, several times on request."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.hostile", description=__doc__)
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=Path("build/hostile"))
    asked = parser.parse_args()
    signal.signal(signal.SIGALRM, _too_late)
    results = []
    for number in range(1, asked.runs + 1):
        remove(asked.directory)
        cluster = LocalCluster(asked.directory, CONFIG_FILE, secure=True)
        signal.alarm(int(_START_S + 2 * (CALM_S + asked.seconds + _CALL_S)))
        try:
            cluster.start()
            results.append(measure(cluster, asked.attack, asked.seconds))
        finally:
            signal.alarm(_STOP_S)
            cluster.stop(force=True)
            signal.alarm(0)
        print(json.dumps({"attack": asked.attack, "run": number, **results[-1]}), flush=True)
    if asked.runs > 1:
        medians = {name: statistics.median(one[name] for one in results) for name in results[0]}
        print(json.dumps({"attack": asked.attack, "median of": asked.runs, **medians}), flush=True)


def measure(cluster: LocalCluster, attack: str, seconds: float) -> dict[str, float]:
    """Produce one record after the other, first calmly, then under attack; return times, memory and leader moves.

    Meanwhile a new client connects every second, and broker 1 gets a LeaderAndIsr ten times a second.
    """
    assert cluster.client_tls is not None and cluster.ports is not None
    plans = {f"broker-{number}": plan for number, plan in enumerate(cluster.ports.brokers, 1)}
    plans |= {f"controller-{number}": plan for number, plan in enumerate(cluster.ports.controllers, 1_000_000)}
    ports = {f"{node} {name}": port for node, plan in plans.items() for name, port in plan.listeners.items()}
    foreign = CertificateAuthority.load(cluster.certificates).issue(
        Identity("0" * 32, Role.CONTROLLER, "1000000"), [], cluster.directory / "foreign", datetime.timedelta(days=1)
    )
    stranger = TlsFiles(cluster.client_tls.ca, foreign.certificate, foreign.key)
    spawn = multiprocessing.get_context("spawn")
    target = Target(ports, stranger, cluster.client_tls, spawn.Value("q", 0))
    attacker = spawn.Process(target=_attack, args=(attack, target, int(seconds + 2 * _CALL_S)), daemon=True)
    rss_mib: dict[str, float] = {"broker": 0, "controller": 0}
    new_clients_ms, control_ms = [0.0], {"calm": [0.0], "": [0.0]}
    phase, ended = ["calm"], threading.Event()

    def sample() -> None:
        while not ended.wait(0.1):
            for name, node in cluster.nodes.items():
                with contextlib.suppress(OSError, AttributeError):
                    pages = int(Path(f"/proc/{node.process.pid}/statm").read_text().split()[1])  # type: ignore[union-attr]
                    kind = name.split("-")[0]
                    rss_mib[kind] = max(rss_mib[kind], pages * os.sysconf("SC_PAGESIZE") >> 20)

    def connect() -> None:
        while not ended.wait(1.0):
            with _timed(new_clients_ms), Admin(cluster.broker(1).client_address, tls=cluster.client_tls) as new:
                new.describe_cluster(timeout_ms=int(_CALL_S * 1e3))

    def control() -> None:
        found = admin.describe_cluster()
        name = f"controller-{found.controller_id}"
        folder = cluster.certificates
        tls = client_credentials(TlsFiles(folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key"), {})
        request = control_pb.LeaderAndIsrRequest(
            stamp=control_pb.ControllerStamp(
                controller_id=found.controller_id, controller_epoch=found.controller_epoch, broker_epoch=-1
            )
        )
        with open_channel(f"127.0.0.1:{ports['broker-1 CONTROL']}", own_connection=True, tls=tls) as channel:
            stub = ReplicaManagerServiceStub(channel)
            while not ended.wait(0.1):
                with _timed(control_ms[phase[0]]):
                    stub.LeaderAndIsr(request, timeout=_CALL_S)

    def leaders() -> list[Any]:
        return [(one.partition, one.leader_epoch) for one in admin.describe_topics([_TOPIC])[0].partitions]

    with (
        Admin(cluster.bootstrap, tls=cluster.client_tls) as admin,
        Producer(cluster.bootstrap, tls=cluster.client_tls, linger_ms=0) as producer,
    ):
        admin.create_topics([NewTopic(_TOPIC, 3, 3), NewTopic(NOISE, NOISE_PARTITIONS, 1)])
        threads = [threading.Thread(target=one, daemon=True) for one in (sample, connect, control)]
        threads[2].start()
        try:
            before, calm_ms = leaders(), _latencies_ms(producer, CALM_S)
            attacker.start()
            limit_s = time.monotonic() + _CALL_S
            while attacker.is_alive() and target.done.value == 0:
                if time.monotonic() > limit_s:
                    raise TimeoutError("the attack does not begin")
                time.sleep(0.1)
            phase[0] = ""
            for thread in threads[:2]:
                thread.start()
            begin, done = time.monotonic(), target.done.value
            attacked_ms = _latencies_ms(producer, seconds)
            took_s, done = time.monotonic() - begin, target.done.value - done
            if attack != "none" and not attacker.is_alive():
                raise RuntimeError("the attacker has ended")
            is_limited = _GROUP.exists() and str(attacker.pid) in (_GROUP / "cgroup.procs").read_text().split()
        finally:
            attacker.kill()
            ended.set()
        for thread in threads:
            thread.join(_CALL_S)
        moves = sum(old != new for old, new in zip(before, leaders(), strict=True))
    p99s = [statistics.quantiles(found, n=100)[98] for found in (calm_ms, attacked_ms)]
    found = {
        "calm p99 ms": p99s[0],
        "p99 ms": p99s[1],
        "ratio": p99s[1] / p99s[0],
        "worst ms": max(attacked_ms),
        "worst new client ms": max(new_clients_ms),
        "calm LeaderAndIsr median ms": statistics.median(control_ms["calm"]),
        "calm LeaderAndIsr worst ms": max(control_ms["calm"]),
        "LeaderAndIsr median ms": statistics.median(control_ms[""]),
        "LeaderAndIsr worst ms": max(control_ms[""]),
        "broker MiB": rss_mib["broker"],
        "controller MiB": rss_mib["controller"],
        "leader moves": moves,
        "attacks per s": done / took_s,
        "half a core": int(is_limited),
    }
    return {name: round(value, 2) for name, value in found.items()}


@contextlib.contextmanager
def _timed(into: list[float]) -> Iterator[None]:
    """Append the time of the block in milliseconds; a call that fails takes the longest time."""
    begin = time.monotonic()
    try:
        yield
        into.append((time.monotonic() - begin) * 1e3)
    except Exception:
        into.append(_CALL_S * 1e3)


def _latencies_ms(producer: Producer, seconds: float) -> list[float]:
    found: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with _timed(found):
            producer.send(_TOPIC, b"x" * 100).result(_CALL_S)
        time.sleep(0.01)
    return found


def _too_late(*_: object) -> None:
    raise TimeoutError("the run takes too long")


def _attack(attack: str, target: Target, limit_s: int) -> None:
    signal.alarm(limit_s)  # ends this process if nothing else does
    with contextlib.suppress(OSError):
        _GROUP.mkdir(exist_ok=True)
        (_GROUP / "cpu.cfs_quota_us").write_text("50000")
        (_GROUP / "cgroup.procs").write_text(str(os.getpid()))
    ATTACKS[attack](target)


if __name__ == "__main__":
    main()
