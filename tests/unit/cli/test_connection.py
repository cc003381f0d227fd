"""Flags that name a cluster and the certificates for it."""

import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from paceline.cli.completion import topic_names
from paceline.cli.connection import bootstrap_option
from paceline.model.errors import RequestTimedOutError
from paceline.rpc.security.client_tls import FILE_VARIABLES

CA, CERTIFICATE, KEY = FILE_VARIABLES


@click.command()
@bootstrap_option
def tell(bootstrap: str) -> None:
    click.echo(" ".join([bootstrap, *(os.environ.get(name, "-") for name in FILE_VARIABLES)]))


def test_certificates_from_flags_apply_while_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / name for name in ("ca.crt", "me.crt", "me.key")]
    for file in files:
        file.touch()
    monkeypatch.setenv(CA, "from the environment")
    monkeypatch.delenv(CERTIFICATE, raising=False)
    monkeypatch.delenv(KEY, raising=False)
    flags = [
        text for pair in zip(("--tls-ca", "--tls-cert", "--tls-key"), map(str, files), strict=True) for text in pair
    ]
    ended = CliRunner().invoke(tell, ["-b", "h:1", *flags])
    assert ended.stdout.split() == ["h:1", *map(str, files)], ended.stderr
    assert [os.environ.get(name) for name in FILE_VARIABLES] == ["from the environment", None, None]


def test_a_missing_certificate_file_is_wrong_usage(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.crt")
    ended = CliRunner().invoke(cli, ["topic", "list", "--tls-ca", missing])
    assert (ended.exit_code, missing in ended.stderr) == (2, True), ended.stderr


def test_a_certificate_without_its_key_is_refused_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FILE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "me.crt"
    file.touch()
    ended = CliRunner().invoke(cli, ["topic", "list", "--tls-cert", str(file), "-b", "127.0.0.1:1"])
    assert ended.exit_code == 64 + 3 and "certificate and key together" in ended.stderr, ended.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_names_the_command(shell: str) -> None:
    ended = CliRunner().invoke(cli, ["completion", shell])
    assert ended.exit_code == 0 and "_PACELINE_COMPLETE" in ended.stdout, ended.stderr


class _Admin:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def __enter__(self) -> "_Admin":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def list_topics(self, timeout_ms: int) -> list[str]:
        if self._bootstrap == "nobody:1":
            raise RequestTimedOutError("no answer")
        return ["orders", "rides", "rider"]


@pytest.mark.parametrize(("bootstrap", "names"), [("h:1", ["rides", "rider"]), ("nobody:1", [])])
def test_topic_names_are_completed_from_the_cluster_that_the_line_names(
    monkeypatch: pytest.MonkeyPatch, bootstrap: str, names: list[str]
) -> None:
    monkeypatch.setattr("paceline_client.Admin", _Admin)
    command: Any = tell
    context = click.Context(command)
    context.params["bootstrap"] = bootstrap
    assert topic_names(context, command.params[0], "ri") == names
