"""What a cluster on this machine refuses before it starts anything."""

from pathlib import Path

import pytest

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, LocalClusterError


def test_a_directory_that_log_dirs_would_split_is_refused_and_not_made(tmp_path: Path) -> None:
    directory = tmp_path / "one,two"
    with pytest.raises(LocalClusterError, match="a comma, which separates log directories"):
        LocalCluster(directory, CONFIG_FILE).start(timeout_s=0.001)
    assert not directory.exists()
