"""Output of all commands: tables, titles, and readers that have ended."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli.output import show

PACELINE = Path(sys.executable).with_name("paceline")


def test_a_title_is_one_line_even_above_a_narrow_table(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"broker": 1}], "table", title="cluster frxdF-XnQsidWgf0_YpK-g, controller 1000000 epoch 1")
    assert capsys.readouterr().out == "cluster frxdF-XnQsidWgf0_YpK-g, controller 1000000 epoch 1\nbroker\n     1\n"


def test_a_title_is_printed_above_an_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    show([], "table", title="broker 9, not live")
    assert capsys.readouterr() == ("broker 9, not live\n", "nothing to show\n")


def test_control_characters_of_names_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"group": "a\x1b[2Jb\nc\u202ed", "topics": ["é", "\x07"]}], "table")
    _, row = capsys.readouterr().out.splitlines()
    assert row.split() == [r"a\x1b[2Jb\nc\u202ed", r"é,\x07"]


@pytest.mark.parametrize("terminal", ["", "1"], ids=["file", "narrow terminal"])
def test_wide_rows_stay_one_line_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", terminal)
    show([{"name": "x" * 300, "count": 1}], "table")
    header, row, *more = capsys.readouterr().out.splitlines()
    assert "name" in header and "x" * 300 in row and not [line for line in more if line.strip()]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    state = {"zookeeper": {"connect": "127.0.0.1:2181", "pid": None}, "nodes": []}
    (tmp_path / "cluster.json").write_text(json.dumps(state))
    return tmp_path


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_closed_output_ends_tables_and_json_without_a_traceback(directory: Path, output: str) -> None:
    nobody, end = os.pipe()
    os.close(nobody)
    command = [str(PACELINE), "dev", "status", "--directory", str(directory), "-o", output]
    ended = subprocess.run(command, stdout=end, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(end)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_full_disk_is_reported_in_one_line_even_after_calls_to_a_cluster(directory: Path, unbuffered: str) -> None:
    command = [str(PACELINE), "dev", "down", "--directory", str(directory)]
    more = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False, env=more)
    assert (ended.returncode, ended.stderr) == (1, b"LOCAL_FAILURE: No space left on device\n")


@pytest.mark.parametrize("text", ["[abc]", "[/x]", "[bold]x", ":b:", "2001:db8::a:1", "\\[x]", "a:smile:b"])
@pytest.mark.parametrize("terminal", ["", "1"], ids=["file", "terminal"])
def test_a_table_shows_the_text_of_a_cell_unchanged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: str, text: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", terminal)
    show([{text: text}], "table")
    header, row, *_ = capsys.readouterr().out.splitlines()
    assert text in header and row.strip() == text
