"""The format of recordings: what is written is read, and a file that is not whole says so."""

import gzip
import json
from pathlib import Path

import pytest

from paceline.console.recording import (
    EVENT,
    FAULT,
    Entry,
    Header,
    RecordingError,
    RecordingWriter,
    read_recording,
)

HEADER = Header(title="a test", origin="cluster", began_ms=1_700_000_000_000, made_by="pytest", steps=((5, "Look."),))
ENTRIES = [
    Entry(0, EVENT, {"kind": "broker-up", "replica": 1}),
    Entry(700, FAULT, {"who": "broker-1", "what": "crashes"}),
]


def written(*entries: Entry, end: bool = True) -> list[str]:
    lines: list[str] = []
    writer = RecordingWriter(lines.append, HEADER)
    for entry in entries:
        writer.add(entry)
    if end:
        writer.end()
    return lines


def test_what_is_written_is_read() -> None:
    recording = read_recording(written(*ENTRIES))
    assert recording.header == HEADER
    assert recording.entries == ENTRIES
    assert recording.cut is None


def test_entries_are_sorted_by_time() -> None:
    assert read_recording(written(*reversed(ENTRIES))).entries == ENTRIES


def test_a_file_without_its_last_line_plays_and_says_that_it_was_cut_off() -> None:
    recording = read_recording(written(*ENTRIES, end=False))
    assert recording.entries == ENTRIES
    assert "cut off after line 3" in (recording.cut or "")


@pytest.mark.parametrize("left", range(1, 40, 7))
def test_a_file_cut_off_within_a_line_plays_up_to_the_line_before(left: int) -> None:
    lines = written(*ENTRIES, end=False)
    recording = read_recording([*lines[:-1], lines[-1][:left]])
    assert recording.entries == ENTRIES[:1]
    assert "cut off at line 3" in (recording.cut or "")


@pytest.mark.parametrize("bad", ['{"t":"soon","event":{}}\n', '{"t":1,"event":[]}\n', "\x00\n"])
def test_a_damaged_line_ends_the_recording(bad: str) -> None:
    recording = read_recording([*written(*ENTRIES, end=False), bad, *written()[1:]])
    assert recording.entries == ENTRIES
    assert "cut off at line 4" in (recording.cut or "")


def test_a_compressed_file_that_was_cut_off_plays_up_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "cut.ndjson.gz"
    many = [Entry(t, FAULT, {"who": f"broker-{t * 7919}", "what": "crashes"}) for t in range(2_000)]
    whole = gzip.compress("".join(written(*many)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with gzip.open(path, "rt") as lines:
        recording = read_recording(lines)
    assert 0 < len(recording.entries) < 2_000
    assert recording.entries == many[: len(recording.entries)]
    assert "cut off at line" in (recording.cut or "")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG\xff\xfe\x00" * 99)
    with path.open(encoding="utf-8") as lines, pytest.raises(RecordingError, match="cannot be read"):
        read_recording(lines)


def test_kinds_and_members_of_later_programs_are_ignored() -> None:
    lines = written(*ENTRIES)
    lines[0] = json.dumps({**json.loads(lines[0]), "colour": "red"}) + "\n"
    recording = read_recording([*lines[:-1], '{"t":800,"weather":{}}\n', '["x"]\n', lines[-1]])
    assert recording.entries == ENTRIES
    assert recording.cut is None


def test_another_version_is_refused_by_name() -> None:
    line = written()[0].replace('"paceline_recording":1', '"paceline_recording":2')
    with pytest.raises(RecordingError, match="version 2, this program reads version 1"):
        read_recording([line])


@pytest.mark.parametrize("first", ["", "\n", "{}\n", "[]\n", "7\n", "PNG", '{"paceline_recording":1}\n'])
def test_another_file_is_refused(first: str) -> None:
    with pytest.raises(RecordingError, match="header"):
        read_recording([first])
