"""Broker processes with controllers and a real ZooKeeper: topics, writes, reads, and each way a start can fail."""

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kazoo.client import KazooClient

from paceline.coordination import znodes
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.runtime.lifecycle import ExitCode
from paceline.v1 import admin_service_pb2 as admin_pb
from paceline.v1 import admin_service_pb2_grpc, errors_pb2, log_service_pb2_grpc, metadata_service_pb2_grpc
from paceline.v1 import log_service_pb2 as log_pb
from paceline.v1 import metadata_service_pb2 as metadata_pb
from tests.support.embedded_zookeeper import embedded_zookeeper, pause, resume

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
DEV = Path(__file__).resolve().parents[2] / "config" / "dev.properties"
SESSION_TIMEOUT_MS = 30_000
"""Long enough that a stalled machine ends no session; tests that kill a process set a shorter timeout."""
SHORT_SESSION_MS = 10_000
LONG_S = 120.0
"""Upper bound on each wait, far longer than any operation takes, because a busy machine slows everything."""
MANY_BATCHES = 1_000_000
"""The recovery of this many batches takes seconds."""
BROKER_LISTENERS = ("CLIENT", "REPLICATION", "CONTROL")
CONTROLLER_LISTENERS = ("CLIENT", "CONTROL")


class Process:
    """A service process under test, whose output goes to a file."""

    def __init__(self, role: str, directory: Path, zookeeper: str, *flags: str) -> None:
        self.output_path = directory / f"{role}-{time.monotonic_ns()}.log"
        listeners = BROKER_LISTENERS if role == "broker" else CONTROLLER_LISTENERS
        argv = [
            sys.executable,
            "-m",
            f"paceline.{role}",
            f"--config={DEV}",
            f"--zookeeper-connect={zookeeper}",
            f"--zookeeper-session-timeout-ms={SESSION_TIMEOUT_MS}",
            "--replica-lag-time-max-ms=10000",
            "--controller-broker-lease-ms=30000",
            "--listeners=" + ",".join(f"{name}://127.0.0.1:0" for name in listeners),
            "--die-with-parent",
            *flags,
        ]
        with self.output_path.open("wb") as output:
            self.popen = subprocess.Popen(argv, stdout=output, stderr=output, stdin=subprocess.DEVNULL)

    @property
    def output(self) -> str:
        """Output of the process so far."""
        return self.output_path.read_text(encoding="utf-8")

    def wait_said(self, pattern: str, timeout_s: float = LONG_S) -> re.Match[str]:
        """Wait until the output contains the pattern, and return the match; fail if the process ends first."""
        found: list[re.Match[str]] = []

        def said() -> bool:
            match = re.search(pattern, self.output)
            found.extend([match] if match else [])
            assert match or self.popen.poll() is None, f"it ended with {self.popen.returncode}:\n{self.output}"
            return match is not None

        until(said, timeout_s, lambda: f"it never said {pattern!r}:\n{self.output}")
        return found[0]

    def exit_code(self, timeout_s: float = LONG_S) -> int:
        """Wait until the process ends, and return its exit code."""
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end:\n{self.output}") from None

    def stop(self) -> int:
        """Send SIGTERM to the process and return its exit code."""
        self.popen.terminate()
        return self.exit_code()

    def end(self) -> None:
        """Kill the process if it is still running."""
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait(LONG_S)


class Broker(Process):
    def __init__(self, directory: Path, zookeeper: str, name: str, *flags: str) -> None:
        super().__init__("broker", directory, zookeeper, f"--log-dirs={directory / name}", *flags)

    def ready(self) -> "Broker":
        """Wait until the broker logs that it is ready."""
        self.wait_said(r"broker ready: id=\d+ cluster=\S+")
        return self

    @property
    def client(self) -> str:
        """Address of the CLIENT listener."""
        return str(self.wait_said(r"CLIENT://([^,\s]+)")[1])


def until(condition: Callable[[], Any], timeout_s: float = LONG_S, why: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, why() or "the condition did not become true"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server.address


@pytest.fixture
def processes() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def started(stack: contextlib.ExitStack, process: Any) -> Any:
    stack.callback(process.end)
    return process


class Stubs:
    """Generated stubs for the processes of a cluster, without the client library."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._channels: dict[str, grpc.Channel] = {}

    def log(self, address: str) -> Any:
        return log_service_pb2_grpc.LogServiceStub(self._channel(address))

    def metadata(self, address: str) -> Any:
        return metadata_service_pb2_grpc.MetadataServiceStub(self._channel(address))

    def admin(self, address: str) -> Any:
        return admin_service_pb2_grpc.AdminServiceStub(self._channel(address))

    def _channel(self, address: str) -> Any:
        if address not in self._channels:
            self._channels[address] = self._stack.enter_context(grpc.insecure_channel(address))
        return self._channels[address]


def test_a_topic_is_created_written_and_read_and_survives_its_leader(
    zookeeper: str, tmp_path: Path, processes: contextlib.ExitStack
) -> None:
    connect = f"{zookeeper}/first"
    session = f"--zookeeper-session-timeout-ms={SHORT_SESSION_MS}"
    for number in range(2):
        started(processes, Process("controller", tmp_path, connect, f"--controller-id={1_000_000 + number}"))
    brokers = {
        number: started(processes, Broker(tmp_path, connect, f"b{number}", f"--broker-id={number}", session))
        for number in (1, 2, 3)
    }
    addresses = {number: broker.ready().client for number, broker in brokers.items()}
    stubs = Stubs(processes)

    controller = wait_for_controller(stubs, addresses[1])
    request = admin_pb.CreateTopicsRequest(topics=[admin_pb.NewTopic(name="rides", partitions=1, replication_factor=3)])
    request.timeout_ms = int(LONG_S * 1000)
    (created,) = stubs.admin(controller).CreateTopics(request, timeout=LONG_S).topics
    assert not created.HasField("error")

    leader = wait_for_leader(stubs, addresses, 1)
    write = log_pb.ProduceRequest(partitions=[log_pb.ProducePartition(topic="rides")])
    for number in range(5):
        write.partitions[0].records.records.add(key=b"rider", value=b"%d" % number)
    assert produce(stubs, addresses[leader], write) == 0

    follower = next(number for number in addresses if number != leader)

    def leader_is_named() -> bool:
        (refused,) = stubs.log(addresses[follower]).Produce(write, timeout=LONG_S).partitions
        assert refused.HasField("error")
        hint = refused.error.current_leader
        return (hint.leader_id, f"{hint.host}:{hint.port}") == (leader, addresses[leader])

    until(leader_is_named)

    brokers[leader].popen.kill()
    survivors = {number: address for number, address in addresses.items() if number != leader}
    next_leader = wait_for_leader(stubs, survivors, follower, other_than=leader)
    assert produce(stubs, addresses[next_leader], write) == 5

    read = log_pb.FetchRequest(max_wait_ms=1_000, partitions=[log_pb.FetchPartition(topic="rides", fetch_offset=3)])
    (fetched,) = stubs.log(addresses[next_leader]).Fetch(read, timeout=LONG_S).partitions
    assert [record.offset for record in fetched.records.records] == [3, 4, 5, 6, 7, 8, 9]
    assert [record.value for record in fetched.records.records] == [b"3", b"4", b"0", b"1", b"2", b"3", b"4"]

    brokers[leader].exit_code()
    back = started(processes, Broker(tmp_path, connect, f"b{leader}", f"--broker-id={leader}"))
    assert "last_stop=unclean" in back.ready().output

    def caught_up() -> bool:
        ask = metadata_pb.DescribeReplicasRequest(topic="rides")
        (view,) = stubs.metadata(addresses[next_leader]).DescribeReplicas(ask, timeout=LONG_S).partitions
        return sorted(view.isr) == [1, 2, 3]

    until(caught_up)
    assert back.stop() == ExitCode.OK


def produce(stubs: Stubs, address: str, write: log_pb.ProduceRequest) -> int:
    """Write and return the base offset; retry until the broker knows that it leads and enough replicas are in sync."""
    not_yet = {errors_pb2.ERROR_CODE_NOT_LEADER_OR_FOLLOWER, errors_pb2.ERROR_CODE_NOT_ENOUGH_REPLICAS}
    results: list[Any] = []

    def taken() -> bool:
        (result,) = stubs.log(address).Produce(write, timeout=LONG_S).partitions
        assert not result.HasField("error") or result.error.code in not_yet, result
        results.append(result)
        return not result.HasField("error")

    until(taken)
    return int(results[-1].base_offset)


def wait_for_controller(stubs: Stubs, broker: str) -> str:
    found: list[str] = []

    def known() -> bool:
        answer = stubs.metadata(broker).DescribeCluster(metadata_pb.DescribeClusterRequest(), timeout=LONG_S)
        if len(answer.brokers) == 3 and answer.controller_port:
            found.append(f"{answer.controller_host}:{answer.controller_port}")
        return bool(found)

    until(known)
    return found[0]


def wait_for_leader(stubs: Stubs, addresses: dict[int, str], ask: int, other_than: int | None = None) -> int:
    found: list[int] = []

    def known() -> bool:
        request = metadata_pb.DescribeTopicsRequest(topics=["rides"])
        (topic,) = stubs.metadata(addresses[ask]).DescribeTopics(request, timeout=LONG_S).topics
        leaders = [one.leader for one in topic.partitions if one.HasField("leader")]
        if leaders and leaders[0] != other_than:
            found.append(leaders[0])
        return bool(found)

    until(known)
    return found[0]


def test_a_missing_broker_id_is_generated_stored_and_logged(
    zookeeper: str, tmp_path: Path, processes: contextlib.ExitStack
) -> None:
    broker = started(processes, Broker(tmp_path, f"{zookeeper}/ids", "data"))
    assert "broker ready: id=1001 cluster=" in broker.ready().output
    assert "broker.id=1001" in (tmp_path / "data" / "meta.properties").read_text()
    assert broker.stop() == ExitCode.OK
    again = started(processes, Broker(tmp_path, f"{zookeeper}/ids", "data"))
    assert "broker ready: id=1001 cluster=" in again.ready().output
    assert "last_stop=clean" in again.output
    assert again.stop() == ExitCode.OK
    other = started(processes, Broker(tmp_path, f"{zookeeper}/ids", "data", "--broker-id=7"))
    assert other.exit_code() == ExitCode.USAGE
    assert "broker.id is 7, but the log directories belong to broker 1001" in other.output


def test_metrics_and_the_state_change_log_are_served(
    zookeeper: str, tmp_path: Path, processes: contextlib.ExitStack
) -> None:
    changes = tmp_path / "state-change.log"
    flags = ("--broker-id=1", "--metrics-port=0", f"--state-change-log-path={changes}")
    broker = started(processes, Broker(tmp_path, f"{zookeeper}/metrics", "data", *flags)).ready()
    port = broker.wait_said(r"metrics=(\d+)")[1]
    text = ""

    def refreshed() -> bool:
        nonlocal text
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LONG_S) as answer:
            text = answer.read().decode()
        return "paceline_hosted_partitions 0.0" in text and "paceline_event_loop_lag_seconds_count" in text

    until(refreshed, why=lambda: text)
    until(lambda: '"kind":"broker-registered"' in changes.read_text())


def test_a_port_in_use_is_reported_by_message_and_exit_code(
    zookeeper: str, tmp_path: Path, processes: contextlib.ExitStack
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        listeners = f"--listeners=CLIENT://127.0.0.1:{port},REPLICATION://127.0.0.1:0,CONTROL://127.0.0.1:0"
        broker = started(processes, Broker(tmp_path, zookeeper, "data", listeners))
        assert broker.exit_code() == ExitCode.PORT_IN_USE
    assert f"paceline broker: port {port} is in use (CLIENT listener on 127.0.0.1:{port})" in broker.output
    assert "Traceback" not in broker.output


def test_a_log_directory_of_a_running_broker_is_refused(
    zookeeper: str, tmp_path: Path, processes: contextlib.ExitStack
) -> None:
    connect = f"{zookeeper}/locked"
    started(processes, Broker(tmp_path, connect, "data", "--broker-id=1")).ready()
    second = started(processes, Broker(tmp_path, connect, "data", "--broker-id=2"))
    assert second.exit_code() == ExitCode.LOG_DIR_LOCKED
    assert "is locked by another process" in second.output


@pytest.mark.parametrize("listed", [True, False])
def test_a_compacted_log_of_kafka_survives_a_loss_of_power(
    listed: bool, zookeeper: str, tmp_path: Path, processes: contextlib.ExitStack
) -> None:
    """Recovery keeps all segments although compaction left gaps, even if ZooKeeper does not have the topic settings."""
    connect = f"{zookeeper}/compacted-{listed}"
    if listed:
        client = KazooClient(connect)
        client.start()
        processes.callback(client.stop)
        settings = znodes.encode_config({"cleanup.policy": "compact", "segment.bytes": "3000"})
        client.create(znodes.topic_path("compact_keep"), b"", makepath=True)
        client.create(znodes.topic_config_path("compact_keep"), settings, makepath=True)
    log = tmp_path / "data" / "compact_keep-0"
    shutil.copytree(GOLDEN / "log" / "cleaned" / "compact_keep-0", log)
    (tmp_path / "data" / ".kernel_boot_id").write_text("an-earlier-boot\n")
    before = {path.name: path.read_bytes() for path in log.glob("*.log")}
    broker = started(processes, Broker(tmp_path, connect, "data", "--broker-id=1")).ready()
    said = broker.wait_said(r"logs=1 .*recovered=1 .*truncated_bytes=(\d+)")
    assert said[1] == "0"
    assert {path.name: path.read_bytes() for path in log.glob("*.log")} == before
    assert listed == ("topic settings unknown" not in broker.output)


def test_an_unreachable_zookeeper_ends_the_start(tmp_path: Path, processes: contextlib.ExitStack) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        flag = "--zookeeper-connection-timeout-ms=700"
        for broker_id in ("--broker-id=1", "--broker-id=-1"):
            broker = started(processes, Broker(tmp_path, address, f"data{broker_id}", flag, broker_id))
            assert broker.exit_code() == ExitCode.ZOOKEEPER_UNREACHABLE
            assert f"ZooKeeper at {address}/paceline was not reached within 700 ms" in broker.output


def test_a_log_directory_that_cannot_be_written_is_named_with_the_cause_and_the_user(
    tmp_path: Path, processes: contextlib.ExitStack
) -> None:
    (tmp_path / "data").write_text("a file")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        broker = started(
            processes, Broker(tmp_path, f"127.0.0.1:{unused.getsockname()[1]}", "data/logs", "--broker-id=1")
        )
        assert broker.exit_code() == ExitCode.LOG_DIR_LOCKED
    assert f"no log directory can be used: {tmp_path}/data/logs: " in broker.output
    assert f"Make it writable for user {os.geteuid()}, or set log.dirs" in broker.output


def test_an_id_in_use_by_a_live_broker_is_refused(
    zookeeper: str, tmp_path: Path, processes: contextlib.ExitStack
) -> None:
    connect = f"{zookeeper}/twice"
    started(processes, Broker(tmp_path, connect, "one", "--broker-id=1")).ready()
    # The second broker waits for its own session timeout, in case the session of the first is about to expire.
    session = f"--zookeeper-session-timeout-ms={SHORT_SESSION_MS // 2}"
    second = started(processes, Broker(tmp_path, connect, "two", "--broker-id=1", session))
    assert second.exit_code() == ExitCode.DUPLICATE_ID
    assert "broker id 1 is taken" in second.output


def test_z5_a_zookeeper_that_lost_its_data_ends_brokers_and_controllers_with_a_clear_error(
    tmp_path: Path, processes: contextlib.ExitStack
) -> None:
    server = processes.enter_context(embedded_zookeeper(tmp_path / "zookeeper", heap_mib=64))
    session = f"--zookeeper-session-timeout-ms={SHORT_SESSION_MS // 2}"
    connect = f"{server.address}/wiped"
    controllers = [
        started(processes, Process("controller", tmp_path, connect, f"--controller-id={1_000_000 + number}", session))
        for number in range(2)
    ]
    broker = started(processes, Broker(tmp_path, connect, "data", "--broker-id=1", session)).ready()
    for controller in controllers:
        controller.wait_said("controller ready")
    server.stop()
    shutil.rmtree(tmp_path / "zookeeper" / "data")
    server.start()
    for process in (broker, *controllers):
        assert process.exit_code() == ExitCode.FATAL, process.output
        assert "ZooKeeper has lost data" in process.output or "belongs to cluster" in process.output
        assert "stopping after a fatal error" in process.output


def test_a_controller_is_ready_while_it_is_active_or_knows_the_active_one(
    tmp_path: Path, processes: contextlib.ExitStack
) -> None:
    server = processes.enter_context(embedded_zookeeper(tmp_path / "zookeeper", heap_mib=64))
    session = f"--zookeeper-session-timeout-ms={SHORT_SESSION_MS // 2}"
    connect = f"{server.address}/readiness"
    stubs = []
    for number in range(2):
        controller = Process("controller", tmp_path, connect, f"--controller-id={1_000_000 + number}", session)
        started(processes, controller).wait_said("controller ready")
        address = controller.wait_said(r"CLIENT://([^,\s]+)")[1]
        stubs.append(health_pb2_grpc.HealthStub(processes.enter_context(grpc.insecure_channel(address))))

    def all_say(expected: int) -> bool:
        request = health_pb2.HealthCheckRequest(service="readiness")
        return all(stub.Check(request, timeout=LONG_S).status == expected for stub in stubs)

    serving, not_serving = 1, 2
    until(lambda: all_say(serving))
    pause(server)
    until(lambda: all_say(not_serving))
    resume(server)
    until(lambda: all_say(serving))


@pytest.mark.parametrize("broker_id", ["--broker-id=1", "--broker-id=-1"])
def test_a_stop_before_the_process_is_ready_is_orderly(
    tmp_path: Path, processes: contextlib.ExitStack, broker_id: str
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # accepts and never answers
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        patient = "--zookeeper-connection-timeout-ms=600000"
        broker = started(processes, Broker(tmp_path, address, "data", broker_id, patient))
        until(lambda: (tmp_path / "data" / ".lock").exists())
        broker.popen.send_signal(signal.SIGINT)
        assert broker.exit_code() == ExitCode.INTERRUPTED
    assert "stopped by SIGINT before it was ready" in broker.output


def test_a_stop_while_logs_are_recovered_does_not_wait_for_them(
    tmp_path: Path, processes: contextlib.ExitStack, zookeeper: str
) -> None:
    log = tmp_path / "data" / "t-0"
    log.mkdir(parents=True)
    batch = encode_batch([NewRecord(1_000, None, b"")])[8:]
    with (log / "00000000000000000000.log").open("wb") as segment:
        segment.writelines(struct.pack(">q", offset) + batch for offset in range(MANY_BATCHES))
    broker = started(processes, Broker(tmp_path, f"{zookeeper}/long", "data", "--broker-id=1"))
    until(lambda: (tmp_path / "data" / ".lock").exists())
    broker.popen.send_signal(signal.SIGTERM)
    assert broker.exit_code() == ExitCode.INTERRUPTED
    assert "stopped by SIGTERM before it was ready" in broker.output
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists(), "it was loaded to the end"


def test_wrong_settings_end_with_usage_and_a_hint(tmp_path: Path, processes: contextlib.ExitStack) -> None:
    broker = started(processes, Broker(tmp_path, "zk", "data", "--replica-lag-time-max=5"))
    assert broker.exit_code() == ExitCode.USAGE
    assert broker.output == (
        "flag --replica-lag-time-max: unknown key --replica-lag-time-max; did you mean --replica-lag-time-max-ms?\n"
    )


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--print-config", f"replica.fetch.wait.max.ms 500 file {DEV}:"),
        ("--help", "--replica-lag-time-max-ms"),
        ("--version", "paceline 0."),
    ],
)
def test_informational_flags_are_answered_without_starting_a_service(
    tmp_path: Path, processes: contextlib.ExitStack, flag: str, expected: str
) -> None:
    broker = started(processes, Broker(tmp_path, "nowhere", "data", flag))
    assert broker.exit_code() == ExitCode.OK
    assert expected in re.sub(r" +", " ", broker.output)
    assert not (tmp_path / "data").exists()
