"""The command's outermost layer."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.failures import INTERRUPTED
from paceline.cli.main import cli


def test_an_interrupt_outside_of_a_clusters_calls_has_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_directory: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.dev.local_cluster.read_state", interrupted)
    ended = CliRunner().invoke(cli, ["dev", "status"])
    assert (ended.exit_code, ended.stderr) == (INTERRUPTED, "interrupted\n")
