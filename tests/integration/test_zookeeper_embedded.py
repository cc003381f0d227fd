"""The embedded server: real ZooKeeper as a child process, started, stopped, paused, killed."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.coordination.errors import JavaNotFoundError, ZooKeeperJarsNotFoundError, ZooKeeperStartError
from paceline.coordination.interface import Create, Exists, GetData, SessionState, ZkCode
from paceline.coordination.kazoo.client import KazooZooKeeper
from paceline.runtime import embedded_zookeeper as embedded
from paceline.runtime.embedded_zookeeper import EmbeddedZooKeeper
from tests.integration.real_time import PumpedScheduler
from tests.support.embedded_zookeeper import embedded_zookeeper, pause, resume
from tests.support.zookeeper.recorder import Recorder

needs_java = pytest.mark.zookeeper


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    """Start a server for one test, which may stop and pause it."""
    try:
        embedded.java_path()
        embedded.jars_path()
    except (JavaNotFoundError, ZooKeeperJarsNotFoundError) as error:
        pytest.skip(str(error))
    with embedded_zookeeper(tmp_path / "zk", heap_mib=64) as server:
        yield server


@needs_java
def test_nodes_and_sessions_survive_a_restart_and_pauses_are_waited_out(own_server: EmbeddedZooKeeper) -> None:
    scheduler = PumpedScheduler()
    # The session has to outlast the restart of the server, which is slow on a busy machine.
    client = KazooZooKeeper(f"{own_server.address}/a/b", 60_000, scheduler.post)
    recorder = Recorder(client)
    created = recorder.submit(Create("/p", b"1"), Create("/e", b"2", ephemeral=True))
    scheduler.run_until(lambda: bool(created))
    session_id, port = client.session_id, own_server.port
    own_server.kill()
    scheduler.run_until(lambda: not client.connected)
    own_server.start()
    assert own_server.port == port
    scheduler.run_until(lambda: client.connected)
    assert client.session_id == session_id
    pause(own_server)
    answers = recorder.submit(GetData("/p"), Exists("/e"))
    scheduler.run_for(200)
    assert not answers
    resume(own_server)
    scheduler.run_until(lambda: bool(answers))
    assert [answer.code for answer in answers] == [ZkCode.OK, ZkCode.OK]
    assert recorder.states == [SessionState.CONNECTED, SessionState.DISCONNECTED, SessionState.CONNECTED]
    client.close()


@needs_java
def test_long_and_short_sessions_are_granted_and_answers_to_four_letter_words(own_server: EmbeddedZooKeeper) -> None:
    assert own_server.command("ruok") == "imok"
    assert "not in the whitelist" in own_server.command("cons")
    settings = own_server.command("conf")
    assert "tickTime=500" in settings
    assert "maxSessionTimeout=60000" in settings and "maxClientCnxns=1000" in settings


@needs_java
def test_a_stopped_server_leaves_no_process_and_frees_its_port(own_server: EmbeddedZooKeeper) -> None:
    pid = own_server.pid
    assert pid is not None
    pause(own_server)
    own_server.stop()
    own_server.stop()
    assert own_server.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    socket.create_server((own_server.host, own_server.port)).close()


@needs_java
@pytest.mark.usefixtures("zookeeper_server")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs PR_SET_PDEATHSIG of Linux")
def test_the_server_ends_when_its_parent_is_killed(zookeeper_server: EmbeddedZooKeeper, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.support.embedded_zookeeper import embedded_zookeeper\n"
        f"server = embedded_zookeeper(Path({str(tmp_path / 'child')!r}), heap_mib=64); server.start()\n"
        "print(server.pid, server.port, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid, port = map(int, parent.stdout.readline().split())
        socket.create_connection(("127.0.0.1", port), 60).close()
        parent.kill()
    PumpedScheduler().run_until(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@needs_java
def test_a_port_that_is_taken_is_a_start_error_with_the_reason(own_server: EmbeddedZooKeeper, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = EmbeddedZooKeeper(tmp_path / "other", port=taken.getsockname()[1], heap_mib=64)
        with pytest.raises(ZooKeeperStartError, match=r"BindException|Address already in use"):
            server.start()
    assert not server.running


def test_without_java_the_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaNotFoundError, match="apt-get install openjdk-17-jre-headless"):
        embedded_zookeeper(tmp_path).start()


def test_without_pysparks_jars_the_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ZooKeeperJarsNotFoundError, match="PySpark jars not found"):
        embedded.jars_path()
