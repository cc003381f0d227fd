"""Files that a run of the flights example deletes before it begins, and `make clean` after it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from examples.flights.run import NotARunError, clear, main


def test_a_kept_cluster_is_stopped_before_its_files_are_deleted(tmp_path: Path) -> None:
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


def test_a_directory_that_no_run_has_written_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(NotARunError):
        clear(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_a_directory_that_is_missing_or_empty_may_be_used(tmp_path: Path) -> None:
    clear(tmp_path / "missing")
    clear(tmp_path)
    assert not tmp_path.exists()


def test_a_refused_directory_is_named_with_any_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Square brackets are markup to rich: some would be swallowed, others end the program with an error of its own."""
    monkeypatch.chdir(tmp_path)
    odd = Path("[bold]") / "[" / "it]"
    odd.mkdir(parents=True)
    (odd / "thesis.tex").touch()
    for arguments in (["--clean"], []):
        assert main([*arguments, "--directory", str(odd)]) == 1
        assert "[bold]/[/it] has files" in capsys.readouterr().out.replace("\n", "")
    (tmp_path / "file").touch()
    assert main(["--directory", "file/below"]) == 1
    assert "file/below" in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize("text", ["inf", "nan", "-1", "soon"])
def test_an_invalid_pace_is_refused_before_a_process_starts(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--duration-s", text, "--directory", str(tmp_path / "run")])
    assert "--duration-s" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
