"""Commands that `paceline dev` prints for its user."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from paceline.dev.detached_cluster import alive, stop_detached
from tests.support.waiting import eventually


def test_a_cluster_in_another_directory_is_stopped_by_the_command_that_is_shown(tmp_path: Path) -> None:
    directory = tmp_path / "of mine"
    directory.mkdir()
    # A process belongs to the cluster when its command line names the directory.
    command = [sys.executable, "-c", "import time; time.sleep(600)", str(directory)]
    with subprocess.Popen(command) as process:
        try:
            # The kernel shows the new command line a moment after exec.
            eventually(lambda: alive(process.pid, directory), 60.0, "the command line names the directory")
            state = {"zookeeper": {"connect": "127.0.0.1:2181", "pid": process.pid}, "nodes": []}
            (directory / "cluster.json").write_text(json.dumps(state))
            refused = CliRunner().invoke(cli, ["dev", "up", "--directory", str(directory)])
            shown = re.search(r"stop it with: paceline (.*)", refused.stderr)
            assert shown is not None, refused.stderr
            stopped = CliRunner().invoke(cli, shlex.split(shown[1]))
            assert (stopped.exit_code, stopped.stdout) == (0, "stopped: zookeeper\n")
            assert process.wait(60) != 0
        finally:
            process.kill()


def test_a_secure_cluster_does_not_start_on_the_data_of_a_plain_one(tmp_path: Path) -> None:
    (tmp_path / "zookeeper").mkdir()
    try:
        refused = CliRunner().invoke(cli, ["dev", "up", "--secure", "--directory", str(tmp_path)])
    finally:
        stop_detached(tmp_path)
    assert refused.exit_code != 0
    assert refused.stderr.count("\n") == 1
    assert f"{tmp_path} has the data of a cluster without TLS" in refused.stderr
    assert "choose another directory" in refused.stderr
    assert refused.stdout == "false\n", "eval must fail"
    assert [path.name for path in tmp_path.iterdir()] == ["zookeeper"]


def test_a_plain_cluster_does_not_start_on_the_data_of_a_secure_one(tmp_path: Path) -> None:
    (tmp_path / "zookeeper").mkdir()
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs" / "zookeeper.password").touch(0o600)
    try:
        refused = CliRunner().invoke(cli, ["dev", "up", "--directory", str(tmp_path)])
    finally:
        stop_detached(tmp_path)
    assert refused.exit_code != 0
    assert "has the data of a cluster with TLS" in refused.stderr
    assert refused.stdout == ""


def _processes(directory: Path) -> None:
    nodes = [
        {"name": "broker-1", "pid": None, "client": "127.0.0.1:9102", "log": "x.log", "argv": ["--metrics-port=9111"]}
    ]
    state = {"zookeeper": {"connect": "127.0.0.1:2181", "pid": None}, "nodes": nodes}
    (directory / "cluster.json").write_text(json.dumps(state))


def test_a_shown_command_names_the_directory_of_the_cluster(tmp_path: Path) -> None:
    none = CliRunner().invoke(cli, ["dev", "stop", "broker-1", "--directory", str(tmp_path)])
    assert f"start one with: paceline dev up --directory {tmp_path}\n" in none.stderr
    _processes(tmp_path)
    ended = CliRunner().invoke(cli, ["dev", "stop", "broker-1", "--directory", str(tmp_path)])
    assert f"start it with: paceline dev start --directory {tmp_path} broker-1\n" in ended.stderr


def test_the_status_names_the_metrics_port_of_each_process(tmp_path: Path) -> None:
    _processes(tmp_path)
    shown = CliRunner().invoke(cli, ["dev", "status", "--directory", str(tmp_path), "-o", "json"])
    assert {row["name"]: row["metrics"] for row in json.loads(shown.stdout)} == {
        "zookeeper": None,
        "broker-1": "127.0.0.1:9111",
    }


def test_a_shown_command_is_found_by_a_shell_without_a_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/paceline", "dev", "status"])
    shown = ["dev", "status", "--directory", str(tmp_path)]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "with: .venv/bin/paceline dev up" in CliRunner().invoke(cli, shown).stderr
    found = tmp_path / "paceline"
    found.touch(0o755)
    assert "with: paceline dev up" in CliRunner().invoke(cli, shown).stderr
