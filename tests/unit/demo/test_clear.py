"""What a run deletes before it begins, and `make clean` after it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.demo.run import NotARunError, clear


def test_a_kept_cluster_is_stopped_before_its_files_go(tmp_path: Path) -> None:
    cluster = tmp_path / "run" / "cluster"
    cluster.mkdir(parents=True)
    (tmp_path / "run" / "spark.log").touch()
    # Any process whose command line names the directory counts as one of the cluster's.
    kept = subprocess.Popen(
        [sys.executable, "-c", "print('up', flush=True); input()", str(cluster)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        # For a moment after exec() the command line of a new process reads as empty.
        assert kept.stdout is not None and kept.stdout.readline()
        state = {"zookeeper": {"pid": None}, "nodes": [{"name": "broker-1", "kind": "broker", "pid": kept.pid}]}
        (cluster / "cluster.json").write_text(json.dumps(state), encoding="utf-8")
        clear(tmp_path / "run")
        assert kept.wait(60) != 0
    finally:
        kept.kill()
        kept.communicate()
    assert not (tmp_path / "run").exists()


def test_a_directory_that_no_run_has_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(NotARunError):
        clear(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_a_directory_that_is_missing_or_empty_may_be_used(tmp_path: Path) -> None:
    clear(tmp_path / "missing")
    clear(tmp_path)
    assert not tmp_path.exists()
