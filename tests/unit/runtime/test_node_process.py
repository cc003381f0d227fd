"""A process that cannot start says why, without a traceback."""

import logging
from pathlib import Path

import pytest

from paceline.runtime import node_process
from paceline.runtime.lifecycle import ExitCode
from paceline.runtime.logging import STATE_CHANGE_LOGGER, _configure_json_log
from paceline.runtime.settings import load_controller


def test_a_state_change_log_that_cannot_be_written_ends_the_start_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger(STATE_CHANGE_LOGGER)
    for attribute in ("propagate", "level"):
        monkeypatch.setattr(logger, attribute, getattr(logger, attribute))  # restores it at the end
    monkeypatch.setattr(
        node_process, "configure_logging", lambda *given, **_: _configure_json_log(STATE_CHANGE_LOGGER, given[2])
    )
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "state-change.log"
    settings = load_controller(["--zookeeper-connect=zk:2181", f"--state-change-log-path={path}"], {})

    def make(*_: object) -> node_process.NodeProcess:
        raise AssertionError("the process must not start")

    assert node_process.run_process(make, settings, {}) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert (
        said.startswith("paceline controller: state.change.log.path or audit.log.path cannot be written:")
        and str(tmp_path) in said
    )
