"""Consumer groups and compaction of Paceline beside Kafka 3.9.1 (ZooKeeper mode), in one run.

    python -m benchmarks.groups [--only paceline|kafka] [--members 10 100 500] [--output build/bench/groups.json]

Both have three brokers. Each is started alone, measured, and stopped. Members are simulated by calls on one event loop
(`group_calls.py`). The benchmark measures:

* commits per second, each of one partition, 40 in flight, and their CPU time in all brokers and in the client;
* the time until a group is stable, and until one more member has joined while all send heartbeats twice a second;
* the time for which 1,000 groups have no coordinator after SIGKILL, detection included (both have sessions of 6 s);
* megabytes per second of a compaction, from its first file to its checkpoint;
* commits per second during the compaction, divided by commits per second without it;
* of Paceline alone, the p50 of a produce request with acks=all, without other load and while ten groups commit.

A ratio above 1 is better for Paceline. Kafka's jars come through Maven once, into build/kafka-jars.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.compaction_on_disk import KafkaCompactedTopic, PacelineTopic, compaction_figures
from benchmarks.cpu import CpuMeter
from benchmarks.group_calls import PAUSE_S, TOPIC, GroupCalls, KafkaCalls, PacelineCalls, Refused
from benchmarks.kafka import KafkaCluster, KafkaNotAvailableError
from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, remove
from paceline_client import Admin, NewTopic, Producer

HEARTBEAT_S: Final = 0.5
MEMBERS: Final = (10, 100, 500)
GROUPS: Final = 1_000
IN_FLIGHT: Final = 40
COMMITS: Final = 50
PARTITIONS: Final = 40
PRODUCES: Final = 2_000
COMMITTING_GROUPS: Final = 10
COMMIT_PAUSE_S: Final = 0.01
SESSION_TIMEOUT_MS: Final = 6_000
DEADLINE_S: Final = 240
AIMS: Final = {"compaction_mb_per_s": 0.5}
"""Least ratio to Kafka; 1 for figures that are not listed."""

Find = Callable[[list[str], str, bool], Any]


class System:
    """The measured system, Paceline or Kafka."""

    def __init__(
        self,
        name: str,
        addresses: list[str],
        find: Find,
        kill: Callable[[int], None],
        directories: list[Path],
        topic: PacelineTopic | KafkaCompactedTopic,
        broker_pids: Callable[[], list[int]],
    ) -> None:
        self.name = name
        self.addresses = addresses
        self._find = find
        self.kill = kill
        self.directories = directories
        """Log directories of the brokers."""
        self.topic = topic
        """The topic to be compacted."""
        self.broker_pids = broker_pids
        """Returns the process ids of the brokers."""

    async def find(self, group_id: str, shared: bool = False) -> GroupCalls:
        """Return a connection to the coordinator of a group, its own or a shared connection."""
        found: GroupCalls = await self._find(self.addresses, group_id, shared)
        return found


async def member(system: System, group_id: str, index: int, generations: dict[int, int]) -> None:
    """Run a member until cancelled, and record the generation of each of its assignments."""
    calls = await system.find(group_id)
    member_id = ""
    try:
        while True:
            try:
                joined = await calls.join(group_id, member_id)
                member_id = joined.member_id
                await calls.sync(group_id, joined)
                generations[index] = joined.generation
                while True:
                    await asyncio.sleep(HEARTBEAT_S)
                    await calls.heartbeat(group_id, joined)
            except Refused as refusal:
                if refusal.member_id:
                    member_id = refusal.member_id
    finally:
        await calls.close()


async def rebalances(system: System, counts: list[int]) -> dict[str, float]:
    """Measure the time until a group is stable, and until one more member has joined."""
    figures: dict[str, float] = {}
    for count in counts:
        group_id = f"rebalance-{count}"
        generations: dict[int, int] = {}

        async def settled(wanted: int, generations: dict[int, int] = generations) -> float:
            begin = time.perf_counter()
            while len(generations) < wanted or len(set(generations.values())) > 1:
                if time.perf_counter() - begin > DEADLINE_S:
                    raise TimeoutError(f"{system.name}: {len(generations)} of {wanted} members have joined")
                await asyncio.sleep(0.01)
            return time.perf_counter() - begin

        tasks = [asyncio.create_task(member(system, group_id, index, generations)) for index in range(count)]
        figures[f"form_{count}_s"] = await settled(count)
        tasks.append(asyncio.create_task(member(system, group_id, count, generations)))
        figures[f"one_more_{count}_s"] = await settled(count + 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return figures


async def commits(system: System) -> dict[str, float]:
    """Return commits per second to a group, each of one partition, and CPU time per commit of brokers and client."""
    connections = [await system.find("commits") for _ in range(IN_FLIGHT)]

    async def committer(partition: int, calls: GroupCalls) -> None:
        for offset in range(COMMITS):
            await calls.commit("commits", partition, offset)

    begin, brokers, client = time.perf_counter(), CpuMeter(system.broker_pids()), CpuMeter([os.getpid()])
    await asyncio.gather(*(committer(place, calls) for place, calls in enumerate(connections)))
    elapsed = time.perf_counter() - begin
    for calls in connections:
        await calls.close()
    count = IN_FLIGHT * COMMITS
    return {
        "commits_per_s": count / elapsed,
        "commit_broker_us": brokers.seconds() / count * 1e6,
        "commit_client_us": client.seconds() / count * 1e6,
    }


async def commits_per_s(system: System) -> float:
    """Return commits per second."""
    return (await commits(system))["commits_per_s"]


def produce_p50_ms(bootstrap: str) -> float:
    """Return the p50 of requests with one record each, sent one after the other with acks=all, in milliseconds."""
    samples = []
    with Producer(bootstrap, linger_ms=0) as producer:
        for number in range(PRODUCES):
            begin = time.perf_counter()
            producer.send(TOPIC, b"v", partition=number % PARTITIONS).result(30.0)
            samples.append((time.perf_counter() - begin) * 1_000)
    return statistics.median(samples)


async def produce_beside_commits(system: System) -> dict[str, float]:
    """Return the p50 of a produce request with acks=all, without other load and while ten groups commit."""
    bootstrap = ",".join(system.addresses)

    async def committer(group_id: str, calls: GroupCalls) -> None:
        for offset in itertools.count():
            await calls.commit(group_id, 0, offset)
            await asyncio.sleep(COMMIT_PAUSE_S)

    # In a process of its own the producer does not wait for the interpreter lock of the committing groups.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        produce = partial(asyncio.get_running_loop().run_in_executor, process, produce_p50_ms, bootstrap)
        alone = await produce()
        group_ids = [f"beside-{number}" for number in range(COMMITTING_GROUPS)]
        tasks = [asyncio.create_task(committer(group_id, await system.find(group_id))) for group_id in group_ids]
        beside = await produce()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {"produce_p50_ms": alone, "produce_beside_commits_p50_ms": beside}


async def failover(system: System, groups: int) -> dict[str, float]:
    """Kill a coordinator; return the time until another coordinator returns the offsets of all its groups."""
    homes: dict[str, int] = {}
    for number in range(groups):
        calls = await system.find(f"group-{number}", shared=True)
        homes[f"group-{number}"] = calls.broker_id
        await calls.commit(f"group-{number}", 0, 7)
    victim = homes["group-0"]
    waiting = {name for name, home in homes.items() if home == victim}
    count = len(waiting)
    system.kill(victim)
    begin = time.perf_counter()
    while waiting:
        for name in tuple(waiting):
            calls = await system.find(name, shared=True)
            if calls.broker_id == victim:
                await asyncio.sleep(PAUSE_S)
                continue
            with contextlib.suppress(Refused):
                if await calls.committed(name) == 7:
                    waiting.discard(name)
        if time.perf_counter() - begin > DEADLINE_S:
            raise TimeoutError(f"{system.name}: {len(waiting)} groups have no coordinator")
    return {"failover_s": time.perf_counter() - begin, "failover_groups": count}


async def measure(system: System, members: list[int], groups: int) -> dict[str, float]:
    """Return all figures of one system."""
    figures: dict[str, float] = {}

    def note(found: dict[str, float]) -> None:
        for name, value in found.items():
            figures[name] = round(value, 3)
            print(f"  {system.name}: {name} {value:,.2f}", flush=True)

    await commits_per_s(system)
    note(await commits(system))
    if system.name == "paceline":
        note(await produce_beside_commits(system))
    note(await rebalances(system, members))
    note(await compaction_figures(system.topic, system.directories, lambda: commits_per_s(system)))
    note(await failover(system, groups))
    return figures


def paceline(members: list[int], groups: int) -> dict[str, float]:
    """Measure Paceline."""
    directory = Path("build/bench/groups-cluster").resolve()
    remove(directory)
    settings = {
        "log.cleaner.backoff.ms": "500",
        "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        "group.initial.rebalance.delay.ms": "0",
    }
    cluster = LocalCluster(directory, CONFIG_FILE, controllers=1, settings=settings)
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])
        system = System(
            "paceline",
            cluster.bootstrap.split(","),
            PacelineCalls.find,
            lambda broker_id: cluster.kill(cluster.broker(broker_id)),
            [directory],
            PacelineTopic(cluster.bootstrap),
            lambda: [cluster.broker(number).process.pid for number in (1, 2, 3)],  # type: ignore[union-attr]
        )
        return asyncio.run(measure(system, members, groups))
    finally:
        cluster.stop(force=True)
        remove(directory)


def kafka(members: list[int], groups: int) -> dict[str, float]:
    """Measure Kafka."""
    settings = {
        "log.cleaner.backoff.ms": "500",
        "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        "group.initial.rebalance.delay.ms": "0",
    }
    with KafkaCluster(Path("build/bench/kafka").resolve(), settings=settings) as cluster:
        cluster.create_topic("t", PARTITIONS)
        system = System(
            "kafka",
            cluster.bootstrap.split(","),
            KafkaCalls.find,
            cluster.kill_broker,
            [cluster.directory],
            KafkaCompactedTopic(cluster.bootstrap),
            lambda: list(cluster.broker_pids),
        )
        return asyncio.run(measure(system, members, groups))


def ratio_of(name: str, ours: float, theirs: float) -> float:
    """Return the ratio of the figures, above 1 if Paceline is better."""
    is_time = name.endswith(("_s", "_us")) and not name.endswith("per_s")
    better, worse = (theirs, ours) if is_time else (ours, theirs)
    return round(better / worse, 3)


def main() -> None:
    """Measure both and write figures and ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=__doc__)
    parser.add_argument("--only", choices=["paceline", "kafka"])
    parser.add_argument("--members", type=int, nargs="+", default=list(MEMBERS))
    parser.add_argument("--groups", type=int, default=GROUPS, help="groups whose coordinator is killed")
    parser.add_argument("--output", type=Path, default=Path("build/bench/groups.json"))
    arguments = parser.parse_args()
    about = stamp()
    print(headline(about), flush=True)
    report: dict[str, Any] = dict(about)
    try:
        if arguments.only != "paceline":
            report["kafka"] = kafka(arguments.members, arguments.groups)
    except KafkaNotAvailableError as error:
        print(f"Kafka cannot be measured here: {error}")
    if arguments.only != "kafka":
        report["paceline"] = paceline(arguments.members, arguments.groups)
    if "kafka" in report and "paceline" in report:
        ours, theirs = report["paceline"], report["kafka"]
        compared = [name for name in ours if name in theirs and name != "failover_groups"]
        report["ratio"] = {name: ratio_of(name, ours[name], theirs[name]) for name in compared}
        for name, ratio in report["ratio"].items():
            verdict = "reached" if ratio >= AIMS.get(name, 1) else "short"
            print(f"  {name:<28}{ours[name]:>12,.2f}{theirs[name]:>12,.2f}{ratio:>8.2f}  {verdict}")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
