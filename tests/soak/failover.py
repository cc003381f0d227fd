"""Kills processes under load, or makes a live broker look dead, with exact accounting of every record.

``python -m tests.soak kills`` kills a random leader, the active controller, or both, a hundred times.
``python -m tests.soak suspicions`` lets the CONTROL address of a random live broker refuse connects every ten
seconds for ten minutes. In the end each acknowledged record must be read back exactly once, no record twice, and the
records of one partition in the order in which they were sent.
"""

import random
import socket
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.control_marks import Marks, of_kind
from paceline.dev.local_cluster import CONFIG_FILE, HOST, LocalCluster, Node, remove
from paceline.dev.ports import free_plan
from paceline.model.identifiers import TopicPartition
from paceline_client import Admin, Consumer
from tests.integration.tcp_proxy import TcpProxy
from tests.soak.kills import BROKERS, PARTITIONS, TOPIC, Load, wait_full_isr

FULL_ISR_S = 180.0
MAX_LEADERLESS_MS = 100
"""Longest time for which a false suspicion may leave a partition without a leader."""
Say = Callable[[str], None]


@dataclass
class Accounts:
    """The results of a run; `problems` is empty after a success."""

    rounds: int = 0
    effective: int = 0
    """Rounds in which leaders moved."""
    sent: int = 0
    acked: int = 0
    failed: int = 0
    read: int = 0
    pauses_ms: list[int] = field(default_factory=list)
    """By round: time until every partition has acknowledged again, or, for suspicions, without a leader."""
    problems: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Return one line of figures."""
        ordered = sorted(self.pauses_ms) or [0]
        return (
            f"{self.rounds} rounds ({self.effective} moved leaders), {self.sent:,} sent, {self.acked:,} acked, "
            f"{self.failed:,} failed, {self.read:,} read; pause p50 {statistics.median(ordered):g} ms, "
            f"p99 {ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]} ms, longest {ordered[-1]} ms"
        )


class TimedLoad(Load):
    """Stores the time of each partition's last acknowledgement."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, window=2_000, pause_s=0.01)
        self.last_acked_s: dict[int, float] = {}

    def _done(self, seq: int, at: object, error: Exception | None) -> None:
        super()._done(seq, at, error)
        if error is None:
            self.last_acked_s[at.partition] = time.monotonic()  # type: ignore[attr-defined]

    def await_acks_since(self, since_s: float, timeout_s: float = 120.0) -> int:
        """Return the milliseconds from ``since_s`` until every partition has acknowledged a newer record."""
        waiting = set(range(PARTITIONS))
        latest_s = since_s
        while waiting:
            for partition in list(waiting):
                acked_s = self.last_acked_s.get(partition, 0.0)
                # A record in flight at the kill is acknowledged within a few milliseconds after the kill.
                if acked_s > since_s + 0.02:
                    waiting.discard(partition)
                    latest_s = max(latest_s, acked_s)
            if time.monotonic() > since_s + timeout_s:
                raise TimeoutError(f"no acknowledgement in partitions {sorted(waiting)} for {timeout_s:g} s")
            time.sleep(0.005)
        return int((latest_s - since_s) * 1_000)


class RefusingProxy(TcpProxy):
    """A proxy that can refuse connects, as the host of a dead process does."""

    def refuse(self) -> None:
        """Reset every connection and refuse new ones."""
        with self._lock:
            self._watch(self._listener, False)
            self._listener.close()
            self.sever()

    def accept_again(self) -> None:
        """Listen at the same port again."""
        with self._lock:
            self._listener = socket.create_server((HOST, self.port))
            self._apply()


class ProxiedCluster(LocalCluster):
    """A cluster whose brokers advertise a proxy as their CONTROL listener."""

    def _add(self, kind: str, node_id: int, listeners: dict[str, int], metrics: int, more: Mapping[str, str]) -> None:
        if kind == "broker":
            proxy = RefusingProxy(HOST, listeners["CONTROL"])
            self.proxies[node_id] = proxy
            ports = {**listeners, "CONTROL": proxy.port}
            advertised = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
            more = {**more, "advertised.listeners": advertised}
        super()._add(kind, node_id, listeners, metrics, more)

    @property
    def proxies(self) -> dict[int, RefusingProxy]:
        """The proxies by broker."""
        found: dict[int, RefusingProxy] = self.__dict__.setdefault("_proxies", {})
        return found


def run(directory: Path, rounds: int, seed: int, play: "Play", say: Say) -> Accounts:
    """Run ``rounds`` rounds under load and account for every record."""
    rng = random.Random(seed)
    accounts = Accounts()
    kind = ProxiedCluster if play is suspicion_round else LocalCluster
    cluster = kind(directory, CONFIG_FILE, ports=free_plan(2, BROKERS))
    try:
        cluster.start(say=say)
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({TOPIC: (PARTITIONS, BROKERS, {"min.insync.replicas": "2"})})
        load = TimedLoad(cluster.bootstrap)
        load.start()
        load.await_acks_since(time.monotonic())
        for number in range(1, rounds + 1):
            problem = play(cluster, load, rng, number, accounts, say)
            accounts.rounds = number
            if problem:
                accounts.problems.append(f"round {number}: {problem}")
                if not problem.startswith("a partition"):
                    break
        load.stop()
        _account(cluster.bootstrap, load, accounts)
    finally:
        cluster.stop()
        for proxy in cluster.proxies.values() if isinstance(cluster, ProxiedCluster) else ():
            proxy.close()
    return accounts


Play = Callable[[LocalCluster, TimedLoad, random.Random, int, Accounts, Say], str | None]
"""One round: cluster, load, chance, number, accounts and a line for people; returns a problem, or None."""


def kill_round(
    cluster: LocalCluster, load: TimedLoad, rng: random.Random, number: int, accounts: Accounts, say: Say
) -> str | None:
    """Kill a broker, the active controller, or both; restart after a random pause; wait for every ISR."""
    time.sleep(rng.uniform(0.2, 1.5))
    victims: list[Node] = []
    kind = rng.choices(("broker", "controller", "both"), (8, 1, 1))[0]
    if kind != "controller":
        victims.append(cluster.broker(rng.randrange(1, BROKERS + 1)))
    if kind != "broker":
        with Admin(cluster.bootstrap) as admin:
            victims.append(cluster.nodes[f"controller-{admin.describe_cluster().controller_id}"])
    killed_s = time.monotonic()
    for victim in victims:
        assert victim.process is not None
        victim.process.kill()
    pause_ms = load.await_acks_since(killed_s)
    accounts.pauses_ms.append(pause_ms)
    accounts.effective += 1
    time.sleep(rng.choice([0.0, rng.uniform(0.0, 2.0)]))
    for victim in victims:
        assert victim.process is not None
        victim.process.wait(60)
        cluster.restart(victim, wait=False)
    for victim in victims:
        cluster.wait_ready(victim, 120.0)
    problem = wait_full_isr(cluster, FULL_ISR_S)
    names = " and ".join(victim.name for victim in victims)
    say(f"round {number}: {names} killed, acknowledged again after {pause_ms} ms, whole after "
        f"{time.monotonic() - killed_s:.1f} s")  # fmt: skip
    return problem


def suspicion_round(
    cluster: LocalCluster, load: TimedLoad, rng: random.Random, number: int, accounts: Accounts, say: Say
) -> str | None:
    """Let a live broker's CONTROL address refuse connects for half a second."""
    assert isinstance(cluster, ProxiedCluster)
    begun_s = time.monotonic()
    victim = rng.randrange(1, BROKERS + 1)
    nodes = [*of_kind(cluster, "controller"), *of_kind(cluster, "broker")]
    marks = Marks(nodes)
    cluster.proxies[victim].refuse()
    time.sleep(0.5)
    cluster.proxies[victim].accept_again()
    time.sleep(2.0)
    leaderless_ms = _leaderless_ms(marks)
    load.await_acks_since(time.monotonic())
    if leaderless_ms is not None:
        accounts.effective += 1
        accounts.pauses_ms.append(leaderless_ms)
    said = "nothing moved" if leaderless_ms is None else f"at most {leaderless_ms} ms without a leader"
    say(f"round {number}: broker {victim} refused connects, {said}")
    while time.monotonic() < begun_s + 10.0:
        time.sleep(0.1)
    if leaderless_ms is not None and leaderless_ms > MAX_LEADERLESS_MS:
        return f"a partition was without a leader for {leaderless_ms} ms"
    return None


def _leaderless_ms(marks: Marks) -> int | None:
    """Return the longest time from an election by suspicion to its leader's service, None when none was held.

    An upper bound: the old leader serves until it learns of its successor.
    """
    elected: dict[tuple[str, int, int], int] = {}
    for node in marks.nodes:
        for record in marks.records(node, "leader-elected"):
            if str(record.get("cause")).startswith("suspicion"):
                elected[record["topic"], record["partition"], record["leader_epoch"]] = record["wall_ms"]
    longest = None
    for node in marks.nodes:
        for record in marks.records(node, "became-leader"):
            at_ms = elected.pop((record["topic"], record["partition"], record["leader_epoch"]), None)
            if at_ms is not None:
                longest = max(longest or 0, int(record["wall_ms"]) - at_ms)
    if elected:
        raise RuntimeError(f"elected leaders have not begun to serve: {sorted(elected)}")
    return longest


def _account(bootstrap: str, load: TimedLoad, accounts: Accounts) -> None:
    """Read all records: each acknowledged record must be at its offset once, in the order of sending."""
    accounts.sent, accounts.acked, accounts.failed = load.sent, len(load.acked), len(load.failed)
    accounts.problems.extend(f"record {seq} failed: {why}" for seq, why in sorted(load.failed.items())[:5])
    seen: dict[int, tuple[int, int]] = {}
    latest: dict[int, int] = {}
    with Consumer(bootstrap) as consumer:
        partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        progress_s = time.monotonic()
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            if time.monotonic() > progress_s + 120.0:
                accounts.problems.append("reading back made no progress for 120 s")
                return
            for tp, records in consumer.poll(timeout_ms=1_000).items():
                progress_s = time.monotonic()
                for record in records:
                    seq, place = int(record.value or b"-1"), (tp.partition, record.offset)
                    if seq in seen:
                        accounts.problems.append(f"record {seq} is there twice: {seen[seq]} and {place}")
                    if seq <= latest.get(tp.partition, -1):
                        accounts.problems.append(f"record {seq} at {place} comes after {latest[tp.partition]}")
                    seen[seq] = place
                    latest[tp.partition] = seq
    accounts.read = len(seen)
    lost = [(seq, place) for seq, place in load.acked.items() if seen.get(seq) != place]
    accounts.problems.extend(
        f"record {seq} acknowledged at {place}, read at {seen.get(seq)}" for seq, place in lost[:20]
    )


def failover(scenario: str, directory: Path, rounds: int, seed: int, say: Say) -> Accounts:
    """Run the scenario ``kills`` or ``suspicions``."""
    remove(directory)
    return run(directory, rounds, seed, kill_round if scenario == "kills" else suspicion_round, say)
