"""Commands that change something, where no address answers."""

from types import TracebackType
from typing import Any

import pytest
from click.testing import CliRunner

import paceline_client
from paceline.cli.commands import cli
from paceline_client.errors import BootstrapError


class Unreachable:
    """An `Admin` that reaches no broker, and would wait for a controller for a minute."""

    def __enter__(self) -> "Unreachable":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def describe_cluster(self) -> Any:
        raise BootstrapError("no address answered")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was called, which waits for a minute")


@pytest.mark.parametrize(
    "command",
    [
        "topic create t",
        "topic alter t --set a=b",
        "topic add-partitions t --count 2",
        "topic delete t --yes",
        "broker alter 1 --set a=b",
        "partition elect --preferred --all",
        "partition elect --unclean t/0",
        "reassign start plan.json",
    ],
)
def test_a_change_of_an_unreachable_cluster_fails_as_soon_as_a_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, command: str
) -> None:
    (tmp_path / "plan.json").write_text('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paceline_client, "Admin", lambda *_: Unreachable())
    ended = CliRunner().invoke(cli, command.split())
    assert ended.exit_code == 64 + 14, ended.exception
    assert ended.stderr.startswith("BROKER_NOT_AVAILABLE: no address answered\nstart a local cluster"), ended.stderr
