"""Measure the time users wait after SIGKILL of a process, detection included: real processes, sessions of 6 s.

    python -m benchmarks.failover [--leaders 1 100 3334] [--kills 10] [--kills-at-100 100] [--kafka 3] [--output FILE]

Each run kills a broker that leads the given number of partitions, the active controller, or both at once. Two times
are measured from the signal: until each partition of the killed broker has a leader that serves (for the controller:
until a standby has finished its failover), and until a producer with acks=all, which sends to such a partition right
after the signal, gets its acknowledgement. Kafka 3.9.1's brokers are killed in the same way in the same run, with a
session of 6 s and with Kafka's default of 18 s.
"""

import argparse
import concurrent.futures
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from kazoo.client import KazooClient

from benchmarks.control import await_in_sync
from benchmarks.control_marks import Marks, elect_preferred, eventually, now_ms, of_kind
from benchmarks.kafka import KafkaCluster, KafkaNotAvailableError
from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, Node, remove
from paceline_client import Admin, NewTopic, Producer

BROKERS = 3
TOPICS = 10
SETTINGS = {"auto.leader.rebalance.enable": "false"}
TIMEOUT_S = 120.0
KAFKA_SESSIONS_MS = (6_000, 18_000)
KAFKA_PARTITIONS = 300
WATCHED_CHANNELS = 100
WATCH_S = 10.0


def main() -> None:
    """Kill, measure, and write the results after each row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=__doc__)
    parser.add_argument("--leaders", type=int, nargs="*", default=[1, 100, 3_334], help="partitions of the victim")
    parser.add_argument("--kills", type=int, default=10, help="kills of each kind")
    parser.add_argument("--kills-at-100", type=int, default=100, help="kills of a broker that leads 100 partitions")
    parser.add_argument("--kafka", type=int, default=3, help="kills of a Kafka broker for each session timeout")
    parser.add_argument("--output", type=Path, default=Path("build/bench/failover.json"))
    arguments = parser.parse_args()
    about = stamp()
    print(headline(about), flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for row in _rows(arguments):
        results.append({**row, "load": round(os.getloadavg()[0], 1)})
        print("  " + json.dumps(results[-1]), flush=True)
        arguments.output.write_text(json.dumps({**about, "results": results}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.output}")


def _rows(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for leaders in arguments.leaders:
        at_100 = arguments.kills_at_100 if leaders == 100 else arguments.kills
        yield from _paceline(leaders, {"broker": at_100, "controller": arguments.kills, "both": arguments.kills})
    yield _watch_cost()
    if arguments.kafka:
        for session_ms in KAFKA_SESSIONS_MS:
            try:
                yield _kafka(session_ms, arguments.kafka)
            except KafkaNotAvailableError as error:
                print(f"  no figures of Kafka: {error}", flush=True)


def _paceline(leaders: int, kills: dict[str, int]) -> Iterator[dict[str, Any]]:
    directory = Path("build/bench/failover-cluster")
    remove(directory)
    cluster = LocalCluster(directory, CONFIG_FILE, settings=SETTINGS, heap_mib=512)
    count = leaders * BROKERS
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics(_topics(leaders), timeout_ms=300_000)
        await_in_sync(cluster, count)
        with Producer(cluster.bootstrap, acks="all") as producer:
            for kind, rounds in kills.items():
                if rounds:
                    yield _row(kind, leaders, [_kill(cluster, producer, kind, n, count) for n in range(rounds)])
    finally:
        cluster.stop(force=True)
    remove(directory)


def _topics(leaders: int) -> list[NewTopic]:
    """Return topics such that each broker leads ``leaders`` partitions."""
    orders = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    if leaders < TOPICS:
        return [NewTopic("failover-0", assignments=orders * leaders)]
    sizes = [leaders // TOPICS + (index < leaders % TOPICS) for index in range(TOPICS)]
    return [NewTopic(f"failover-{index}", assignments=orders * size) for index, size in enumerate(sizes)]


def _kill(cluster: LocalCluster, producer: Producer, kind: str, number: int, count: int) -> tuple[int, int]:
    """Kill once and restart the processes; return the milliseconds until served and until acknowledged."""
    elect_preferred(cluster.bootstrap)
    led = _led(cluster)
    with Admin(cluster.bootstrap) as admin:
        active = cluster.nodes[f"controller-{admin.describe_cluster().controller_id}"]
    (standby,) = [node for node in of_kind(cluster, "controller") if node is not active]
    broker = cluster.broker(number % BROKERS + 1)
    victims: list[Node] = {"broker": [broker], "controller": [active], "both": [broker, active]}[kind]
    survivors = [node for node in of_kind(cluster, "broker") if node not in victims]
    wanted = led[broker.node_id]
    topic, partition = sorted(wanted)[0]
    producer.send(topic, b"before", partition=partition).result(TIMEOUT_S)
    marks = Marks([*survivors, standby])
    killed_ms = now_ms()
    for victim in victims:
        assert victim.process is not None
        victim.process.kill()
    producer.send(topic, b"after", partition=partition).result(TIMEOUT_S)
    acked_ms = now_ms() - killed_ms
    if kind == "controller":
        served_ms = marks.await_takeover(standby) - killed_ms
    else:
        served_ms = _served_ms(marks, survivors, wanted) - killed_ms
    for victim in victims:
        assert victim.process is not None
        victim.process.wait(60)
        cluster.restart(victim)
    await_in_sync(cluster, count)
    return served_ms, acked_ms


def _led(cluster: LocalCluster) -> dict[int, set[tuple[str, int]]]:
    """Return the partitions by leader, once each broker leads the same number."""
    led: dict[int, set[tuple[str, int]]] = {}

    def even() -> bool:
        led.clear()
        with Admin(cluster.bootstrap) as admin:
            for topic in admin.describe_topics(from_controller=True):
                for one in topic.partitions:
                    led.setdefault(one.leader, set()).add((topic.name, one.partition))  # type: ignore[arg-type]
        return len(led) == BROKERS and len({len(partitions) for partitions in led.values()}) == 1

    eventually(even, TIMEOUT_S, "each broker leads the same number of partitions")
    return led


def _served_ms(marks: Marks, survivors: list[Node], wanted: set[tuple[str, int]]) -> int:
    """Return the time at which the last of the partitions had a leader again."""
    first: dict[tuple[str, int], int] = {}

    def all_served() -> bool:
        first.clear()
        for node in survivors:
            for record in marks.records(node, "became-leader"):
                key = (record["topic"], record["partition"])
                if key in wanted:
                    first[key] = min(first.get(key, record["wall_ms"]), record["wall_ms"])
        return len(first) == len(wanted)

    eventually(all_served, TIMEOUT_S, "every partition has a leader that serves", poll_s=0.2)
    return max(first.values())


def _row(kind: str, leaders: int, times: list[tuple[int, int]]) -> dict[str, Any]:
    return {
        "name": f"kill_{kind}",
        "leaders": leaders,
        "kills": len(times),
        "served_ms": _ranks([served for served, _ in times]),
        "acknowledged_ms": _ranks([acked for _, acked in times]),
    }


def _ranks(times_ms: list[int]) -> dict[str, float]:
    ordered = sorted(times_ms)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return {"p50": statistics.median(ordered), "p99": p99, "max": ordered[-1]}


def _watch_cost() -> dict[str, Any]:
    """Measure the CPU of watched channels: gRPC's connectivity callback polls each five times a second."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.insecure_channel(f"127.0.0.1:{port}", options) for _ in range(WATCHED_CHANNELS)]
    try:
        for channel in channels:
            grpc.channel_ready_future(channel).result(TIMEOUT_S)
        used = []
        for watched in (False, True):
            if watched:
                for channel in channels:
                    channel.subscribe(lambda _state: None)
            begun_s, began_cpu_s = time.monotonic(), time.process_time()
            time.sleep(WATCH_S)
            used.append((time.process_time() - began_cpu_s) / (time.monotonic() - begun_s))
    finally:
        for channel in channels:
            channel.close()
        server.stop(0)
    return {
        "name": "watch_channels",
        "channels": WATCHED_CHANNELS,
        "idle_cpu_percent": round(100 * used[0], 2),
        "watched_cpu_percent": round(100 * used[1], 2),
    }


def _kafka(session_ms: int, kills: int) -> dict[str, Any]:
    """Kill Kafka's brokers in turn; measure until ZooKeeper names another leader for every partition."""
    times: list[tuple[int, int]] = []
    with KafkaCluster(Path("build/bench/failover-kafka"), heap_mib=512, session_timeout_ms=session_ms) as kafka:
        kafka.create_topic("failover", KAFKA_PARTITIONS)
        zookeeper = KazooClient(kafka.zookeeper, timeout=30.0)
        zookeeper.start(30.0)
        try:
            for number in range(1, kills + 1):
                victim = (number - 1) % BROKERS + 1
                _until_states(zookeeper, lambda state: len(state["isr"]) == BROKERS)
                killed_ms = now_ms()
                kafka.kill_broker(victim)
                _until_states(zookeeper, partial(_is_led_by_another, victim))
                elapsed_ms = now_ms() - killed_ms
                times.append((elapsed_ms, elapsed_ms))
                kafka.start_broker(victim)
        finally:
            zookeeper.stop()
            zookeeper.close()
    row = _row("broker", KAFKA_PARTITIONS // BROKERS, times)
    del row["acknowledged_ms"]
    return {**row, "name": "kafka_kill_broker", "session_ms": session_ms}


def _is_led_by_another(victim: int, state: dict[str, Any]) -> bool:
    return state["leader"] not in (victim, -1)


def _until_states(zookeeper: KazooClient, holds: Callable[[dict[str, Any]], bool]) -> None:
    def all_hold() -> bool:
        asked = [
            zookeeper.get_async(f"/brokers/topics/failover/partitions/{partition}/state")
            for partition in range(KAFKA_PARTITIONS)
        ]
        return all(holds(json.loads(one.get(timeout=30)[0])) for one in asked)

    eventually(all_hold, TIMEOUT_S, "the states of Kafka's partitions are as wanted")


if __name__ == "__main__":
    main()
