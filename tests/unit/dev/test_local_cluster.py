"""Refusals of a local cluster before it starts a process."""

from pathlib import Path

import pytest

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, LocalClusterError


def test_a_directory_with_a_comma_is_refused_and_not_created(tmp_path: Path) -> None:
    directory = tmp_path / "one,two"
    with pytest.raises(LocalClusterError, match="a comma, which separates log directories"):
        LocalCluster(directory, CONFIG_FILE).start(timeout_s=0.001)
    assert not directory.exists()
