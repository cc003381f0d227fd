"""`paceline log` on real files: locks, exit codes, output formats, and that nothing is changed."""

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.broker.groups.records import OffsetValue, encode_group_key, encode_offset_key, encode_offset_value
from paceline.cli.commands import cli
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.os_files import OsFiles
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.identifiers import TopicPartition
from tests.unit.log.helpers import NOW_MS, batch

OFFSETS = TopicPartition("__consumer_offsets", 0)
FIRST = "00000000000000000000"


def manager(directory: Path) -> LogManager:
    found = LogManager(OsFiles(), [str(directory)], LogConfig(), on_dir_failure=lambda _path, _error: None)
    found.load(NOW_MS)
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log directory after a clean stop, with the logs of two partitions."""
    directory = tmp_path / "data"
    found = manager(directory)
    log = found.get_or_create(TopicPartition("t", 0), "A" * 22, True)
    log.append_as_leader(batch(b"v", None, b"\xff", producer=(9, 0, 0)), 0, NOW_MS)
    log.append_as_leader(batch(b"w", producer=(9, 0, 3)), 0, NOW_MS)
    log = found.get_or_create(OFFSETS, "B" * 22, True)
    committed = encode_offset_value(OffsetValue(42, 5, "note", NOW_MS))
    records = [
        (encode_offset_key("shop", TopicPartition("t", 0)), committed),
        (encode_offset_key("shop", TopicPartition("t", 0)), None),
        (encode_group_key("shop"), None),
    ]
    for key, value in records:
        log.append_as_leader(encode_batch([NewRecord(NOW_MS, key, value)]), 0, NOW_MS)
    found.shutdown()
    return directory


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["log", *map(str, arguments)])


def state_of(directory: Path) -> dict[Path, tuple[int, bytes]]:
    """Every file and folder with its time of change and content."""
    paths = [directory, *directory.rglob("*")]
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}


@pytest.mark.parametrize("verb", ["dump", "verify", "offsets"])
@pytest.mark.parametrize("output", ["table", "json", "ndjson"])
@pytest.mark.parametrize("place", [".", "__consumer_offsets-0"])
def test_nothing_is_changed(data: Path, verb: str, output: str, place: str) -> None:
    before = state_of(data)
    ended = run(verb, data / place, "-o", output)
    assert ended.exit_code == 0, ended.output
    assert state_of(data) == before


def test_no_file_is_opened_for_writing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, real = [], os.open

    def recorded(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        opened.append(flags)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", recorded)
    assert run("verify", data).exit_code == 0
    assert opened and not any(flags & (os.O_ACCMODE | os.O_CREAT | os.O_TRUNC) for flags in opened)


@pytest.mark.parametrize("verb", ["dump", "verify", "offsets"])
@pytest.mark.parametrize("place", [".", "t-0"])
def test_a_directory_that_a_running_broker_has_locked_is_refused(data: Path, verb: str, place: str) -> None:
    running = manager(data)
    ended = run(verb, data / place)
    assert (ended.exit_code, ended.stdout) == (1, "")
    expected = f"LOCAL_FAILURE: {data}: a running broker has locked this log directory; stop the broker first\n"
    assert ended.stderr == expected
    running.shutdown()
    assert run(verb, data / place).exit_code != 1


def test_a_log_that_was_set_aside_is_read_while_the_broker_runs(data: Path) -> None:
    aside = data / f"t-0.{'0' * 32}-damaged"
    (data / "t-0").rename(aside)
    running = manager(data)
    assert run("verify", aside).exit_code == 0
    running.shutdown()


@pytest.fixture
def other_reader(data: Path) -> Iterator[None]:
    with (data / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@pytest.mark.usefixtures("other_reader")
def test_two_readers_do_not_refuse_each_other(data: Path) -> None:
    assert run("verify", data).exit_code == 0


def test_a_missing_directory_is_a_failure_on_this_machine(tmp_path: Path) -> None:
    ended = run("verify", tmp_path / "none", "-o", "json")
    assert ended.exit_code == 1
    assert json.loads(ended.stderr)["error"]["reason"] == "LOCAL_FAILURE"


def test_verify_ends_with_3_for_damage_and_with_0_for_notes(data: Path) -> None:
    assert run("verify", data).stdout == "broken rules: 0\n"
    (data / "t-0" / "core").touch()
    ended = run("verify", data)
    assert ended.exit_code == 0 and ended.stdout.startswith("note: t-0/core, byte 0: stray:")
    segment = data / "t-0" / f"{FIRST}.log"
    content = bytearray(segment.read_bytes())
    content[70] ^= 1
    segment.write_bytes(content)
    ended = run("verify", data)
    assert ended.exit_code == 3
    assert f"broken: t-0/{FIRST}.log, byte 17: batch: the checksum differs from that of bytes 21 to" in ended.stdout
    assert ended.stdout.endswith("\nbroken rules: 1\n")
    rows = [json.loads(line) for line in run("verify", data, "-o", "ndjson").stdout.splitlines()]
    assert rows == json.loads(run("verify", data, "-o", "json").stdout)
    assert [(row["file"], row["broken"]) for row in rows] == [("t-0/core", False), (f"t-0/{FIRST}.log", True)]


def test_dump_shows_records_in_words_and_bytes_that_are_not_text_as_base64(data: Path) -> None:
    rows = [json.loads(line) for line in run("dump", data / "t-0", "--records", "-o", "ndjson").stdout.splitlines()]
    (first, _) = [row for row in rows if row["kind"] == "batch"]
    assert [record["value"] for record in first["records"]] == ["v", None, {"base64": "/w=="}]
    (producer,) = [row for row in rows if row["kind"] == "producer"]
    assert (producer["last_sequence"], [each["last_sequence"] for each in producer["earlier_batches"]]) == (3, [2])
    lines = run("dump", data / "t-0", "--records").stdout
    assert f"{FIRST}.log, byte 0: batch: base offset 0, " in lines
    assert '\n    record: offset 1, timestamp 1001, key "k", value null, sequence 1\n' in lines
    assert "leader-epoch-checkpoint: epoch: leader epoch 0, start offset 0\n" in lines


def test_dump_continues_after_a_file_that_it_cannot_read_and_ends_with_3(data: Path) -> None:
    (data / "t-0" / f"{FIRST}.log").write_bytes(b"x" * 100)
    ended = run("dump", data, "-o", "ndjson")
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    (bad,) = [row for row in rows if row["kind"] == "unreadable"]
    assert (ended.exit_code, bad["file"], bad["position"]) == (3, f"t-0/{FIRST}.log", 0)
    assert rows[-1]["file"] == "t-0/partition.metadata"


def test_offsets_are_those_of_the_offsets_topic_only(data: Path) -> None:
    rows = [json.loads(line) for line in run("offsets", data, "-o", "ndjson").stdout.splitlines()]
    assert {row["file"] for row in rows} == {f"__consumer_offsets-0/{FIRST}.log"}
    assert [(row["kind"], row["group"], row["deleted"]) for row in rows] == [
        ("committed offset", "shop", False),
        ("committed offset", "shop", True),
        ("group", "shop", True),
    ]
    assert (rows[0]["topic"], rows[0]["partition"], rows[0]["offset"], rows[0]["metadata"]) == ("t", 0, 42, "note")
    assert "committed offset: group shop, topic t, partition 0, offset 42" in run("offsets", data).stdout


def test_a_record_that_is_no_group_record_ends_offsets_with_3(data: Path) -> None:
    ended = run("offsets", data / "t-0", "-o", "ndjson")
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.exit_code == 3 and {row["kind"] for row in rows} == {"unreadable"} and len(rows) == 4
