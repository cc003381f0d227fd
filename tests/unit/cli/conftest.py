"""Fixtures of the tests of the command line."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def dev_clusters(monkeypatch: pytest.MonkeyPatch) -> dict[Path, str]:
    """Dev clusters that run on this machine, by directory: none, whatever the machine runs, unless a test adds one."""
    found: dict[Path, str] = {}
    monkeypatch.setattr("paceline.dev.detached_cluster.running_clusters", lambda: found)
    return found
