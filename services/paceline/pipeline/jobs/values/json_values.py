"""Convert JSON objects to typed columns, strictly: no duplicate fields, no NaN, no number out of the range of its type.

Numbers are parsed with Python's ``json``, so that 64-bit integers stay exact. Fields without a column are ignored.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final

from paceline.pipeline.jobs.values.columns import ValueColumn
from paceline.pipeline.jobs.values.parser import BadValueError

MAX_DEPTH: Final = 64
"""Deeper nesting is refused, because it could exhaust the interpreter's stack."""

_INT32, _INT64 = 1 << 31, 1 << 63
_FLOAT32_MAX: Final = 3.4028235677973366e38
"""The smallest number that rounds to infinity as a 32-bit float."""


class JsonParser:
    """Parses values that are JSON objects."""

    def __init__(self, columns: Sequence[ValueColumn]) -> None:
        self._columns = tuple(columns)
        self._converters = [_CONVERTERS[column.type] for column in columns]

    @property
    def columns(self) -> tuple[ValueColumn, ...]:
        return self._columns

    def parse(self, value: bytes | None) -> list[Any]:
        """Return one entry per column.

        Raises:
            BadValueError: the value is not a JSON object or does not fit the columns.
        """
        found = load_object(value)
        return [_entry(column, convert, found) for column, convert in zip(self._columns, self._converters, strict=True)]


def load_object(value: bytes | None) -> dict[str, Any]:
    """Return the JSON object in ``value``.

    Raises:
        BadValueError: null, empty, invalid UTF-8 or JSON, a duplicate field, NaN, too deep, or not an object.
    """
    if value is None:
        raise BadValueError("null-value", "the value is null")
    if not value:
        raise BadValueError("empty-value", "the value is empty")
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadValueError("invalid-utf8", str(error)) from error
    _check_depth(value)
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except BadValueError:
        raise
    except (ValueError, RecursionError) as error:  # ValueError also for an integer of thousands of digits
        raise BadValueError("invalid-json", str(error)) from error
    if not isinstance(found, dict):
        raise BadValueError("not-an-object", f"the value is a JSON {_kind(found)}, not an object")
    return found


def _check_depth(value: bytes) -> None:
    """Refuse nesting beyond `MAX_DEPTH`; only a value with more brackets is scanned for brackets outside strings."""
    if value.count(b"{") + value.count(b"[") <= MAX_DEPTH:
        return
    depth, in_string, escaped = 0, False, False
    for byte in value:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise BadValueError("too-deep", f"the value is nested deeper than {MAX_DEPTH} levels")
        elif byte in b"}]":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadValueError("duplicate-field", f"the field {twice!r} occurs twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise BadValueError("not-a-number", f"{name} is not a JSON number")


def _entry(column: ValueColumn, convert: Callable[[Any], Any], found: dict[str, Any]) -> Any:
    entry = found.get(column.field)
    if entry is None:
        if column.optional:
            return None
        said = "is null" if column.field in found else "is missing"
        raise BadValueError("missing-field", f"the field {column.field!r} {said} and not optional")
    try:
        if not column.is_list:
            return convert(entry)
        if not isinstance(entry, list):
            raise BadValueError("wrong-type", f"needs a list, has a {_kind(entry)}")
        return [None if item is None else convert(item) for item in entry]
    except BadValueError as error:
        raise BadValueError(error.reason, f"the field {column.field!r} {error}") from error


def _kind(entry: Any) -> str:
    kinds = {dict: "object", list: "list", str: "string", bool: "boolean", int: "number", float: "number"}
    return kinds.get(type(entry), "null")


def _wrong(wanted: str, entry: Any) -> BadValueError:
    return BadValueError("wrong-type", f"needs a {wanted}, has a {_kind(entry)}")


def _boolean(entry: Any) -> bool:
    if not isinstance(entry, bool):
        raise _wrong("boolean", entry)
    return entry


def _integer(limit: int) -> Callable[[Any], int]:
    def convert(entry: Any) -> int:
        if isinstance(entry, bool) or not isinstance(entry, int):
            raise _wrong("whole number", entry)
        if not -limit <= entry < limit:
            raise BadValueError("out-of-range", f"does not fit {limit.bit_length()} bits")
        return entry

    return convert


def _float(limit: float) -> Callable[[Any], float]:
    def convert(entry: Any) -> float:
        if isinstance(entry, bool) or not isinstance(entry, int | float):
            raise _wrong("number", entry)
        try:
            number = float(entry)
        except OverflowError:
            number = math.inf
        if not abs(number) < limit:
            raise BadValueError("out-of-range", "is too large for its type")
        return number

    return convert


def _string(entry: Any) -> str:
    if not isinstance(entry, str):
        raise _wrong("string", entry)
    return _encodable(entry)


def _encodable(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadValueError("invalid-utf8", "holds half of a surrogate pair") from error
    return text


def _binary(entry: Any) -> bytes:
    if not isinstance(entry, str):
        raise _wrong("base64 string", entry)
    try:
        return base64.b64decode(entry, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadValueError("wrong-type", "is not base64") from error


def _date(entry: Any) -> date:
    if not isinstance(entry, str):
        raise _wrong("date", entry)
    try:
        if len(entry) != len("2026-01-31"):
            raise ValueError
        return date.fromisoformat(entry)
    except ValueError as error:
        raise BadValueError("wrong-type", "is not a date like 2026-01-31") from error


def _timestamp(entry: Any) -> datetime:
    """Convert an RFC 3339 date and time with a time zone; refuse numbers, whose unit would be unknown."""
    if not isinstance(entry, str):
        raise _wrong("timestamp", entry)
    try:
        found = datetime.fromisoformat(entry)
        if found.tzinfo is None or len(entry) < len("2026-01-31T00:00:00Z"):
            raise ValueError
        return found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise BadValueError("wrong-type", "is not a timestamp like 2026-01-31T12:00:00Z") from error


def _json(entry: Any) -> str:
    try:
        return _encodable(json.dumps(entry, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    except BadValueError:
        raise
    except ValueError as error:  # 1e999 was read as infinity, which JSON cannot write
        raise BadValueError("out-of-range", "holds a number that is too large for a double") from error


_CONVERTERS: Final[dict[str, Callable[[Any], Any]]] = {
    "boolean": _boolean,
    "int": _integer(_INT32),
    "long": _integer(_INT64),
    "float": _float(_FLOAT32_MAX),
    "double": _float(math.inf),
    "string": _string,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
    "json": _json,
}
