"""Measure the controller alone, with null brokers, which take no time."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import grpc

from benchmarks.control_marks import Gone, Marks, eventually, last_ms, now_ms, of_kind
from paceline.coordination import znodes
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, Node, remove
from paceline.internal.v1 import controller_service_pb2 as pb
from paceline.internal.v1 import controller_service_pb2_grpc
from paceline_client import Admin, NewTopic

BROKER_IDS = (1, 2, 3)
_LEADER_AND_ISR = "LeaderAndIsr"


def measure_alone(count: int, topic_count: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each of the four operations with ``count`` partitions."""
    directory = Path("build/bench/control-alone")
    remove(directory)
    settings = {
        "auto.leader.rebalance.enable": "false",
        "controller.broker.lease.ms": "0",
        "request.timeout.ms": "60000",
    }
    cluster = LocalCluster(directory, CONFIG_FILE, brokers=0, settings=settings, heap_mib=1024)
    try:
        cluster.start()
        with NullBrokers(cluster.zookeeper_connect) as brokers:
            yield {**_create(cluster, count, topic_count), "brokers": "null"}
            brokers.await_quiet()
            yield {**_controller_failover(cluster, brokers, count), "brokers": "null"}
            brokers.await_quiet()
            yield {**_broker_failover(cluster, brokers, count), "brokers": "null"}
            brokers.await_quiet()
            # The last one, since no null broker comes back into an ISR; half of the leaders are its by now.
            yield {**_controlled_shutdown(cluster, brokers, count), "brokers": "null"}
    finally:
        cluster.stop(force=True)
    remove(directory)


class NullBrokers:
    """The process of the null brokers, and the lines that it has printed."""

    def __init__(self, zookeeper: str) -> None:
        self.zookeeper = zookeeper
        argv = [sys.executable, "-m", "benchmarks.null_brokers", "--zookeeper", zookeeper]
        argv += ["--ids", *map(str, BROKER_IDS)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input = self._process.stdin
        self._said: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        eventually(lambda: any("ready" in one for one in self._said), 60.0, "null brokers are registered")

    def __enter__(self) -> "NullBrokers":
        return self

    def __exit__(self, *_: object) -> None:
        self._input.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self, output: IO[bytes]) -> None:
        for line in output:
            self._said.append(json.loads(line))

    def drop(self, broker_id: int) -> None:
        """End the session of a null broker."""
        self._input.write(f"drop {broker_id}\n".encode())
        self._input.flush()

    def requests(self, since: int = 0) -> list[dict[str, Any]]:
        """Return the control requests answered since a position that `mark` returned."""
        return [one for one in self._said[since:] if "kind" in one]

    def mark(self) -> int:
        """Return the current position."""
        return len(self._said)

    def await_told(self, since: int, broker_ids: Iterable[int], partitions: int = 1, timeout_s: float = 120.0) -> None:
        """Wait until each broker has answered a LeaderAndIsr of at least ``partitions``, then until requests stop."""

        def told() -> set[int]:
            requests = self.requests(since)
            return {o["broker"] for o in requests if o["kind"] == _LEADER_AND_ISR and o["partitions"] >= partitions}

        eventually(lambda: told() >= set(broker_ids), timeout_s, "every broker has received its request")
        self.await_quiet()

    def await_quiet(self, quiet_s: float = 3.0, timeout_s: float = 300.0) -> None:
        """Wait until no request has arrived for a while."""
        deadline = time.monotonic() + timeout_s
        count, still_since = -1, time.monotonic()
        while time.monotonic() - still_since < quiet_s:
            if len(self._said) != count:
                count, still_since = len(self._said), time.monotonic()
            if time.monotonic() > deadline:
                raise TimeoutError(f"requests continued for {timeout_s:g} s")
            time.sleep(0.05)


def _create(cluster: LocalCluster, count: int, topic_count: int) -> dict[str, Any]:
    topics = [NewTopic(f"control-{index}", count // topic_count, 3) for index in range(topic_count)]
    began_ms = now_ms()
    with Admin(",".join(cluster.controller_addresses)) as admin:
        admin.create_topics(topics, timeout_ms=600_000)
    return {"name": "create", "partitions": count, "seconds": (now_ms() - began_ms) / 1000, "spans": {}}


def _controller_failover(cluster: LocalCluster, brokers: NullBrokers, count: int) -> dict[str, Any]:
    active = _active(cluster)
    (standby,) = [node for node in of_kind(cluster, "controller") if node is not active]
    marks, mark = Marks([standby]), brokers.mark()
    cluster.kill(active)
    killed_ms = now_ms()
    elected_ms = int(marks.await_record(standby, "controller-elected")["wall_ms"])
    ready_ms = marks.await_takeover(standby)
    brokers.await_told(mark, BROKER_IDS, count)
    acknowledged_ms = max(one["answered_ms"] for one in brokers.requests(mark))
    cluster.restart(active)
    return {
        "name": "controller_failover",
        "partitions": count,
        "seconds": (ready_ms - elected_ms) / 1000,
        "spans": {
            "session_ms": elected_ms - killed_ms,
            "takeover_ms": ready_ms - elected_ms,
            "acknowledged_ms": acknowledged_ms - elected_ms,
        },
    }


def _broker_failover(cluster: LocalCluster, brokers: NullBrokers, count: int) -> dict[str, Any]:
    controller = _active(cluster)
    marks, mark = Marks([controller]), brokers.mark()
    gone = Gone(brokers.zookeeper, znodes.broker_path(1))
    brokers.drop(1)
    gone_ms = gone.wait()
    noticed_ms = int(marks.await_record(controller, "broker-down")["wall_ms"])
    gone_ms = min(gone_ms, noticed_ms)  # the controller's watch may fire before the benchmark's
    brokers.await_told(mark, (2, 3))
    marks.await_quiet()
    elections = marks.records(controller, "leader-elected")
    requests = brokers.requests(mark)
    told = [one for one in requests if one["kind"] == _LEADER_AND_ISR]
    serving_ms = _first_per_broker(told)
    return {
        "name": "broker_failover",
        "partitions": count,
        "seconds": (serving_ms - gone_ms) / 1000,
        "leaders": len(elections),
        "spans": {
            "noticed_ms": noticed_ms - gone_ms,
            "elected_ms": last_ms(elections, gone_ms) - gone_ms,
            "sent_ms": min(one["came_ms"] for one in told) - gone_ms,
            "serving_ms": serving_ms - gone_ms,
            "acknowledged_ms": max(one["answered_ms"] for one in requests) - gone_ms,
        },
    }


def _first_per_broker(told: list[dict[str, Any]]) -> int:
    """Return the time at which the last broker answered its first LeaderAndIsr, which has the elections."""
    first: dict[int, int] = {}
    for one in told:
        first.setdefault(one["broker"], one["answered_ms"])
    return max(first.values())


def _controlled_shutdown(cluster: LocalCluster, brokers: NullBrokers, count: int) -> dict[str, Any]:
    controller = _active(cluster)
    marks, mark = Marks([controller]), brokers.mark()
    assert cluster.ports is not None
    index = of_kind(cluster, "controller").index(controller)
    address = f"127.0.0.1:{cluster.ports.controllers[index].listeners['CONTROL']}"
    began_ms = now_ms()
    with grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)]) as channel:
        stub = controller_service_pb2_grpc.ControllerServiceStub(channel)
        _ask(stub, pb.ControlledShutdownRequest(broker_id=2, broker_epoch=2**62))
    answered_ms = now_ms()
    brokers.await_told(mark, (2, 3))
    marks.await_quiet()
    elections = marks.records(controller, "leader-elected")
    told = [one for one in brokers.requests(mark) if one["kind"] == _LEADER_AND_ISR]
    return {
        "name": "controlled_shutdown",
        "partitions": count,
        "seconds": (answered_ms - began_ms) / 1000,
        "leaders": len(elections),
        "spans": {
            "elected_ms": last_ms(elections, began_ms) - began_ms,
            "answered_ms": answered_ms - began_ms,
            "serving_ms": _first_per_broker(told) - began_ms,
            "acknowledged_ms": max((one["answered_ms"] for one in brokers.requests(mark)), default=began_ms) - began_ms,
        },
    }


def _ask(stub: Any, request: pb.ControlledShutdownRequest, tries: int = 5) -> None:
    """Send the request as a broker does: again when the controller does not answer in time."""
    for left in reversed(range(tries)):
        try:
            stub.ControlledShutdown(request, timeout=120.0)
            return
        except grpc.RpcError:
            if not left:
                raise


def _active(cluster: LocalCluster) -> Node:
    with Admin(",".join(cluster.controller_addresses)) as admin:
        found = admin.describe_cluster()
    return cluster.nodes[f"controller-{found.controller_id}"]
