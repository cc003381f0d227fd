"""`paceline doctor` names each thing that would keep a process from serving."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.runtime.doctor import Check, examine


@pytest.fixture
def zookeeper() -> Iterator[dict[str, str]]:
    """Answer the command srvr with the text under ``answer``; ``address`` is where."""
    state = {"answer": "Zookeeper version: 3.9\nMode: standalone\n"}
    server = socket.create_server(("127.0.0.1", 0))
    state["address"] = f"127.0.0.1:{server.getsockname()[1]}"

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                assert connection.recv(16) == b"srvr"
                connection.sendall(state["answer"].encode())

    threading.Thread(target=serve, daemon=True).start()
    yield state
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def run(tmp_path: Path, zookeeper: str, *more: str) -> dict[str, Check]:
    arguments = [
        "--broker-id=1", f"--zookeeper-connect={zookeeper}", f"--log-dirs={tmp_path / 'data'}",
        "--log-dir-min-free-bytes=0", "--listeners=CLIENT://127.0.0.1:0,REPLICATION://127.0.0.1:0,CONTROL://127.0.0.1:0",
        *more,
    ]  # fmt: skip
    return {check.subject: check for check in examine("broker", arguments, {})}


def test_a_process_that_can_serve_has_nothing_wrong(tmp_path: Path, zookeeper: dict[str, str]) -> None:
    found = run(tmp_path, zookeeper["address"])
    assert [check for check in found.values() if check.verdict == "wrong"] == []
    assert found[f"ZooKeeper {zookeeper['address']}"].text == "it serves as standalone"
    assert not (tmp_path / "data").exists()


def test_an_unknown_key_is_the_only_finding(tmp_path: Path) -> None:
    found = run(tmp_path, "127.0.0.1:1", "--log-dirz=/x")
    assert [check.verdict for check in found.values()] == ["wrong"]
    assert "log-dirz" in found["settings"].text


def test_an_ensemble_without_quorum_is_wrong(tmp_path: Path, zookeeper: dict[str, str]) -> None:
    zookeeper["answer"] = "This ZooKeeper instance is not currently serving requests\n"
    found = run(tmp_path, f"{zookeeper['address']},127.0.0.1:1")
    assert found[f"ZooKeeper {zookeeper['address']}"].text == "it serves no requests: its ensemble has no quorum"
    assert found["ZooKeeper 127.0.0.1:1"].text.startswith("it does not answer")
    assert (found["ZooKeeper"].verdict, found["ZooKeeper"].text[:24]) == ("wrong", "none of 2 servers serves")


def test_an_advertised_name_that_is_not_known_is_wrong(tmp_path: Path, zookeeper: dict[str, str]) -> None:
    advertised = "CLIENT://nowhere.invalid:9092,REPLICATION://127.0.0.1:1,CONTROL://127.0.0.1:2"
    found = run(tmp_path, zookeeper["address"], f"--advertised-listeners={advertised}")
    assert found["advertised CLIENT"].verdict == "wrong"
    assert "the name nowhere.invalid is not known here" in found["advertised CLIENT"].text


def test_a_running_process_must_answer_at_its_advertised_address(tmp_path: Path, zookeeper: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as running, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        used, free = running.getsockname()[1], unused.getsockname()[1]
        listeners = f"CLIENT://127.0.0.1:{used},REPLICATION://127.0.0.1:0,CONTROL://127.0.0.1:0"
        advertised = f"CLIENT://127.0.0.1:{free},REPLICATION://127.0.0.1:1,CONTROL://127.0.0.1:2"
        found = run(tmp_path, zookeeper["address"], f"--listeners={listeners}", f"--advertised-listeners={advertised}")
    assert found["listener CLIENT"].verdict == "warning"
    assert found["advertised CLIENT"].verdict == "wrong"
    assert "nothing answers there" in found["advertised CLIENT"].text


def test_a_log_directory_that_is_a_file_and_a_full_disk_are_wrong(tmp_path: Path, zookeeper: dict[str, str]) -> None:
    (tmp_path / "data").write_text("")
    assert run(tmp_path, zookeeper["address"])[f"log directory {tmp_path / 'data'}"].verdict == "wrong"
    (tmp_path / "data").unlink()
    found = run(tmp_path, zookeeper["address"], f"--log-dir-min-free-bytes={1 << 60}")
    assert "below log.dir.min.free.bytes" in found[f"log directory {tmp_path / 'data'}"].text
