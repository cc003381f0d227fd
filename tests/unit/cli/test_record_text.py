"""Format letters, filters and JSON lines of records; a wrong one is an error before any request to a cluster."""

from typing import Any

import click
import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from paceline.cli.record_text import from_json, parse_filters, parse_format, to_json
from paceline_client import ConsumerRecord


def record(key: bytes | None = b"k", value: bytes | None = b"v\xff", **more: Any) -> ConsumerRecord:
    headers: Any = more.pop("headers", (("trace", b"7"), ("none", None)))
    return ConsumerRecord("rides", 3, 41, more.pop("timestamp_ms", 1_700), key, value, headers)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("%k %v", b"k v\xff"),
        ("%t/%p@%o %T%%\\n", b"rides/3@41 1700%\n"),
        ("%s|%S|%V|%K", b"v\xff|2|2|1"),
        ("%h\\t\\x00\\q\\", b"trace=7,none=\t\x00\\q\\"),
        ("\u00e9%k\udcff", b"\xc3\xa9k\xff"),
        ("\\xZZ%k\\x7", b"\\xZZk\\x7"),
    ],
)
def test_a_format_has_the_letters_of_kcat(template: str, text: bytes) -> None:
    assert parse_format(template)(record()) == text


def test_the_length_of_null_is_minus_one_and_its_text_is_empty() -> None:
    assert parse_format("[%k%v] %K %S %T")(record(None, None, timestamp_ms=None)) == b"[] -1 -1 -1"


@pytest.mark.parametrize(
    ("filters", "is_shown"),
    [
        (["key=k"], True),
        (["key=K"], False),
        (["key!=k"], False),
        (["value~^v"], True),
        (["value=v"], False),
        (["header.trace=7"], True),
        (["header.trace~^[0-9]+$", "key=k"], True),
        (["header.trace=7", "key=other"], False),
        (["header.none="], False),
        (["header.absent!=7"], True),
        (["key=a=b"], False),
        (["value~\udcff$"], True),
        (["header.trace!=7"], False),
        (["header.twice=2"], True),
        (["header.twice!=2"], False),
    ],
)
def test_a_record_is_shown_when_every_filter_matches(filters: list[str], is_shown: bool) -> None:
    headers = (("trace", b"7"), ("none", None), ("twice", b"1"), ("twice", b"2"))
    assert parse_filters(tuple(filters))(record(headers=headers)) is is_shown


def test_a_text_with_operators_is_compared_as_it_is() -> None:
    assert parse_filters(("key=a=~b.",))(record(b"a=~b."))
    assert not parse_filters(("key=a.c",))(record(b"abc"))
    assert parse_filters(("value~a.c",))(record(value=b"a\nc")), "a dot matches the end of a line"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-f", "%k %x"], "%x is not a field; the fields are %k %v"),
        (["--filter", "keys=a"], "'keys=a' is not key, value or header.NAME, then =, != or ~"),
        (["--filter", "header.=a"], "is not key, value or header.NAME"),
        (["--filter", "value~("], "the regular expression is wrong: missing )"),
        (["--to", "soon"], "'soon' is neither end, an offset"),
        (["--to", "start"], "'start' is neither end, an offset"),
        (["--group", "g", "--to", "end"], "--group cannot be combined with a partition, --to"),
        (["--group", "g", "-e"], "--group cannot be combined with a partition, --to"),
        (["--group", "g", "--from", "10m"], "--group cannot be combined with a partition, --to"),
        (["t/0", "--group", "g"], "--group cannot be combined with a partition, --to"),
    ],
)
def test_a_wrong_option_of_consume_is_named_before_any_request(options: list[str], message: str) -> None:
    ended = CliRunner().invoke(cli, ["consume", "t", *options, "-b", "127.0.0.1:1"])
    assert (ended.exit_code, message in " ".join(ended.stderr.split())) == (2, True), ended.stderr


def test_a_record_survives_the_way_through_a_json_line() -> None:
    read = from_json(to_json(record()).encode())
    assert (read.key, read.value, read.headers) == (b"k", b"v\xff", [("trace", b"7"), ("none", None)])
    assert (read.partition, read.timestamp_ms) == (3, 1_700)


def test_headers_may_be_an_object_and_values_may_be_json() -> None:
    read = from_json(b'{"value": {"id": 1, "at": "\\u00e9"}, "headers": {"a": "b"}, "key": 7}')
    assert (read.value, read.headers) == ('{"id":1,"at":"\u00e9"}'.encode(), [("a", b"b")])
    assert (read.key, read.partition, read.timestamp_ms) == (b"7", None, None)
    bare = from_json(b'{"value": {"base64": "YQ==", "of": 1}, "headers": null, "key": null}')
    assert (bare.key, bare.value, bare.headers) == (None, b'{"base64":"YQ==","of":1}', [])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "is not JSON: "),
        (b"\xff", "is not JSON: "),
        (b"[" * 100_000, "is not JSON: "),
        (b"[1]", 'is not an object with a "value"'),
        (b'{"key": "a"}', 'is not an object with a "value"'),
        (b'{"value": "a", "kee": "b"}', "has the unknown field 'kee'"),
        (b'{"value": "a", "partition": "1"}', "has \"1\" as 'partition'"),
        (b'{"value": "a", "partition": true}', "has true as 'partition'"),
        (b'{"value": "a", "timestamp_ms": 9223372036854775808}', "has 9223372036854775808 as 'timestamp_ms'"),
        (b'{"value": "a", "timestamp_ms": -1}', "has -1 as 'timestamp_ms'"),
        (b'{"value": "a", "headers": [["a"]]}', 'has "headers" that are neither'),
        (b'{"value": {"base64": "?"}}', "has wrong base64"),
        (b'{"value": {"base64": 7}}', "has wrong base64"),
        (b'{"value": "\\ud800"}', "cannot be encoded as UTF-8"),
    ],
)
def test_a_wrong_json_line_is_refused_with_the_reason(line: bytes, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        from_json(line)
    assert message in str(refused.value)


def test_a_wrong_letter_is_an_error_of_the_option() -> None:
    with pytest.raises(click.BadParameter) as refused:
        parse_format("%")
    assert refused.value.param_hint == "--format"
