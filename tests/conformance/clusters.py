"""The clusters of scenarios: a scripted cluster, whose answers the scenario sets, and real processes."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import grpc

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.log.record_batch import decode_batch
from paceline.model.errors import ErrorCode, error_for
from paceline.model.identifiers import TopicPartition
from paceline.rpc.channels import open_channel
from paceline.v1.group_service_pb2 import FindCoordinatorRequest
from paceline.v1.group_service_pb2_grpc import GroupServiceStub
from tests.integration.fake_cluster import FakeCluster
from tests.support.stub_client import StubClient

PATIENCE_S: Final = 60.0
CALL_TIMEOUT_S: Final = 5.0

_numbers = itertools.count(1)


class Cluster(Protocol):
    """Operations of scenarios on a cluster."""

    @property
    def bootstrap(self) -> list[str]:
        """Bootstrap addresses."""

    def topic(self, name: str, partitions: int) -> None:
        """Create a topic; return when every partition has a leader."""

    def values(self, topic: str, partition: int) -> list[bytes | None]:
        """Return the values in a partition's log, in order."""

    def end(self, topic: str, partition: int) -> int:
        """Return the end of a partition's log."""

    def act(self, action: str, arguments: dict[str, Any]) -> None:
        """Execute a step of a scenario."""


class ScriptedCluster:
    """Two fake brokers and two fake controllers, the second controller a standby."""

    def __init__(self) -> None:
        self.fake = FakeCluster(2).start()

    @property
    def bootstrap(self) -> list[str]:
        """Addresses of the brokers."""
        return self.fake.bootstrap.split(",")

    def stop(self) -> None:
        """Stop the servers."""
        self.fake.stop()

    def topic(self, name: str, partitions: int) -> None:
        """Create a topic."""
        self.fake.topic(name, partitions)

    def values(self, topic: str, partition: int) -> list[bytes | None]:
        """Return the values in a log."""
        with self.fake.lock:
            batches = list(self.fake.logs[TopicPartition(topic, partition)].batches)
        return [record.value for batch in batches for record in decode_batch(batch)]

    def end(self, topic: str, partition: int) -> int:
        """Return the end of a log."""
        return self.fake.logs[TopicPartition(topic, partition)].end

    def act(self, action: str, arguments: dict[str, Any]) -> None:
        """Change the logs, or schedule faults."""
        fake, faults = self.fake, self.fake.faults
        match action:
            case "begin_at":
                fake.begin_at(TopicPartition(arguments["topic"], 0), int(arguments["offset"]))
            case "move_leader":
                fake.move(TopicPartition(arguments["topic"], arguments.get("partition", 0)), arguments["to"])
            case "hide_leader":
                fake.hide_leader_changes = True
            case "truncate":
                with fake.lock:
                    log = fake.logs[TopicPartition(arguments["topic"], 0)]
                    log.truncate(int(arguments["offset"]))
                    log.elect(arguments["leader"])
                    fake.lock.notify_all()
            case "lose_records":
                with fake.lock:
                    fake.logs[TopicPartition(arguments["topic"], 0)].lose(arguments["offset"], arguments["leader"])
                    fake.lock.notify_all()
            case "delete_records":
                with fake.lock:
                    log = fake.logs[TopicPartition(arguments["topic"], 0)]
                    log.start = int(arguments["before"])
                    log.batches = log.batches[int(arguments["batches"]) :]
            case "refuse_produce":
                faults.refuse += [ErrorCode[name] for name in arguments["codes"]] * arguments.get("times", 1)
            case "refuse_fetch":
                faults.fetch_refuse += [ErrorCode[name] for name in arguments["codes"]]
            case "refuse_call":
                errors = [error_for(ErrorCode[name], "on purpose") for name in arguments["codes"]]
                faults.abort.setdefault(arguments["method"], []).extend(errors)
            case "drop_answers":
                faults.drop_after += arguments["count"]
            case "drop_requests":
                faults.drop_before += arguments["count"]
            case "cut_off":
                fake.brokers[arguments["id"]].cut_off(arguments.get("alone", False))
            case "kill_broker":
                fake.brokers[arguments["id"]].stop()
            case "start_broker":
                fake.brokers[arguments["id"]].start()
            case _:
                raise ValueError(f"a scripted cluster cannot {action}")


class RealCluster:
    """Three brokers and two controllers as processes, with a ZooKeeper."""

    def __init__(self, directory: Path) -> None:
        self.local = LocalCluster(directory, CONFIG_FILE, ports=free_plan(2, 3), heap_mib=64)
        self.local.start()
        self._stubs = StubClient(self.bootstrap)

    @property
    def bootstrap(self) -> list[str]:
        """Addresses of the brokers."""
        return self.local.bootstrap.split(",")

    def stop(self) -> None:
        """Stop the processes."""
        self._stubs.close()
        self.local.stop()

    def topic(self, name: str, partitions: int) -> None:
        """Create a topic with three replicas and min.insync.replicas 2, and wait until every broker knows it."""
        self._stubs.create_topic(name, partitions, 3, min_insync_replicas="2")
        for address in self.bootstrap:
            with StubClient([address]) as broker:
                broker.describe_topic(name)

    def values(self, topic: str, partition: int) -> list[bytes | None]:
        """Return the values in a log."""
        read = self._stubs.read_all(topic, partition, end=self.end(topic, partition))
        return [read[offset] for offset in sorted(read)]

    def end(self, topic: str, partition: int) -> int:
        """Return the end of the committed records, from the leader."""
        return self._stubs.end_offset(topic, partition)

    def act(self, action: str, arguments: dict[str, Any]) -> None:
        """Inject a fault, or end it."""
        match action:
            case "kill_leader":
                self.local.kill(self.local.broker(self._leader(arguments["topic"])))
            case "restart_brokers":
                for node in self.local.nodes.values():
                    if not node.running:
                        self.local.restart(node)
            case "kill_coordinator":
                self.local.kill(self.local.broker(self._coordinator(arguments["group_id"])))
            case "kill_active_controller":
                self.local.kill(self.local.nodes[f"controller-{self._active_controller()}"])
            case _:
                raise ValueError(f"a real cluster cannot {action}")

    def _active_controller(self) -> int:
        def known() -> int:
            return self._stubs.describe_cluster().controller_id  # 0 from a broker that has just started

        return int(wait_until(known, "a controller is active"))

    def _leader(self, topic: str) -> int:
        def known() -> int:
            return int(self._stubs.describe_topic(topic).partitions[0].leader)

        return wait_until(known, f"{topic} has a leader")

    def _coordinator(self, group_id: str) -> int:
        def known() -> int:
            with open_channel(self.bootstrap[0]) as channel:
                try:
                    request = FindCoordinatorRequest(group_id=group_id)
                    return int(GroupServiceStub(channel).FindCoordinator(request, timeout=CALL_TIMEOUT_S).broker_id)
                except grpc.RpcError:
                    return 0

        return wait_until(known, f"group {group_id} has a coordinator")


def fresh_topic() -> str:
    """Return a name that no other scenario uses."""
    return f"conformance-{next(_numbers)}-{time.monotonic_ns() % 1_000_000}"


def wait_until(found: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Return what ``found`` returns as soon as it is true.

    Raises:
        AssertionError: it was not within ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within {timeout_s} s")
