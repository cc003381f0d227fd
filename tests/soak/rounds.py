"""Rounds of faults under load; every acknowledged record must be in the log once, and all replicas must be equal."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from paceline.model.identifiers import TopicPartition
from tests.soak.faults import possible
from tests.soak.kills import settle, wait_full_isr
from tests.soak.sandbox import Sandbox
from tests.soak.writers import Writer
from tests.support.replica_files import compare_replicas
from tests.support.stub_client import StubClient

TOPIC, PARTITIONS, BROKERS, CONTROLLERS = "soak", 6, 3, 2
HEALED_S = 240.0


@dataclass
class Outcome:
    """The results of a soak; `problems` is empty after a success."""

    rounds: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    acked: int = 0
    read: int = 0
    batches_compared: int = 0
    longest_gap_s: float = 0.0
    missing: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def soak(directory: Path, rounds: int, seed: int, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run rounds until the cluster does not heal; inject every possible fault before repeating one."""
    chance = random.Random(seed)
    outcome = Outcome()
    with Sandbox(directory, BROKERS, CONTROLLERS, {}) as cluster:
        outcome.missing = cluster.missing
        for what, why in cluster.missing.items():
            say(f"without {what}: {why}")
        cluster.start(say=say)
        writers = start_writers(cluster, pause_s=0.05)
        kinds = possible(cluster)
        deck: list[str] = []
        for number in range(1, rounds + 1):
            if not deck:
                deck = sorted(kinds)
                chance.shuffle(deck)
            kind = deck.pop()
            time.sleep(chance.uniform(0.2, 2.0))
            began = time.monotonic()
            told = kinds[kind](cluster, chance)
            problem = _not_healed(cluster)
            outcome.rounds = number
            outcome.kinds[kind] += 1
            say(f"round {number}: {told}; whole after {time.monotonic() - began:.1f} s")
            if problem is not None:
                outcome.problems.append(f"round {number}, {told}: {problem}")
                break
        account(cluster, writers, outcome)
        if not outcome.problems:
            _compare(cluster, directory, outcome)
    return outcome


def start_writers(cluster: Sandbox, pause_s: float) -> list[Writer]:
    """Create the topic and start a writer for each partition."""
    bootstrap = cluster.bootstrap.split(",")
    with StubClient(bootstrap) as client:
        client.create_topic(TOPIC, PARTITIONS, BROKERS, min_insync_replicas="2", segment_bytes="1000000")
    writers = [Writer(bootstrap, TOPIC, partition, pause_s) for partition in range(PARTITIONS)]
    for writer in writers:
        writer.start()
    return writers


def account(cluster: Sandbox, writers: list[Writer], outcome: Outcome) -> None:
    """Stop the load and compare the acknowledged records with the logs."""
    for writer in writers:
        writer.stop()
    with StubClient(cluster.bootstrap.split(",")) as reader:
        for writer in writers:
            read, problems = writer.problems(reader)
            outcome.sent += writer.sent
            outcome.acked += len(writer.acked)
            outcome.read += read
            outcome.longest_gap_s = max(outcome.longest_gap_s, writer.longest_gap_s)
            outcome.problems.extend(problems)


def _not_healed(cluster: Sandbox) -> str | None:
    dead = [node.name for node in cluster.nodes.values() if not node.running]
    if dead:
        return f"{', '.join(dead)} ended"
    return wait_full_isr(cluster, HEALED_S, TOPIC, PARTITIONS)


def _compare(cluster: Sandbox, directory: Path, outcome: Outcome) -> None:
    watermarks = settle(cluster, TOPIC, PARTITIONS)
    cluster.stop()
    folders = [directory / f"broker-{broker}" / "data" for broker in range(1, BROKERS + 1)]
    for partition in range(PARTITIONS):
        topic_partition = TopicPartition(TOPIC, partition)
        compared, problems = compare_replicas(folders, topic_partition, watermarks[partition])
        outcome.batches_compared += compared
        outcome.problems.extend(problems)
