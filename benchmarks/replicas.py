"""Measure a broker with thousands of replicas: restart after kill -9, idle following, becoming leader of all.

    python -m benchmarks.replicas [--partitions 10000] [--idle-seconds 30] [--output build/bench/replicas.json]

Three brokers, replication factor 3, so that each broker has a replica of every partition. Broker 3 is killed and
restarted; then it follows all partitions and leads none, and the benchmark exchanges heartbeats in its name with the
controller. Finally the benchmark sends broker 3 a LeaderAndIsr that makes
it leader of all partitions; at that time the leader-epoch files are not in the page cache.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from kazoo.client import KazooClient

from benchmarks.control import SETTINGS
from benchmarks.control_marks import Marks, eventually, now_ms, of_kind
from benchmarks.stamp import headline, stamp
from paceline.coordination import znodes
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, Node, remove
from paceline.internal.v1 import controller_service_pb2 as controller_pb
from paceline.internal.v1 import controller_service_pb2_grpc, replica_manager_service_pb2_grpc
from paceline.internal.v1 import replica_manager_service_pb2 as pb
from paceline.rpc.channels import CONTROL_MAX_MESSAGE_BYTES, open_channel
from paceline_client import Admin, NewTopic

TOPICS = 10
HEARTBEATS = 500
AIMS = {
    "restart_to_isr": {"seconds": 8.0, "kafka_seconds": 39.6},
    "idle_followers": {"cpu_percent": 5.0, "rss_mib": 400.0, "kafka_cpu_percent": 13.0, "kafka_rss_mib": 830.0},
    "heartbeat": {"p50_ms": 5.0, "max_ms": 100.0},
    "become_leader": {"seconds": 1.0},
}
"""Limits for 10,000 partitions, and the figures of Kafka 3.9.1 on two cores."""


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas", description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    parser.add_argument("--output", type=Path, default=Path("build/bench/replicas.json"))
    arguments = parser.parse_args()
    about = stamp()
    print(headline(about), flush=True)
    results = []
    for row in _measure(arguments.partitions, arguments.idle_seconds):
        row = {**row, "partitions": arguments.partitions, "load": round(os.getloadavg()[0], 1)}
        if arguments.partitions == 10_000:
            row["aim"] = AIMS[row["name"]]
        results.append(row)
        print("  " + json.dumps(row), flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({**about, "results": results}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.output}")


def _measure(count: int, idle_s: float) -> Iterator[dict[str, Any]]:
    # A broker is not started from source text each time where it is at home.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    directory = Path("build/bench/replicas-cluster")
    remove(directory)
    cluster = LocalCluster(directory, CONFIG_FILE, controllers=1, settings=SETTINGS, heap_mib=512)
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            topics = [NewTopic(f"replicas-{index}", count // TOPICS, 3) for index in range(TOPICS)]
            admin.create_topics(topics, timeout_ms=300_000)
        Marks(cluster.nodes.values()).await_quiet()
        yield _restart(cluster, count)
        yield _idle(cluster, idle_s)
        yield _heartbeat(cluster)
        yield _become_leader(cluster, count)
    finally:
        cluster.stop(force=True)
    remove(directory)


def _restart(cluster: LocalCluster, count: int) -> dict[str, Any]:
    one, two, victim = of_kind(cluster, "broker")
    (controller,) = of_kind(cluster, "controller")
    dead = Marks([one, two, controller])
    cluster.kill(victim)
    dead.await_record(controller, "broker-down")
    dead.await_quiet()
    back = Marks([one, two])
    began_ms = now_ms()
    cluster.restart(victim, timeout_s=120.0)
    ready_ms = now_ms()
    joined: dict[tuple[str, int], int] = {}

    def everywhere() -> bool:
        for node in (one, two):
            for record in back.records(node, "isr-expanded"):
                if victim.node_id in record["isr"]:
                    joined.setdefault((record["topic"], record["partition"]), record["wall_ms"])
        return len(joined) >= count

    eventually(everywhere, 300.0, "the broker is back in every ISR", poll_s=1.0)
    spans = {
        "ready_ms": ready_ms - began_ms,
        "first_isr_ms": min(joined.values()) - began_ms,
        "last_isr_ms": max(joined.values()) - began_ms,
    }
    return {"name": "restart_to_isr", "seconds": spans["last_isr_ms"] / 1000, "spans": spans}


def _idle(cluster: LocalCluster, idle_s: float) -> dict[str, Any]:
    follower = of_kind(cluster, "broker")[2]
    assert follower.process is not None
    Marks(cluster.nodes.values()).await_quiet(quiet_s=10.0)
    process = psutil.Process(follower.process.pid)
    _await_calm(process)
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(idle_s)
    after, seconds = process.cpu_times(), time.monotonic() - began
    used = after.user + after.system - before.user - before.system
    rss_mib = process.memory_info().rss / 2**20
    return {"name": "idle_followers", "cpu_percent": round(100 * used / seconds, 2), "rss_mib": round(rss_mib, 1)}


def _heartbeat(cluster: LocalCluster) -> dict[str, Any]:
    """Measure heartbeats of broker 3, whose followers reach the other two, from request to answer."""
    broker = of_kind(cluster, "broker")[2]
    _, broker_epoch = _epochs(cluster, broker)
    request = controller_pb.BrokerHeartbeatRequest(
        broker_id=broker.node_id, broker_epoch=broker_epoch, reached_leaders=[1, 2], shutting_down=False
    )
    assert cluster.ports is not None
    took_ms = []
    with open_channel(f"127.0.0.1:{cluster.ports.controllers[0].listeners['CONTROL']}") as channel:
        stub = controller_service_pb2_grpc.ControllerServiceStub(channel)
        for _ in range(HEARTBEATS):
            began = time.perf_counter()
            answer = stub.BrokerHeartbeat(request, timeout=10.0, wait_for_ready=True)
            took_ms.append((time.perf_counter() - began) * 1e3)
            if answer.HasField("error"):
                raise RuntimeError(f"the controller refused the heartbeat: {answer.error}")
            time.sleep(0.01)
    took_ms = took_ms[1:]  # the first opened the connection
    return {"name": "heartbeat", "p50_ms": round(statistics.median(took_ms), 2), "max_ms": round(max(took_ms), 2)}


def _await_calm(process: psutil.Process, limit_s: float = 120.0) -> None:
    """Wait until the background flushes after the start are over, that is for two idle windows in a row."""
    calm = 0
    deadline = time.monotonic() + limit_s
    while calm < 2 and time.monotonic() < deadline:
        before = process.cpu_times()
        time.sleep(3.0)
        after = process.cpu_times()
        calm = calm + 1 if after.user + after.system - before.user - before.system < 0.3 else 0


def _become_leader(cluster: LocalCluster, count: int) -> dict[str, Any]:
    """Make broker 3 leader of all partitions by one LeaderAndIsr; measure from encoded request to answer."""
    heir = of_kind(cluster, "broker")[2]
    request = _leader_and_isr(cluster, heir)
    cluster.kill(of_kind(cluster, "controller")[0])
    _drop_epoch_files_from_cache(cluster, heir)
    data = request.SerializeToString()
    assert cluster.ports is not None
    address = f"127.0.0.1:{cluster.ports.brokers[2].listeners['CONTROL']}"
    with open_channel(address, CONTROL_MAX_MESSAGE_BYTES) as channel:
        stub = replica_manager_service_pb2_grpc.ReplicaManagerServiceStub(channel)
        stub.UpdateMetadata(_brokers_only(request), timeout=60.0)
        began = time.perf_counter()
        answer = stub.LeaderAndIsr(pb.LeaderAndIsrRequest.FromString(data), timeout=60.0)
        seconds = time.perf_counter() - began
    refused = [one for one in answer.partitions if one.HasField("error")]
    if answer.HasField("error") or refused or len(answer.partitions) != count:
        raise RuntimeError(f"the broker refused {answer.error} or {len(refused)} partitions")
    return {"name": "become_leader", "seconds": round(seconds, 3), "request_bytes": len(data)}


def _leader_and_isr(cluster: LocalCluster, heir: Node) -> pb.LeaderAndIsrRequest:
    with Admin(cluster.bootstrap) as admin:
        topics = admin.describe_topics(from_controller=True)
    assert cluster.ports is not None
    controller_epoch, broker_epoch = _epochs(cluster, heir)
    return pb.LeaderAndIsrRequest(
        stamp=pb.ControllerStamp(controller_id=1_000_000, controller_epoch=controller_epoch, broker_epoch=broker_epoch),
        live_leaders=[
            pb.LiveBroker(
                id=index + 1,
                endpoints=[
                    pb.BrokerEndpoint(listener=name, host="127.0.0.1", port=port)
                    for name, port in ports.listeners.items()
                ],
                broker_epoch=-1,
            )
            for index, ports in enumerate(cluster.ports.brokers)
        ],
        partitions=[
            pb.LeaderAndIsrPartition(
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=one.partition,
                controller_epoch=controller_epoch,
                leader=heir.node_id,
                leader_epoch=one.leader_epoch + 1,
                isr=one.replicas,
                zk_version=1_000,
                replicas=one.replicas,
            )
            for topic in topics
            for one in topic.partitions
        ],
    )


def _epochs(cluster: LocalCluster, broker: Node) -> tuple[int, int]:
    """Return the controller epoch and the epoch of the broker's registration."""
    zookeeper = KazooClient(cluster.zookeeper_connect)
    zookeeper.start(30.0)
    controller_epoch = int(zookeeper.get(znodes.CONTROLLER_EPOCH)[0])
    broker_epoch = int(zookeeper.get(znodes.broker_path(broker.node_id))[1].czxid)
    zookeeper.stop()
    zookeeper.close()
    return controller_epoch, broker_epoch


def _brokers_only(request: pb.LeaderAndIsrRequest) -> pb.UpdateMetadataRequest:
    return pb.UpdateMetadataRequest(stamp=request.stamp, live_brokers=request.live_leaders)


def _drop_epoch_files_from_cache(cluster: LocalCluster, node: Node) -> None:
    for path in (cluster.directory / node.name / "data").glob("*/leader-epoch-checkpoint"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    main()
