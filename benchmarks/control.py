"""What the controller costs: creation, a dead broker, a stopping broker, a dead controller; all of it real processes.

    python -m benchmarks.control [--partitions 1000 10000] [--output build/bench/control.json]

Times are read from the state-change logs that every process writes (one machine, one clock), so nothing that is
measured is slowed down by being watched. Spans follow a dead broker from its znode's loss: noticed, elected (the last
write of a new leader is in ZooKeeper), serving (the last new leader has taken over), acknowledged (the last replica has
followed).
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, Node, remove
from paceline_client import Admin, NewTopic

TOPICS = 10
KAFKA_SECONDS = {"create": 65.0, "broker_failover": 4.3, "controlled_shutdown": 5.5, "controller_failover": 6.4}
"""Kafka 3.9.1 with 10,000 partitions on two cores (design section 4); the aim is a tenth."""


def main() -> None:
    """Measure each size and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control", description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--output", type=Path, default=Path("build/bench/control.json"))
    arguments = parser.parse_args()
    about = stamp()
    print(headline(about), flush=True)
    results: list[dict[str, Any]] = []
    for count in arguments.partitions:
        for row in _measure(count):
            kafka = KAFKA_SECONDS.get(row["name"]) if count == 10_000 else None
            if kafka is not None:
                row["kafka_seconds"], row["ratio_to_kafka"] = kafka, round(kafka / row["seconds"], 2)
            results.append(row)
            print("  " + json.dumps(row), flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({**about, "results": results}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.output}")


def _measure(count: int) -> Iterator[dict[str, Any]]:
    directory = Path("build/bench/control-cluster")
    remove(directory)
    cluster = LocalCluster(
        directory,
        CONFIG_FILE,
        settings={"auto.leader.rebalance.enable": "false", "request.timeout.ms": "60000"},
        heap_mib=512,
    )
    try:
        cluster.start()
        yield _create(cluster, count)
        yield _controller_failover(cluster, count)
        yield _broker_failover(cluster, count)
        _await_in_sync(cluster, count)
        yield _controlled_shutdown(cluster, count)
    finally:
        cluster.stop(force=True)
    remove(directory)


def _create(cluster: LocalCluster, count: int) -> dict[str, Any]:
    topics = [NewTopic(f"control-{index}", count // TOPICS, 3) for index in range(TOPICS)]
    began = time.time()
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics(topics, timeout_ms=300_000)
    seconds = time.time() - began
    return {"name": "create", "partitions": count, "seconds": round(seconds, 3), "spans": {}}


def _controller_failover(cluster: LocalCluster, count: int) -> dict[str, Any]:
    active = _active(cluster)
    (standby,) = [node for node in cluster.nodes.values() if node.kind == "controller" and node is not active]
    mark = _size(standby)
    cluster.kill(active)
    killed = _now_ms()
    elected = _await_record(standby, mark, "controller-elected")
    ready = _await_quiet([standby], {standby.name: mark}, killed)
    cluster.restart(active)
    return {
        "name": "controller_failover",
        "partitions": count,
        "seconds": round((ready - elected) / 1000, 3),
        "spans": {"session_ms": elected - killed, "takeover_ms": ready - elected},
    }


def _broker_failover(cluster: LocalCluster, count: int) -> dict[str, Any]:
    brokers = [node for node in cluster.nodes.values() if node.kind == "broker"]
    victim, others = brokers[0], brokers[1:]
    controller = _active(cluster)
    marks = {node.name: _size(node) for node in (*others, controller)}
    cluster.kill(victim)
    killed = _now_ms()
    noticed = _await_record(controller, marks[controller.name], "broker-down")
    _await_quiet([*others, controller], marks, noticed)
    led = [r for r in _records(controller, marks[controller.name]) if r["kind"] == "leader-elected"]
    elected = max((r["wall_ms"] for r in led), default=noticed)
    taken = [r for node in others for r in _records(node, marks[node.name]) if r["kind"] == "became-leader"]
    serving = max((r["wall_ms"] for r in taken), default=noticed)
    followed = [
        r["wall_ms"]
        for node in others
        for r in _records(node, marks[node.name])
        if r["kind"] in {"became-leader", "became-follower"}
    ]
    acknowledged = max(followed, default=noticed)
    cluster.restart(victim)
    return {
        "name": "broker_failover",
        "partitions": count,
        "seconds": round((serving - noticed) / 1000, 3),
        "leaders": len(led),
        "spans": {
            "session_ms": noticed - killed,
            "elected_ms": elected - noticed,
            "serving_ms": serving - noticed,
            "acknowledged_ms": acknowledged - noticed,
        },
    }


def _controlled_shutdown(cluster: LocalCluster, count: int) -> dict[str, Any]:
    brokers = [node for node in cluster.nodes.values() if node.kind == "broker"]
    victim, others = brokers[1], [brokers[0], brokers[2]]
    controller = _active(cluster)
    marks = {node.name: _size(node) for node in (*others, controller)}
    began = _now_ms()
    cluster.terminate(victim, 60.0)
    ended = _now_ms()
    moved = {
        (r["topic"], r["partition"])
        for r in _records(controller, marks[controller.name])
        if r["kind"] == "leader-elected"
    }
    first: dict[tuple[str, int], int] = {}
    for node in others:
        for r in _records(node, marks[node.name]):
            if r["kind"] == "became-leader" and (r["topic"], r["partition"]) in moved:
                first.setdefault((r["topic"], r["partition"]), int(r["wall_ms"]))
    return {
        "name": "controlled_shutdown",
        "partitions": count,
        "seconds": round((max(first.values(), default=ended) - began) / 1000, 3),
        "leaders": len(moved),
        "spans": {"process_ended_ms": ended - began},
    }


def _active(cluster: LocalCluster) -> Node:
    with Admin(cluster.bootstrap) as admin:
        found = admin.describe_cluster()
    return cluster.nodes[f"controller-{found.controller_id}"]


def _await_in_sync(cluster: LocalCluster, count: int, timeout_s: float = 180.0) -> None:
    def whole() -> bool:
        with Admin(cluster.bootstrap) as admin:
            found = [p for topic in admin.describe_topics() for p in topic.partitions]
        return len(found) == count and all(len(p.isr) == 3 and p.leader is not None for p in found)

    _eventually(whole, timeout_s, "every ISR is full")
    with Admin(cluster.bootstrap) as admin:
        led = {p.leader for topic in admin.describe_topics() for p in topic.partitions}
    if 2 not in led:
        raise RuntimeError("broker 2 leads nothing, so its shutdown would show nothing")


def _await_record(node: Node, mark: int, kind: str, timeout_s: float = 60.0) -> int:
    found: list[dict[str, Any]] = []

    def there() -> bool:
        found[:] = [record for record in _records(node, mark) if record["kind"] == kind]
        return bool(found)

    _eventually(there, timeout_s, f"{node.name} says {kind}")
    return int(found[0]["wall_ms"])


def _await_quiet(nodes: list[Node], marks: dict[str, int], since_ms: int, quiet_s: float = 3.0) -> int:
    """Wait until none of the logs has grown for a while; return the time of the last record."""
    deadline = time.monotonic() + 300.0
    sizes, still_since = {node.name: -1 for node in nodes}, time.monotonic()
    while time.monotonic() - still_since < quiet_s:
        now = {node.name: _size(node) for node in nodes}
        if now != sizes:
            sizes, still_since = now, time.monotonic()
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster did not come to rest within 300 s")
        time.sleep(0.1)
    return max((int(r["wall_ms"]) for node in nodes for r in _records(node, marks[node.name])), default=since_ms)


def _eventually(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.2)


def _log(node: Node) -> Path:
    return node.log_path.with_name("state-change.log")


def _size(node: Node) -> int:
    try:
        return _log(node).stat().st_size
    except OSError:
        return 0


def _records(node: Node, mark: int) -> Iterable[dict[str, Any]]:
    try:
        with _log(node).open("rb") as log:
            log.seek(mark)
            data = log.read()
    except OSError:
        return []
    return [json.loads(line) for line in data.splitlines() if line.endswith(b"}")]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main()
