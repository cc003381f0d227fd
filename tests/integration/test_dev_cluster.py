"""`paceline dev` controls single processes of a running cluster, and starts again in the same directory."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.cli.commands import cli
from paceline.dev.detached_cluster import alive, read_state
from tests.support.console_visitor import ConsoleVisitor
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]


def dev(directory: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["dev", *words, "--directory", str(directory)])


def running(directory: Path) -> dict[str, bool]:
    return {row["name"]: row["running"] for row in json.loads(dev(directory, "status", "-o", "json").stdout)}


def address_in(text: str) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", text)
    assert found is not None, text
    return found[0]


def test_a_killed_broker_is_started_again_and_ports_stay(tmp_path: Path) -> None:
    up = dev(tmp_path, "up", "--brokers", "1", "--controllers", "1", "--console")
    try:
        assert up.exit_code == 0, up.output
        visitor = ConsoleVisitor(address_in(up.stdout))
        assert "fewer than three brokers: default.replication.factor=1, min.insync.replicas=1" in up.stderr
        state = read_state(tmp_path)
        assert state is not None
        made = CliRunner().invoke(cli, ["topic", "create", "rides", "-b", state["bootstrap"]])
        assert (made.exit_code, made.stderr) == (0, ""), "a topic needs no options, and is writable"
        eventually(lambda: "rides/0" in visitor.partitions(), 60.0, "the console shows the topic")
        assert dev(tmp_path, "restart", "console").exit_code == 0
        ConsoleVisitor(address_in(dev(tmp_path, "logs", "console", "-n", "1").stdout))
        killed = dev(tmp_path, "kill", "broker-1")
        assert (killed.exit_code, killed.stdout) == (0, "killed broker-1\n")
        others = {"zookeeper": True, "controller-1000000": True, "gateway-1": True, "console": True}
        assert running(tmp_path) == {"broker-1": False, **others}
        again = dev(tmp_path, "up")
        assert again.exit_code == 1
        restart = f"paceline dev start --directory {tmp_path} broker-1"
        assert f"broker-1 is not running; start it with: {restart}" in again.stderr
        refused = dev(tmp_path, "stop", "broker-1")
        assert (refused.exit_code, refused.stderr) == (
            1,
            f"Error: broker-1 does not run; start it with: {restart}\n",
        )
        started = dev(tmp_path, "start", "broker-1")
        assert started.exit_code == 0, started.output
        assert all(running(tmp_path).values())
        twice = dev(tmp_path, "start", "broker-1")
        assert twice.exit_code == 1 and "broker-1 already runs with pid" in twice.stderr
        unknown = dev(tmp_path, "kill", "broker-7")
        assert unknown.exit_code == 1 and "it has controller-1000000, broker-1, gateway-1, console" in unknown.stderr
        shared = [path for path in tmp_path.rglob("*") if path.stat().st_mode & 0o077]
        private = {path.name for path in tmp_path.rglob("*")} - {path.name for path in shared}
        assert {
            "data",
            "address",
            "service.log",
            "state-change.log",
            "zookeeper.log",
            "meta.properties",
            "version-2",
        } <= private
        assert not any("data" in path.parts for path in shared), shared
        lines = (tmp_path / "broker-1" / "service.log").read_text(encoding="utf-8")
        assert "[info     ] listener without TLS: listener=CONTROL address=127.0.0.1:" in lines
        logs = dev(tmp_path, "logs", "broker-1", "-n", "1")
        assert logs.exit_code == 0 and logs.stdout.count("\n") == 1
        assert dev(tmp_path, "pause", "broker-1").exit_code == 0
        # A paused process handles a signal only after it is resumed.
        restarted = dev(tmp_path, "restart", "broker-1")
        assert restarted.exit_code == 0, restarted.output
        console = next(node for node in (read_state(tmp_path) or {})["nodes"] if node["name"] == "console")
        assert dev(tmp_path, "down").stdout == "stopped: console, gateway-1, broker-1, controller-1000000, zookeeper\n"
        assert not alive(console["pid"], tmp_path)
        second = dev(tmp_path, "up", "--brokers", "1", "--controllers", "1")
        assert second.exit_code == 0, second.output
        later = read_state(tmp_path)
        assert later is not None and later["bootstrap"] == state["bootstrap"]
    finally:
        dev(tmp_path, "down")
