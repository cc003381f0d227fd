"""Measure the controller with real processes: topic creation, a stopping broker, a dead controller, a dead broker.

    python -m benchmarks.control [--partitions 1000 10000] [--alone 1000 10000 100000] [--output FILE]

The sizes of ``--partitions`` run with three brokers. The sizes of ``--alone`` measure the controller without the time
of brokers, with null brokers (`benchmarks.null_brokers`), which answer every request at once.

Times are read from the logs that every process writes anyway (one machine, one clock), so the measurement does not slow
the processes down. Spans of a dead broker begin at the deletion of its znode: noticed by the controller, elected (the
last write of a new leader is in ZooKeeper), serving (the last new leader leads), acknowledged (the last replica
follows). A controller failover ends when all requests are queued.
"""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.control_alone import measure_alone
from benchmarks.control_marks import Gone, Marks, Record, elect_preferred, eventually, last_ms, now_ms, of_kind
from benchmarks.stamp import headline, stamp
from paceline.coordination import znodes
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, Node, remove
from paceline_client import Admin, NewTopic

TOPICS = 10
KAFKA_SECONDS = {"create": 65.0, "broker_failover": 4.3, "controlled_shutdown": 5.5, "controller_failover": 6.4}
"""Kafka 3.9.1 with 10,000 partitions on two cores; the aim is a tenth."""
SETTINGS = {
    "auto.leader.rebalance.enable": "false",
    "request.timeout.ms": "60000",
    "replica.lag.time.max.ms": "30000",
    "controller.broker.lease.ms": "60000",
    "broker.suspect.ms": "0",
}
"""Kafka's default of the lag; leases that a busy machine does not lose. Without suspicion a failover begins when the
session ends, as in Kafka; `benchmarks.failover` measures it with detection."""


def main() -> None:
    """Measure each size and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control", description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--alone", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--output", type=Path, default=Path("build/bench/control.json"))
    arguments = parser.parse_args()
    about = stamp()
    print(headline(about), flush=True)
    results: list[dict[str, Any]] = []
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    for row in _all_rows(arguments.partitions, arguments.alone):
        kafka = KAFKA_SECONDS[row["name"]] if row["partitions"] == 10_000 else None
        if kafka is not None:
            row["kafka_seconds"], row["ratio_to_kafka"] = kafka, round(kafka / row["seconds"], 1)
        row["us_per_partition"] = round(row["seconds"] * 1e6 / row.get("leaders", row["partitions"]), 1)
        row["load"] = round(os.getloadavg()[0], 1)
        results.append(row)
        print("  " + json.dumps(row), flush=True)
        # Write the file after each row, so that the measured rows remain when a later part fails.
        arguments.output.write_text(json.dumps({**about, "results": results}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.output}")


def _all_rows(with_brokers: list[int], alone: list[int]) -> Iterator[dict[str, Any]]:
    for count in with_brokers:
        yield from _measure(count)
    for count in alone:
        yield from measure_alone(count, TOPICS)


def _measure(count: int) -> Iterator[dict[str, Any]]:
    directory = Path("build/bench/control-cluster")
    remove(directory)
    cluster = LocalCluster(directory, CONFIG_FILE, settings=SETTINGS, heap_mib=512)
    try:
        cluster.start()
        yield {**_create(cluster, count), "brokers": "real"}
        Marks(cluster.nodes.values()).await_quiet()
        yield {**_controlled_shutdown(cluster, count), "brokers": "real"}
        cluster.restart(cluster.broker(2))
        await_in_sync(cluster, count)
        elect_preferred(cluster.bootstrap)
        Marks(cluster.nodes.values()).await_quiet()
        yield {**_controller_failover(cluster, count), "brokers": "real"}
        Marks(cluster.nodes.values()).await_quiet()
        yield {**_broker_failover(cluster, count), "brokers": "real"}
    finally:
        cluster.stop(force=True)
    remove(directory)


def _create(cluster: LocalCluster, count: int) -> dict[str, Any]:
    topics = [NewTopic(f"control-{index}", count // TOPICS, 3) for index in range(TOPICS)]
    began_ms = now_ms()
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics(topics, timeout_ms=300_000)
    return {"name": "create", "partitions": count, "seconds": (now_ms() - began_ms) / 1000, "spans": {}}


def _controller_failover(cluster: LocalCluster, count: int) -> dict[str, Any]:
    active = _active(cluster)
    (standby,) = [node for node in of_kind(cluster, "controller") if node is not active]
    marks = Marks([standby])
    cluster.kill(active)
    killed_ms = now_ms()
    elected_ms = int(marks.await_record(standby, "controller-elected")["wall_ms"])
    ready_ms = marks.await_takeover(standby)
    cluster.restart(active)
    return {
        "name": "controller_failover",
        "partitions": count,
        "seconds": (ready_ms - elected_ms) / 1000,
        "spans": {"session_ms": elected_ms - killed_ms, "takeover_ms": ready_ms - elected_ms},
    }


def _broker_failover(cluster: LocalCluster, count: int) -> dict[str, Any]:
    victim, *others = of_kind(cluster, "broker")
    controller = _active(cluster)
    marks = Marks([*others, controller])
    gone = Gone(cluster.zookeeper_connect, znodes.broker_path(victim.node_id))
    cluster.kill(victim)
    killed_ms = now_ms()
    gone_ms = gone.wait()
    noticed_ms = int(marks.await_record(controller, "broker-down")["wall_ms"])
    gone_ms = min(gone_ms, noticed_ms)  # the controller's watch may fire before the benchmark's
    marks.await_quiet()
    elections = marks.records(controller, "leader-elected")
    taken = _first_of_each(marks, others, elections)
    followed = [record for node in others for record in marks.records(node, "became-leader", "became-follower")]
    return {
        "name": "broker_failover",
        "partitions": count,
        "seconds": (max(taken) - gone_ms) / 1000,
        "leaders": len(elections),
        "spans": {
            "session_ms": gone_ms - killed_ms,
            "noticed_ms": noticed_ms - gone_ms,
            "elected_ms": last_ms(elections, gone_ms) - gone_ms,
            "first_serving_ms": min(taken) - gone_ms,
            "serving_ms": max(taken) - gone_ms,
            "acknowledged_ms": last_ms(followed, gone_ms) - gone_ms,
        },
    }


def _controlled_shutdown(cluster: LocalCluster, count: int) -> dict[str, Any]:
    """Stop broker 2 with a controlled shutdown; measure the time from the signal to the last moved leader."""
    one, victim, three = of_kind(cluster, "broker")
    controller = _active(cluster)
    marks = Marks([one, three, controller])
    began_ms = now_ms()
    cluster.terminate(victim, 60.0)
    ended_ms = now_ms()
    marks.await_quiet()
    elections = marks.records(controller, "leader-elected")
    taken = _first_of_each(marks, [one, three], elections)
    return {
        "name": "controlled_shutdown",
        "partitions": count,
        "seconds": (max(taken) - began_ms) / 1000,
        "leaders": len(elections),
        "spans": {
            "elected_ms": last_ms(elections, began_ms) - began_ms,
            "serving_ms": max(taken) - began_ms,
            "process_ended_ms": ended_ms - began_ms,
        },
    }


def _first_of_each(marks: Marks, brokers: list[Node], elections: list[Record]) -> list[int]:
    """Return the times at which the elected leaders began to lead; later requests only repeat their decisions."""
    elected = {(record["topic"], record["partition"]) for record in elections}
    first: dict[tuple[str, int], int] = {}
    for node in brokers:
        for record in marks.records(node, "became-leader"):
            key = (record["topic"], record["partition"])
            if key in elected:
                first[key] = min(first.get(key, record["wall_ms"]), record["wall_ms"])
    if len(first) < len(elected):
        raise RuntimeError(f"{len(elected) - len(first)} elected leaders have not taken over")
    return list(first.values())


def _active(cluster: LocalCluster) -> Node:
    with Admin(cluster.bootstrap) as admin:
        found = admin.describe_cluster()
    return cluster.nodes[f"controller-{found.controller_id}"]


def await_in_sync(cluster: LocalCluster, count: int, timeout_s: float = 180.0) -> None:
    """Wait until all replicas of all partitions are in sync."""

    def whole() -> bool:
        with Admin(cluster.bootstrap) as admin:
            found = [p for topic in admin.describe_topics(from_controller=True) for p in topic.partitions]
        return len(found) == count and all(len(p.isr) == 3 and p.leader is not None for p in found)

    eventually(whole, timeout_s, "every ISR is full")


if __name__ == "__main__":
    main()
