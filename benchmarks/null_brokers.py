"""Run null brokers, which answer every control request with success: real registrations and servers, no replicas.

    python -m benchmarks.null_brokers --zookeeper HOST:PORT/CHROOT --ids 1 2 3

They take almost no time, so a benchmark with them measures the controller. A line ``drop N`` on standard input ends the
session of broker N. Standard output has one JSON object per control request: broker, kind, partitions, number of
partitions that this broker shall lead, and the times of request and answer. It also has an object when the node of a
dropped broker is deleted.
"""

import argparse
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from kazoo.client import KazooClient

from paceline.coordination import znodes
from paceline.coordination.znodes.registrations import BrokerRegistration, encode_broker
from paceline.internal.v1 import replica_manager_service_pb2 as pb
from paceline.model.control import Endpoint
from paceline.rpc.server import server_options

_HOST = "127.0.0.1"
_SERVICE = "paceline.internal.v1.ReplicaManagerService"
_MAX_BYTES = 64 * 1024 * 1024
_out = threading.Lock()


def main() -> None:
    """Register the brokers and serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.null_brokers", description=__doc__)
    parser.add_argument("--zookeeper", required=True)
    parser.add_argument("--ids", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    brokers = {broker_id: NullBroker(broker_id, arguments.zookeeper) for broker_id in arguments.ids}
    _say({"ready": sorted(brokers)})
    for line in sys.stdin:
        command, _, broker_id = line.partition(" ")
        if command == "drop":
            brokers.pop(int(broker_id)).drop()
            _say({"dropped": int(broker_id), "at_ms": _now_ms()})
    for broker in brokers.values():
        broker.drop()


class NullBroker:
    """A registration and its CONTROL server."""

    def __init__(self, broker_id: int, zookeeper: str) -> None:
        self._broker_id = broker_id
        self._server = grpc.server(ThreadPoolExecutor(2), options=server_options(_MAX_BYTES))
        handlers = {
            "LeaderAndIsr": grpc.unary_unary_rpc_method_handler(self._leader_and_isr),
            "UpdateMetadata": grpc.unary_unary_rpc_method_handler(self._update_metadata),
            "StopReplica": grpc.unary_unary_rpc_method_handler(self._stop_replica),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        port = self._server.add_insecure_port(f"{_HOST}:0")
        self._server.start()
        self._zookeeper = KazooClient(zookeeper, timeout=30.0)
        self._zookeeper.start(30.0)
        endpoints = tuple(Endpoint(name, _HOST, port) for name in ("CLIENT", "REPLICATION", "CONTROL"))
        registration = BrokerRegistration(broker_id, endpoints, _now_ms())
        path = znodes.broker_path(broker_id)
        self._zookeeper.create(path, encode_broker(registration), ephemeral=True, makepath=True)

    def drop(self) -> None:
        """End the session, and with it the registration."""
        self._zookeeper.stop()
        self._zookeeper.close()
        self._server.stop(None)

    def _leader_and_isr(self, data: bytes, _context: Any) -> bytes:
        came_ms = _now_ms()
        request = pb.LeaderAndIsrRequest.FromString(data)
        answer = pb.LeaderAndIsrResponse(partitions=_agreed(request.partitions)).SerializeToString()
        led = sum(partition.leader == self._broker_id for partition in request.partitions)
        self._tell("LeaderAndIsr", len(request.partitions), led, came_ms)
        return answer

    def _update_metadata(self, data: bytes, _context: Any) -> bytes:
        came_ms = _now_ms()
        request = pb.UpdateMetadataRequest.FromString(data)
        self._tell("UpdateMetadata", len(request.partitions), 0, came_ms)
        return b""

    def _stop_replica(self, data: bytes, _context: Any) -> bytes:
        came_ms = _now_ms()
        request = pb.StopReplicaRequest.FromString(data)
        self._tell("StopReplica", len(request.partitions), 0, came_ms)
        return pb.StopReplicaResponse(partitions=_agreed(request.partitions)).SerializeToString()

    def _tell(self, kind: str, partitions: int, led: int, came_ms: int) -> None:
        counts = {"partitions": partitions, "led": led, "came_ms": came_ms, "answered_ms": _now_ms()}
        _say({"broker": self._broker_id, "kind": kind, **counts})


def _agreed(partitions: Any) -> list[pb.ControlPartitionResult]:
    return [pb.ControlPartitionResult(topic=one.topic, partition=one.partition) for one in partitions]


def _say(what: dict[str, Any]) -> None:
    with _out:
        print(json.dumps(what), flush=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main()
