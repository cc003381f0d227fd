"""Lines of stdin as records: lines that exceed a record take no memory, and empty values may be tombstones."""

import io
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import paceline_client
from paceline.cli.commands import cli
from paceline.cli.produce import _ENDLESS_BYTES, _MAX_LINE_BYTES, _lines

LONGEST = b"x" * (_MAX_LINE_BYTES - 1) + b"\n"


@pytest.mark.parametrize("length", [_MAX_LINE_BYTES, 3 * _MAX_LINE_BYTES])
def test_a_line_too_long_for_a_record_is_skipped_and_the_next_one_is_read(length: int) -> None:
    text = b"a\n" + LONGEST + b"x" * length + b"\nb"
    assert list(_lines(io.BytesIO(text))) == [b"a\n", LONGEST, None, b"b"]


def test_a_last_line_too_long_for_a_record_is_skipped() -> None:
    assert list(_lines(io.BytesIO(b"x" * (2 * _MAX_LINE_BYTES)))) == [None]


def test_an_input_without_line_ends_is_not_kept_in_memory_and_ends() -> None:
    with open("/dev/full", "rb") as endless:
        tracemalloc.start()
        assert list(_lines(endless)) == [None]
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < 8 * _MAX_LINE_BYTES < _ENDLESS_BYTES


@pytest.fixture
def details() -> list[tuple[int | None, list[tuple[str, bytes | None]], int | None]]:
    """Partition, headers and timestamp of every record that a command sends."""
    return []


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, details: list[Any]) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of every record that a command sends."""
    sent: list[tuple[bytes | None, bytes | None]] = []

    class Cluster:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __enter__(self) -> "Cluster":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def describe_topics(self, _names: Any) -> list[Any]:
            return [SimpleNamespace(partitions=[SimpleNamespace(partition=index) for index in range(3)])]

        def send(self, _topic: str, value: bytes | None, key: bytes | None, **more: Any) -> None:
            sent.append((key, value))
            details.append((more["partition"], more["headers"], more["timestamp_ms"]))

        def flush(self, _timeout_s: float) -> None:
            pass

    monkeypatch.setattr(paceline_client, "Admin", Cluster)
    monkeypatch.setattr(paceline_client, "Producer", Cluster)
    return sent


def test_a_wrong_json_line_is_named_by_its_number_and_not_sent(sent: list[tuple[bytes | None, bytes | None]]) -> None:
    lines = '{"key": "a", "value": "1"}\nvalue\n{"value": "2", "partition": 9}\n{"value": null}\n'
    ended = CliRunner().invoke(cli, ["produce", "t", "--input", "json", "--key", "k"], input=lines)
    assert (ended.exit_code, sent) == (1, [(b"a", b"1"), (b"k", None)]), ended.output
    assert "line 2: is not JSON: Expecting value at column 1; not sent\n" in ended.output
    assert "line 3: names partition 9, but t has 3 partitions; not sent\n" in ended.output


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_a_json_line_is_sent_as_it_says_and_with_the_headers_of_the_command(
    sent: list[tuple[bytes | None, bytes | None]], details: list[Any], form: str
) -> None:
    lines = '{"value": "1", "partition": 1, "headers": {"b": "2"}, "timestamp_ms": 17}\n{"value": "2"}\n'
    ended = CliRunner().invoke(cli, ["produce", "t/2", "--input", form, "-H", "a=1"], input=lines)
    assert (ended.exit_code, sent) == (0, [(None, b"1"), (None, b"2")]), ended.output
    assert details == [(1, [("a", b"1"), ("b", b"2")], 17), (2, [("a", b"1")], None)]


def test_options_of_plain_lines_do_not_apply_to_json_lines(sent: list[tuple[bytes | None, bytes | None]]) -> None:
    for option in ("--tombstone", "--key-separator=:"):
        ended = CliRunner().invoke(cli, ["produce", "t", "-i", "json", option], input='{"value": ""}\n')
        assert (ended.exit_code, sent) == (2, []) and "neither --key-separator nor --tombstone" in ended.output


@pytest.mark.parametrize(("options", "emptied"), [((), b""), (("--tombstone",), None)])
def test_an_empty_value_is_null_only_with_tombstone(
    sent: list[tuple[bytes | None, bytes | None]], options: tuple[str, ...], emptied: bytes | None
) -> None:
    ended = CliRunner().invoke(cli, ["produce", "t", "--key-separator", ":", *options], input="a:1\nb:\n")
    assert (ended.exit_code, sent) == (0, [(b"a", b"1"), (b"b", emptied)]), ended.output


def test_a_line_without_the_separator_is_an_error_with_its_number(
    sent: list[tuple[bytes | None, bytes | None]],
) -> None:
    ended = CliRunner().invoke(cli, ["produce", "t", "--key-separator", ":"], input="a:1\nnocolon\nb:2\n")
    assert ended.exit_code == 1 and sent == [(b"a", b"1"), (b"b", b"2")]
    assert "line 2: has no ':' between key and value; not sent" in ended.output


def test_a_line_without_the_separator_gets_the_key_of_the_command(
    sent: list[tuple[bytes | None, bytes | None]],
) -> None:
    ended = CliRunner().invoke(cli, ["produce", "t", "--key-separator", ":", "--key", "k"], input="a:1\nnocolon\n")
    assert (ended.exit_code, sent) == (0, [(b"a", b"1"), (b"k", b"nocolon")]), ended.output
