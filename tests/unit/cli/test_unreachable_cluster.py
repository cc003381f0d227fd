"""Commands that change something, where no address answers, and where the addresses in an error come from."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from click.testing import CliRunner

import paceline_client
from paceline.cli.commands import cli
from paceline_client.errors import BootstrapError


class Unreachable:
    """An `Admin` that reaches no broker; the waits of the command line have to be shorter than those of a library."""

    def __init__(self, bootstrap: str, connect_timeout_ms: int, controller_timeout_ms: int) -> None:
        assert connect_timeout_ms < 2_000 and controller_timeout_ms < 9_000

    def __enter__(self) -> "Unreachable":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise BootstrapError("no address answered")


@pytest.fixture(autouse=True)
def unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paceline_client, "Admin", Unreachable)
    monkeypatch.delenv("PACELINE_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.chdir(tmp_path)


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
def test_a_change_of_an_unreachable_cluster_names_the_default_address(tmp_path: Path, command: str) -> None:
    (tmp_path / "plan.json").write_text('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}')
    ended = CliRunner().invoke(cli, command.split())
    assert ended.exit_code == 64 + 14, ended.exception
    reason, hint, _rest = ended.stderr.partition("\n127.0.0.1:9102 is the default address: start a local cluster")
    assert (reason, bool(hint)) == ("BROKER_NOT_AVAILABLE: no address answered", True), ended.stderr


def hint_of(*arguments: str) -> str:
    return CliRunner().invoke(cli, ["topic", "list", *arguments]).stderr.splitlines()[-1]


def test_an_error_names_the_flag_the_variable_or_the_file_that_its_addresses_come_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dev_clusters: dict[Path, str]
) -> None:
    dev_clusters[Path("/other/build/dev")] = "127.0.0.1:8"
    other = "; the dev cluster of /other/build/dev has -b 127.0.0.1:8"
    state = tmp_path / "build" / "dev" / "cluster.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"bootstrap": "127.0.0.1:7"}')
    assert hint_of().startswith("127.0.0.1:7 is from build/dev/cluster.json: `") and "dev status" in hint_of()
    assert hint_of("-b", "127.0.0.1:6") == f"127.0.0.1:6 is from -b{other}"
    assert json.loads(hint_of("-b", "127.0.0.1:6", "-o", "json"))["error"]["hint"] == f"127.0.0.1:6 is from -b{other}"
    monkeypatch.setenv("PACELINE_BOOTSTRAP_SERVERS", "127.0.0.1:5")
    told = hint_of()
    assert told.startswith("127.0.0.1:5 is from PACELINE_BOOTSTRAP_SERVERS: change it") and told.endswith(other)


def test_a_variable_left_over_from_another_cluster_does_not_hide_the_one_that_runs_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dev_clusters: dict[Path, str]
) -> None:
    dev_clusters[tmp_path / "build" / "dev"] = "127.0.0.1:7"
    monkeypatch.setenv("PACELINE_BOOTSTRAP_SERVERS", "127.0.0.1:5")
    assert "unset PACELINE_BOOTSTRAP_SERVERS to use the dev cluster of this directory" in hint_of()
    assert "dev up" not in hint_of()


def test_a_dev_cluster_of_another_directory_at_the_default_address_is_named(dev_clusters: dict[Path, str]) -> None:
    dev_clusters[Path("/other/build/dev")] = "127.0.0.1:9102,127.0.0.1:9112"
    first = CliRunner().invoke(cli, ["topic", "list"]).stderr.splitlines()[0]
    assert first == "using the dev cluster of /other/build/dev, which has the default address 127.0.0.1:9102"
    named = CliRunner().invoke(cli, ["topic", "list", "-b", "127.0.0.1:9102"]).stderr
    assert "using the dev cluster" not in named
