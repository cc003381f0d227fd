"""JSON values become typed columns or name the reason why not."""

import datetime as dt
import json

import pyarrow as pa
import pytest

from paceline.model.errors import InvalidConfigError
from paceline.pipeline.jobs.values.columns import parse_columns
from paceline.pipeline.jobs.values.json_values import MAX_DEPTH, JsonParser
from paceline.pipeline.jobs.values.parser import BadValueError, parse_values

COLUMNS = "id:long, name:string?, price:double?, tags:list<string>?, at:timestamp?, day:date?, rest:json?"


def parser(text: str = COLUMNS) -> JsonParser:
    return JsonParser(parse_columns(text))


def test_every_type_of_column_takes_its_json_form() -> None:
    columns = parser("b:boolean, i:int, l:long, f:float, d:double, s:string, y:binary, t:timestamp, a:date, j:json")
    value = {
        "b": True, "i": -(2**31), "l": 2**63 - 1, "f": 0.5, "d": 1, "s": "é\u0000", "y": "AAE=",
        "t": "2026-01-31T12:00:00.5+02:00", "a": "2026-01-31", "j": {"x": [1, None]},
    }  # fmt: skip
    found = parse_values(columns, pa.array([json.dumps(value).encode()], type=pa.binary()))
    assert not found.bad
    row = {name: array[0].as_py() for name, array in found.arrays.items()}
    assert row["l"] == 2**63 - 1 and row["i"] == -(2**31) and row["y"] == b"\x00\x01" and row["d"] == 1.0
    assert row["s"] == "é\u0000" and row["j"] == '{"x":[1,null]}' and row["a"] == dt.date(2026, 1, 31)
    assert row["t"] == dt.datetime(2026, 1, 31, 10, 0, 0, 500_000, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "null-value"),
        (b"", "empty-value"),
        (b"\xff\xfe{}", "invalid-utf8"),
        (b'{"id": 1', "invalid-json"),
        (b'{"id": 1} x', "invalid-json"),
        (b'\xef\xbb\xbf{"id": 1}', "invalid-json"),
        (b"[1]", "not-an-object"),
        (b"null", "not-an-object"),
        (b'{"id": 1, "id": 2}', "duplicate-field"),
        (b'{"id": 1, "rest": {"a": 1, "a": 2}}', "duplicate-field"),
        (b'{"name": "x"}', "missing-field"),
        (b'{"id": null}', "missing-field"),
        (b'{"id": "1"}', "wrong-type"),
        (b'{"id": 1.0}', "wrong-type"),
        (b'{"id": true}', "wrong-type"),
        (b'{"id": 9223372036854775808}', "out-of-range"),
        (b'{"id": ' + b"9" * 5000 + b"}", "invalid-json"),
        (b'{"id": 1, "price": NaN}', "not-a-number"),
        (b'{"id": 1, "price": -Infinity}', "not-a-number"),
        (b'{"id": 1, "price": 1e999}', "out-of-range"),
        (b'{"id": 1, "name": "\\ud800"}', "invalid-utf8"),
        (b'{"id": 1, "tags": "x"}', "wrong-type"),
        (b'{"id": 1, "tags": [1]}', "wrong-type"),
        (b'{"id": 1, "at": "2026-01-31T12:00:00"}', "wrong-type"),
        (b'{"id": 1, "at": "0001-01-01T00:00:00+14:00"}', "wrong-type"),
        (b'{"id": 1, "day": "20260131"}', "wrong-type"),
        (b'{"id": 1, "rest": ' + b"[" * 5000 + b"]" * 5000 + b"}", "too-deep"),
        (b'{"id":' * 200_000, "too-deep"),
    ],
)
def test_a_value_that_does_not_fit_names_its_reason(value: bytes | None, reason: str) -> None:
    with pytest.raises(BadValueError) as caught:
        parser().parse(value)
    assert caught.value.reason == reason


def test_brackets_inside_strings_do_not_count_as_nesting() -> None:
    value = json.dumps({"id": 1, "name": "[" * (MAX_DEPTH * 2) + '"\\'}).encode()
    assert parser().parse(value)[:2] == [1, "[" * (MAX_DEPTH * 2) + '"\\']


def test_bad_values_leave_the_others_in_order() -> None:
    values = pa.array([b'{"id": 1}', b"{", None, b'{"id": 4}'], type=pa.binary())
    found = parse_values(parser(), values)
    assert found.arrays["id"].to_pylist() == [1, 4]
    assert [(bad.row, bad.reason) for bad in found.bad] == [(1, "invalid-json"), (2, "null-value")]


def test_a_field_named_like_a_column_of_the_table_gets_a_prefix() -> None:
    assert [column.name for column in parse_columns("offset:long, Timestamp:string, price:double")] == [
        "value_offset",
        "value_Timestamp",
        "price",
    ]


@pytest.mark.parametrize(
    "text", ["", "id", "id:uuid", "id:long,,x:int", "id:long, ID:int", "id:list<list<int>>", "1d:int"]
)
def test_columns_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="columns"):
        parse_columns(text)
