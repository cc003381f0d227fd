"""A local cluster before its processes serve: refusals, and the state file."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.dev import local_cluster
from paceline.dev.detached_cluster import alive, read_state, stop_detached
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, LocalClusterError
from tests.support.waiting import eventually


def test_a_directory_with_a_comma_is_refused_and_not_created(tmp_path: Path) -> None:
    directory = tmp_path / "one,two"
    with pytest.raises(LocalClusterError, match="a comma, which separates log directories"):
        LocalCluster(directory, CONFIG_FILE).start(timeout_s=0.001)
    assert not directory.exists()


def test_a_password_file_that_a_killed_start_left_empty_gets_a_password(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, CONFIG_FILE, secure=True)
    path = cluster.certificates / "zookeeper.password"
    path.parent.mkdir()
    path.touch()
    user = cluster._zookeeper_user()
    assert user is not None and len(user[1]) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert cluster._zookeeper_user() == user, "the next start uses the same password"


class KilledError(BaseException):
    """Stands for SIGKILL: the process that starts the cluster does nothing more."""


@pytest.mark.parametrize("answers", [False, True], ids=["ZooKeeper does not answer yet", "a node does not serve yet"])
def test_processes_of_a_start_that_was_killed_are_found_and_stopped(
    answers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def launch(argv: list[str], _log: Path) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", *argv])
        started.append(process)
        # Popen returns while the kernel still executes execve: /proc has no command line for a moment.
        command_line = Path(f"/proc/{process.pid}/cmdline")
        eventually(command_line.read_bytes, 10.0, f"the command line of process {process.pid}", 0.001)
        return process

    class FakeZooKeeper:
        def __init__(self, directory: Path, on_launch: Callable[[], None] = lambda: None, **_: Any) -> None:
            self.pid: int | None = None
            self._directory = directory
            self._on_launch = on_launch

        def start(self) -> None:
            self.pid = launch([str(self._directory)], self._directory).pid
            self._on_launch()
            if not answers:
                raise KilledError

    def killed(*_: object) -> None:
        raise KilledError

    monkeypatch.setattr(local_cluster, "EmbeddedZooKeeper", FakeZooKeeper)
    monkeypatch.setattr(local_cluster, "launch", launch)
    monkeypatch.setattr(LocalCluster, "wait_ready", killed)
    monkeypatch.setattr(LocalCluster, "stop", lambda *_args, **_kwargs: None)  # SIGKILL leaves no time for it
    try:
        with pytest.raises(KilledError):
            LocalCluster(tmp_path, CONFIG_FILE, brokers=1, controllers=1, detached=True).start()
        nodes = ["broker-1", "controller-1000000"] if answers else []
        assert stop_detached(tmp_path) == [*nodes, "zookeeper"]
        assert len(started) == len(nodes) + 1
        assert not any(alive(process.pid, tmp_path) for process in started)
        assert read_state(tmp_path) is None
    finally:
        for process in started:
            process.kill()
            process.wait()
