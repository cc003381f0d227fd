"""Kill and restart brokers repeatedly under load, and check that all replicas are equal.

The tests run two rounds, the slow test five; ``make soak`` adds other faults (`tests.soak.rounds`). A round kills a
broker with SIGKILL at a random time, restarts it after a random pause, and waits until it is in every ISR again. At the
end every acknowledged record must be read exactly once, and the three replicas of each partition must have identical
batches below the high watermark.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from examples.flights.observer import ClusterObserver
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.model.identifiers import TopicPartition
from paceline_client import Admin, Consumer, Producer
from tests.support.replica_files import compare_replicas, read_high_watermarks

TOPIC, PARTITIONS, BROKERS = "soak", 6, 3


@dataclass
class Outcome:
    """The results of a soak; `problems` is empty after a success."""

    rounds: int = 0
    sent: int = 0
    acked: int = 0
    read: int = 0
    batches_compared: int = 0
    problems: list[str] = field(default_factory=list)


class Load:
    """Sends numbered records until stopped, with at most ``window`` records without a result."""

    def __init__(self, bootstrap: str, window: int = 5_000, pause_s: float = 0.002) -> None:
        self._producer = Producer(bootstrap, linger_ms=5)
        self._window = threading.BoundedSemaphore(window)
        self._pause_s = pause_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.acked: dict[int, tuple[int, int]] = {}
        """(partition, offset) by sequence number."""
        self.failed: dict[int, str] = {}
        self.sent = 0

    def start(self) -> None:
        """Begin sending."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sending and wait for every result."""
        self._over.set()
        self._thread.join(120.0)
        self._producer.flush(timeout_s=150.0)
        self._producer.close()

    def _run(self) -> None:
        while not self._over.is_set():
            for _ in range(20):
                self._window.acquire()
                seq = self.sent
                self.sent += 1
                self._producer.send(
                    TOPIC,
                    b"%d" % seq,
                    key=b"%d" % (seq % 97),
                    on_delivery=lambda at, error, seq=seq: self._done(seq, at, error),
                )
            time.sleep(self._pause_s)

    def _done(self, seq: int, at: object, error: Exception | None) -> None:
        self._window.release()
        if error is not None:
            self.failed[seq] = f"{type(error).__name__}: {error}"
        else:
            self.acked[seq] = (at.partition, at.offset)  # type: ignore[attr-defined]


def soak(directory: Path, rounds: int, seed: int, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run ``rounds`` rounds below ``directory`` and return the results."""
    rng = random.Random(seed)
    outcome = Outcome()
    cluster = LocalCluster(directory, CONFIG_FILE, ports=free_plan(2, BROKERS))
    try:
        cluster.start(say=say)
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({TOPIC: (PARTITIONS, BROKERS, {"min.insync.replicas": "2"})})
        load = Load(cluster.bootstrap)
        load.start()
        for number in range(1, rounds + 1):
            problem = _round(cluster, rng, number, say)
            outcome.rounds = number
            if problem:
                outcome.problems.append(problem)
                break
        load.stop()
        outcome.sent, outcome.acked = load.sent, len(load.acked)
        outcome.problems.extend(f"record {seq} failed: {why}" for seq, why in sorted(load.failed.items())[:5])
        read_back(cluster.bootstrap, load, outcome)
        watermarks = settle(cluster)
    finally:
        cluster.stop()
    folders = [directory / f"broker-{broker}" / "data" for broker in range(1, BROKERS + 1)]
    for partition in range(PARTITIONS):
        tp = TopicPartition(TOPIC, partition)
        compared, problems = compare_replicas(folders, tp, watermarks[partition])
        outcome.batches_compared += compared
        outcome.problems.extend(problems)
        for folder in folders:
            checkpointed = read_high_watermarks(folder).get(tp)
            if checkpointed is None or checkpointed > watermarks[partition]:
                outcome.problems.append(f"{folder}: high watermark of {tp} checkpointed as {checkpointed}")
    return outcome


def _round(cluster: LocalCluster, rng: random.Random, number: int, say: Callable[[str], None]) -> str | None:
    time.sleep(rng.uniform(0.2, 2.0))
    victim = rng.randrange(1, BROKERS + 1)
    node = cluster.broker(victim)
    began = time.monotonic()
    cluster.kill(node)
    time.sleep(rng.choice([0.0, rng.uniform(0.0, 3.0), rng.uniform(6.0, 9.0)]))
    cluster.restart(node)
    problem = wait_full_isr(cluster, 180.0)
    say(f"round {number}: broker {victim} killed and back in every ISR after {time.monotonic() - began:.1f} s")
    return f"round {number}, broker {victim}: {problem}" if problem else None


def wait_full_isr(
    cluster: LocalCluster, timeout_s: float, topic: str = TOPIC, partitions: int = PARTITIONS
) -> str | None:
    """Wait until every partition has a leader and all brokers in its ISR; return the missing part, or None."""
    addresses = {node.node_id: node.client_address for node in cluster.nodes.values() if node.kind == "broker"}
    observer = ClusterObserver(addresses)
    everyone = frozenset(addresses)
    deadline = time.monotonic() + timeout_s
    state: dict[int, list[int]] = {}
    try:
        while time.monotonic() < deadline:
            views = observer.leaders(topic)
            state = {partition: sorted(view.isr) for partition, view in sorted(views.items())}
            if len(views) == partitions and all(view.isr == everyone for view in views.values()):
                return None
            time.sleep(0.1)
    finally:
        observer.close()
    return f"the ISR was not full within {timeout_s:g} s: {state}"


def read_back(bootstrap: str, load: Load, outcome: Outcome) -> None:
    seen: dict[int, tuple[int, int]] = {}
    with Consumer(bootstrap) as consumer:
        partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        progress = time.monotonic()
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            if time.monotonic() > progress + 120.0:
                outcome.problems.append("reading back made no progress for 120 s")
                return
            for tp, records in consumer.poll(timeout_ms=1_000).items():
                progress = time.monotonic()
                for record in records:
                    seq = int(record.value)
                    if seq in seen:
                        outcome.problems.append(
                            f"record {seq} is there twice: {seen[seq]} and {(tp.partition, record.offset)}"
                        )
                    seen[seq] = (tp.partition, record.offset)
    outcome.read = len(seen)
    for seq, place in load.acked.items():
        if seen.get(seq) != place:
            outcome.problems.append(f"record {seq} acknowledged at {place}, read at {seen.get(seq)}")
            if len(outcome.problems) > 20:
                return


def settle(cluster: LocalCluster, topic: str = TOPIC, partitions: int = PARTITIONS) -> dict[int, int]:
    """Wait until all replicas have the same log end, and return the high watermark of each partition."""
    addresses = {node.node_id: node.client_address for node in cluster.nodes.values() if node.kind == "broker"}
    observer = ClusterObserver(addresses)
    try:
        deadline = time.monotonic() + 120.0
        while time.monotonic() < deadline:
            views = observer.leaders(topic)
            ends = {partition: set(view.log_end_offset.values()) for partition, view in views.items()}
            if len(views) == partitions and all(
                len(found) == 1 and len(views[partition].log_end_offset) == BROKERS for partition, found in ends.items()
            ):
                return {partition: found.pop() for partition, found in ends.items()}
            time.sleep(0.1)
        raise TimeoutError("the replicas did not reach the same log end within 120 s")
    finally:
        observer.close()
