"""Commands that `paceline dev` prints for its user."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

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
