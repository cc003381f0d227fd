"""The `paceline` command against fake brokers that fail."""

import json
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.cli.commands import cli
from paceline.cli.exit_codes import INTERRUPTED
from paceline.model.errors import ErrorCode
from paceline_client import TopicPartition
from paceline_client.admin_connection import DESCRIBE_TIMEOUT_MS
from tests.integration.fake_broker import CONTROLLER_ID
from tests.integration.fake_cluster import FakeCluster, wait_for

VERDICT = 3
PACELINE = Path(sys.executable).with_name("paceline")


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster().start()
    yield cluster
    cluster.stop()


def run(cluster: FakeCluster, command: str, stdin: bytes = b"") -> Result:
    ended = CliRunner().invoke(cli, [*command.split(), "-b", cluster.bootstrap], input=stdin)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return ended


@pytest.mark.parametrize("command", ["controller describe", "cluster info"])
def test_a_dead_controller_in_the_metadata_is_not_shown_as_active(cluster: FakeCluster, command: str) -> None:
    assert run(cluster, command).exit_code == 0
    cluster.controller.stop()
    ended = run(cluster, command)
    assert ended.exit_code == VERDICT, ended.stdout
    assert ended.stderr.startswith(f"controller {CONTROLLER_ID} of epoch 1 does not answer: ")


def test_a_change_without_an_active_controller_ends_with_what_the_brokers_know(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.cli.connection._CONTROLLER_MS", 500)
    cluster.controller.stop()
    cluster.faults.cluster_fields = {"controller_silent_ms": 12_400, "zookeeper_connected": False}
    began = time.monotonic()
    ended = run(cluster, "topic create late")
    assert ended.exit_code == 64 + 9 and time.monotonic() - began < 5, ended.stderr
    assert ended.stderr.startswith(
        f"NOT_CONTROLLER: no active controller for 0.5 s: controller {CONTROLLER_ID} of epoch 1 at"
        f" {cluster.controller.address} does not answer: UNAVAILABLE: connection refused; server 1"
        " last had an answer of an active controller 12 s ago and is not connected to ZooKeeper\n"
    )


def test_addresses_that_refuse_connections_end_a_command_before_its_timeout_with_one_notice() -> None:
    began = time.monotonic()
    ended = CliRunner().invoke(cli, ["topic", "list", "-b", "127.0.0.1:1,127.0.0.1:2"])
    assert ended.exit_code == 64 + 14 and time.monotonic() - began < DESCRIBE_TIMEOUT_MS / 1000, ended.stderr
    error = "BROKER_NOT_AVAILABLE: no address answered: 127.0.0.1:1, 127.0.0.1:2: UNAVAILABLE: connection refused"
    lines = ended.stderr.splitlines()
    assert error in lines and sum(line.startswith("waiting for") for line in lines) <= 1, ended.stderr


def test_a_port_of_zookeeper_is_called_so_and_not_a_fault_of_tls() -> None:
    class AsZooKeeper(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            if self.request.recv(4) == b"srvr":
                self.request.sendall(b"srvr is not executed because it is not in the whitelist.\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), AsZooKeeper) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        ended = CliRunner().invoke(cli, ["topic", "list", "-b", address])
        server.shutdown()
    expected = f"no address answered: {address}: this is a port of ZooKeeper, not of a broker or controller\n"
    assert expected in ended.stderr and "SSL" not in ended.stderr, ended.stderr


def test_the_active_controller_is_in_the_json_output(cluster: FakeCluster) -> None:
    cluster.controller.stop()
    (row,) = json.loads(run(cluster, "controller describe -o json").stdout)
    assert (row["controller"], row["active"]) == (CONTROLLER_ID, False)


def test_a_partition_in_the_form_of_a_folder_gets_a_hint(cluster: FakeCluster) -> None:
    cluster.topic("rides")
    for command in ("consume rides-0 -e", "partition describe rides-0", "produce rides-0"):
        assert run(cluster, command).stderr.endswith("\npartition 0 of topic rides is written rides/0\n")


def test_topics_that_were_deleted_are_named_beside_those_that_were_not(cluster: FakeCluster) -> None:
    cluster.topic("here")
    ended = run(cluster, "topic delete never here never-either --yes")
    assert (ended.exit_code, ended.stdout) == (64 + 5, "deleted here\n"), ended.stderr
    assert ["never" in line for line in ended.stderr.splitlines()] == [True, True], ended.stderr


def test_a_topic_that_is_named_twice_is_shown_and_deleted_once(cluster: FakeCluster) -> None:
    cluster.topic("twice")
    assert len(json.loads(run(cluster, "topic describe twice twice -o json").stdout)) == 1
    assert run(cluster, "topic delete twice twice --yes").stdout == "deleted twice\n"


def test_partitions_with_a_leader_are_described_beside_those_without(cluster: FakeCluster) -> None:
    cluster.topic("mixed", 2)
    cluster.move(TopicPartition("mixed", 1), None)
    ended = run(cluster, "partition describe mixed -o json")
    assert ended.exit_code == VERDICT
    sentence = f"mixed/1 has no leader, because controller {CONTROLLER_ID} has not elected one yet"
    assert sentence in ended.stderr.splitlines()
    rows = json.loads(ended.stdout)
    assert [row["findings"][0] == sentence for row in rows] == [False, True, True]
    assert [(row["partition"], row["leo"]) for row in rows] == [("mixed/0", 0), ("mixed/1", None), ("mixed/1", None)]
    assert len({tuple(sorted(row)) for row in rows}) == 1, "every row has the same keys"


def hears_interrupts() -> None:
    """Restore the default action of SIGINT, which shells set to ignore for background processes and their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_produce_reports_the_cause_of_a_wait(cluster: FakeCluster) -> None:
    cluster.topic("short")
    with subprocess.Popen(
        [str(PACELINE), "produce", "short", "-b", cluster.bootstrap],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as writer:
        try:
            assert writer.stdin is not None and writer.stderr is not None
            cluster.faults.refuse_always = ErrorCode.NOT_ENOUGH_REPLICAS
            writer.stdin.write(b"a\nb\n")
            writer.stdin.close()
            assert writer.stderr.readline().startswith(b"waiting: NOT_ENOUGH_REPLICAS: ")
        finally:
            writer.kill()


def test_an_interrupted_produce_reports_the_outcome_of_the_records_it_had_read(cluster: FakeCluster) -> None:
    cluster.topic("typed")
    with subprocess.Popen(
        [str(PACELINE), "produce", "typed", "-b", cluster.bootstrap],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=hears_interrupts,
    ) as writer:
        try:
            assert writer.stdin is not None and writer.stderr is not None
            writer.stdin.write(b"a\nb\n")
            writer.stdin.flush()
            wait_for(lambda: cluster.values("typed")[0] == [b"a", b"b"])
            writer.send_signal(signal.SIGINT)
            assert writer.wait(60) == INTERRUPTED
            assert writer.stderr.read() == b"2 records: 2 to typed/0\ninterrupted\n"
        finally:
            writer.kill()


@pytest.mark.parametrize("start", ["2", "3", "100"])
def test_no_record_before_the_requested_offset_is_printed(cluster: FakeCluster, start: str) -> None:
    cluster.topic("short")
    assert run(cluster, "produce short", b"zero\none\ntwo\n").exit_code == 0
    ended = run(cluster, f"consume short --from {start} -e")
    assert (ended.exit_code, ended.stdout) == (0, "two\n" if start == "2" else "")
    assert ended.stderr == ("short/0: offset 100 is beyond the end, continuing at 3\n" if start == "100" else "")


def test_values_are_printed_as_the_bytes_they_are(cluster: FakeCluster) -> None:
    cluster.topic("bytes")
    assert run(cluster, "produce bytes", b"caf\xe9\n\xff\xfe\x00\n").exit_code == 0
    assert run(cluster, "consume bytes -e").stdout_bytes == b"caf\xe9\n\xff\xfe\x00\n"


def test_a_dead_broker_is_listed_while_replicas_are_assigned_to_it(cluster: FakeCluster) -> None:
    cluster.topic("held", 2)
    cluster.brokers[2].stop()
    rows = json.loads(run(cluster, "broker list -o json").stdout)
    assert [(row["broker"], row["live"], row["replicas"]) for row in rows] == [(1, True, 2), (2, False, 2)]


def test_an_unknown_broker_is_named_in_output_without_a_title(cluster: FakeCluster) -> None:
    ended = run(cluster, "broker describe 9 -o json")
    assert (ended.exit_code, json.loads(ended.stdout), ended.stderr) == (VERDICT, [], "broker 9 is not live\n")
