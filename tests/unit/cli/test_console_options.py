"""Options of `paceline console` that are refused before anything is served."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from google.protobuf import descriptor_pb2

from paceline.cli.commands import cli
from paceline.cli.console import _decoder


def told(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["console", "-b", "127.0.0.1:1", *arguments])
    assert result.exit_code in (1, 2), result.output
    return result.output


@pytest.mark.parametrize("text", ["rides", "rides=f", "=f:m", "rides=:m", "rides=f:"])
def test_a_descriptor_without_topic_file_and_message_is_refused(text: str) -> None:
    assert "is not TOPIC=FILE:MESSAGE" in told("--descriptors", text)


def test_a_descriptor_file_that_is_missing_or_something_else_is_named(tmp_path: Path) -> None:
    assert "no-such-file" in told("--descriptors", "rides=no-such-file:a.B")
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"\xff")
    assert "is not a descriptor file" in " ".join(told("--descriptors", f"rides={wrong}:a.B").replace("│", "").split())


def test_a_descriptor_may_have_a_colon_in_its_path(tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="a")
    file.message_type.add(name="B")
    path = tmp_path / "c:d"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    topic, decoder = _decoder(f"rides={path}:a.B")
    assert (topic, decoder.text(b"")) == ("rides", "{}")


def test_a_second_console_takes_a_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    lesson, ports = "docs/lessons/dead-leader.ndjson.gz", []
    monkeypatch.setattr("paceline.console.service.server.serve", lambda _source, _host, port, *_: ports.append(port))
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr("paceline.cli.console.CONSOLE", taken)
        for options in ([], [f"--port={taken}"]):
            assert CliRunner().invoke(cli, ["console", "--replay", lesson, *options]).exit_code == 0
    assert ports[0] not in (0, taken)
    assert ports[1] == taken


def test_a_recording_cannot_be_changed() -> None:
    assert "a recording has no records" in told("--replay", __file__, "--allow-changes")
