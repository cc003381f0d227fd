"""`paceline consume --from TIME` when the topic has no record of that time yet, `--from -N`, `--to` and `--filter`."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import paceline_client
from paceline.cli.commands import cli


class Topic:
    """An admin and a consumer of a topic with one partition and no young record; one is written during the look-up."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._end = 5
        self._position: int | None = None
        self._polls = 0

    def __enter__(self) -> "Topic":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def describe_topics(self, _names: Any) -> list[Any]:
        return [SimpleNamespace(partitions=[SimpleNamespace(partition=0, leader=1)])]

    def assign(self, partitions: Any) -> None:
        (self._tp,) = partitions

    def beginning_offsets(self, _partitions: Any) -> dict[Any, int]:
        return {self._tp: 1}

    def end_offsets(self, _partitions: Any) -> dict[Any, int]:
        return {self._tp: self._end}

    def offsets_for_times(self, _times: Any) -> dict[Any, None]:
        self._end += 1
        return {self._tp: None}

    def seek_to_end(self) -> None:
        self._position = None

    def position(self, _tp: Any) -> int:
        return self._end if self._position is None else self._position

    def seek(self, _tp: Any, offset: int) -> None:
        self._position = offset

    def poll(self, timeout_ms: int) -> dict[Any, list[Any]]:
        self._polls += 1
        assert self._polls < 10, "the record that was written during the look-up was skipped"
        begin = self._end if self._position is None else self._position
        self._position = self._end
        records = [
            SimpleNamespace(topic="t", partition=0, offset=offset, key=None, value=b"young", headers=[], timestamp_ms=0)
            for offset in range(begin, self._end)
        ]
        return {self._tp: records} if records else {}


def test_a_record_that_is_written_while_the_time_is_looked_up_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paceline_client, "Admin", Topic)
    monkeypatch.setattr(paceline_client, "Consumer", Topic)
    ended = CliRunner().invoke(cli, ["consume", "t", "--from", "10m", "-n", "1", "-b", "127.0.0.1:1"])
    assert (ended.exception, ended.output) == (None, "young\n")


@pytest.mark.parametrize(("start", "offsets"), [("-2", [3, 4]), ("-100", [1, 2, 3, 4]), ("-0", [])])
def test_a_negative_start_counts_from_the_end(monkeypatch: pytest.MonkeyPatch, start: str, offsets: list[int]) -> None:
    monkeypatch.setattr(paceline_client, "Admin", Topic)
    monkeypatch.setattr(paceline_client, "Consumer", Topic)
    arguments = ["consume", "t", "--from", start, "--exit-at-end", "-f", "%o\\n", "-b", "127.0.0.1:1"]
    ended = CliRunner().invoke(cli, arguments)
    assert (ended.exception, ended.output.split()) == (None, list(map(str, offsets)))


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--from", "1", "--to", "3"], [1, 2]),
        (["--from", "-10", "--to", "-2"], [1, 2]),
        (["--from", "2", "--to", "end"], [2, 3, 4]),
        (["--from", "1", "--to", "10m"], [1, 2, 3, 4]),
        (["--from", "1", "--to", "100", "-e"], [1, 2, 3, 4]),
        (["--from", "1", "--to", "0"], []),
        (["--from", "1", "-e", "--filter", "value=old"], []),
        (["--from", "1", "-n", "2", "--filter", "value~oun"], [1, 2]),
    ],
)
def test_records_before_the_end_that_match_are_printed(
    monkeypatch: pytest.MonkeyPatch, options: list[str], offsets: list[int]
) -> None:
    monkeypatch.setattr(paceline_client, "Admin", Topic)
    monkeypatch.setattr(paceline_client, "Consumer", Topic)
    ended = CliRunner().invoke(cli, ["consume", "t", *options, "-f", "%o\\n", "-b", "127.0.0.1:1"])
    assert (ended.exception, ended.output.split()) == (None, list(map(str, offsets)))


class TwoPartitions(Topic):
    """Partitions with the offsets 0 to 2 and 0 to 4, read one after the other; then they grow. Offset 2 is young."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self._ends = [3, 5]

    def describe_topics(self, _names: Any) -> list[Any]:
        return [SimpleNamespace(partitions=[SimpleNamespace(partition=index, leader=1) for index in range(2)])]

    def assign(self, partitions: Any) -> None:
        self._positions = dict.fromkeys(partitions, 99)
        assert len(self._positions) == len(partitions)

    def seek_to_beginning(self) -> None:
        self._positions = dict.fromkeys(self._positions, 0)

    def seek_to_end(self) -> None:
        self._positions = {tp: self._ends[tp.partition] for tp in self._positions}

    def end_offsets(self, partitions: Any) -> dict[Any, int]:
        return {tp: self._ends[tp.partition] for tp in partitions}

    def offsets_for_times(self, times: Any) -> dict[Any, Any]:
        return {tp: SimpleNamespace(offset=2) for tp in times}

    def position(self, tp: Any) -> int:
        return self._positions[tp]

    def poll(self, timeout_ms: int) -> dict[Any, list[Any]]:
        self._polls += 1
        assert self._polls < 10, "the command does not end"
        for tp, begin in self._positions.items():
            if begin < self._ends[tp.partition]:
                self._positions[tp] = self._ends[tp.partition]
                records = [
                    SimpleNamespace(
                        topic="t",
                        partition=tp.partition,
                        offset=offset,
                        key=b"k",
                        value=b"v",
                        headers=[],
                        timestamp_ms=7,
                    )
                    for offset in range(begin, self._ends[tp.partition])
                ]
                return {tp: records}
        self._ends = [end + 1 for end in self._ends]
        return {}


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        (["t", "--to", "-1"], "0@0 0@1 1@0 1@1 1@2 1@3"),
        (["t", "--to", "10m"], "0@0 0@1 1@0 1@1"),
        (["t", "--to", "4", "-e"], "0@0 0@1 0@2 1@0 1@1 1@2 1@3"),
        (["t/1", "--to", "end"], "1@0 1@1 1@2 1@3 1@4"),
        (["t/1", "t", "--to", "1"], "1@0 0@0"),
        (["t/1", "--from", "end", "--to", "6"], "1@5"),
        (["t/1", "--to", "7"], "1@0 1@1 1@2 1@3 1@4 1@5 1@6"),
    ],
)
def test_each_partition_ends_at_its_own_offset(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], places: str
) -> None:
    monkeypatch.setattr(paceline_client, "Admin", TwoPartitions)
    monkeypatch.setattr(paceline_client, "Consumer", TwoPartitions)
    ended = CliRunner().invoke(cli, ["consume", *arguments, "-f", "%p@%o ", "-b", "127.0.0.1:1"])
    assert (ended.exception, ended.output.strip()) == (None, places)


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_json_output_is_an_object_per_line(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(paceline_client, "Admin", TwoPartitions)
    monkeypatch.setattr(paceline_client, "Consumer", TwoPartitions)
    ended = CliRunner().invoke(cli, ["consume", "t/0", "--to", "2", "-o", form, "-b", "127.0.0.1:1"])
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(row["offset"], row["key"], row["timestamp_ms"]) for row in rows] == [(0, "k", 7), (1, "k", 7)]


@pytest.mark.parametrize(
    ("start", "said", "offsets"),
    [
        ("0", "t/0: offset 0 was deleted, continuing at 1\n", "1 2 3 4"),
        ("9", "t/0: offset 9 is beyond the end, continuing at 5\n", ""),
        ("4", "", "4"),
    ],
)
def test_a_start_outside_the_log_is_moved_into_it_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, start: str, said: str, offsets: str
) -> None:
    monkeypatch.setattr(paceline_client, "Admin", Topic)
    monkeypatch.setattr(paceline_client, "Consumer", Topic)
    ended = CliRunner().invoke(cli, ["consume", "t", "--from", start, "-e", "-f", "%o ", "-b", "127.0.0.1:1"])
    assert (ended.exception, ended.stderr, ended.stdout.strip()) == (None, said, offsets)
