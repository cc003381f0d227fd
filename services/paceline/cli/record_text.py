"""Records as text: kcat's format letters, filters, and JSON lines that `consume` prints and `produce` reads."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import click

from paceline.cli.numbers import MAX_INT64

FORMAT_HELP: Final = (
    "as in kcat: %k key, %v or %s value, %K %V %S their bytes (-1 is null), %h headers, %t topic, %p partition,"
    " %o offset, %T timestamp in ms, %% percent; \\n \\t \\r \\xHH"
)
_FIELDS: Final[dict[str, Callable[[Any], bytes]]] = {
    "k": lambda record: bytes(record.key or b""),
    "v": lambda record: bytes(record.value or b""),
    "K": lambda record: b"%d" % _length(record.key),
    "V": lambda record: b"%d" % _length(record.value),
    "h": lambda record: b",".join(name.encode() + b"=" + bytes(value or b"") for name, value in record.headers),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "t": lambda record: record.topic.encode(),
    "T": lambda record: b"%d" % (-1 if record.timestamp_ms is None else record.timestamp_ms),
    "%": lambda record: b"%",
}
_FIELDS.update(s=_FIELDS["v"], S=_FIELDS["V"])
_TOKENS: Final = re.compile(r"%.?|\\x[0-9a-fA-F]{2}|\\[ntr]|(?:[^%\\]|\\(?![ntr]|x[0-9a-fA-F]{2}))+", re.DOTALL)
_ESCAPES: Final = {"\\n": b"\n", "\\t": b"\t", "\\r": b"\r"}


def parse_format(template: str) -> Callable[[Any], bytes]:
    """Return a function that formats a record; keys and values are inserted as raw bytes.

    Raises:
        click.BadParameter: a letter after ``%`` is not a field.
    """
    parts: list[bytes | Callable[[Any], bytes]] = []
    for token in _TOKENS.findall(template):
        if token[0] == "%":
            if token[1:] not in _FIELDS:
                known = " ".join(f"%{letter}" for letter in _FIELDS)
                raise click.BadParameter(f"{token} is not a field; the fields are {known}", param_hint="--format")
            parts.append(_FIELDS[token[1:]])
        elif re.fullmatch(r"\\x[0-9a-fA-F]{2}", token):
            parts.append(bytes.fromhex(token[2:]))
        else:
            parts.append(_ESCAPES.get(token) or token.encode("utf-8", errors="surrogateescape"))
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def parse_filters(texts: tuple[str, ...]) -> Callable[[Any], bool]:
    """Return whether a record matches every filter: ``key=TEXT``, ``value!=TEXT``, ``header.NAME~REGEX``.

    A null or absent field matches only ``!=``; of several headers with the name, ``=`` and ``~`` need one that matches.

    Raises:
        click.BadParameter: a filter has another form, or its regular expression is wrong.
    """
    tests = [_filter(text) for text in texts]
    return lambda record: all(test(record) for test in tests)


def _filter(text: str) -> Callable[[Any], bool]:
    found = re.fullmatch(r"(key|value|header\.(.+?))(!=|=|~)(.*)", text, re.DOTALL)
    if found is None:
        form = "key, value or header.NAME, then =, != or ~ (regular expression), then a text"
        raise click.BadParameter(f"{text!r} is not {form}", param_hint="--filter")
    field, name, operator, wanted = found.groups()
    needle = wanted.encode("utf-8", errors="surrogateescape")
    try:
        matches = re.compile(needle if operator == "~" else re.escape(needle), re.DOTALL)
    except re.error as error:
        raise click.BadParameter(f"{text!r}: the regular expression is wrong: {error}", param_hint="--filter") from None
    match = matches.search if operator == "~" else matches.fullmatch

    def test(record: Any) -> bool:
        data = [record.key] if field == "key" else [record.value] if field == "value" else _headers(record, name)
        return any(each is not None and match(each) for each in data) != (operator == "!=")

    return test


def _headers(record: Any, name: str) -> Iterator[bytes | None]:
    return (value for each, value in record.headers if each == name)


def to_json(record: Any) -> str:
    """Return a record as a JSON line."""
    return json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": to_text(record.key),
            "value": to_text(record.value),
            "headers": [[name, to_text(value)] for name, value in record.headers],
        }
    )


def to_text(data: bytes | None) -> Any:
    """Return UTF-8 as text, other bytes as ``{"base64": ...}``, so that no byte is lost."""
    if data is None:
        return None
    try:
        return bytes(data).decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(bytes(data)).decode()}


@dataclass(frozen=True, slots=True)
class LineRecord:
    """A record to send, from a line of the input."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None = None
    timestamp_ms: int | None = None


def from_json(line: bytes) -> LineRecord:
    """Return the record of a JSON line as `to_json` writes it; ``topic`` and ``offset`` are ignored.

    Raises:
        ValueError: the line is not such an object; the message says what is wrong.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        where = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise ValueError(f"is not JSON: {where}") from None
    if not isinstance(fields, dict) or "value" not in fields:
        raise ValueError('is not an object with a "value"; a null value deletes its key from a compacted topic')
    known = ("key", "value", "headers", "partition", "timestamp_ms")
    if unknown := sorted(fields.keys() - {*known, "topic", "offset"}):
        raise ValueError(f"has the unknown field {unknown[0]!r}; the fields are {', '.join(known)}")
    pairs = fields.get("headers") or []
    pairs = list(pairs.items()) if isinstance(pairs, dict) else pairs
    if not isinstance(pairs, list) or not all(
        isinstance(each, list | tuple) and len(each) == 2 and isinstance(each[0], str) for each in pairs
    ):
        raise ValueError('has "headers" that are neither an object nor a list of [name, value]')
    headers = [(name, _to_bytes(value)) for name, value in pairs]
    numbers = [_integer(fields, name) for name in ("partition", "timestamp_ms")]
    return LineRecord(_to_bytes(fields.get("key")), _to_bytes(fields["value"]), headers, *numbers)


def _integer(fields: dict[str, Any], name: str) -> int | None:
    number = fields.get(name)
    if number is None or (type(number) is int and 0 <= number <= MAX_INT64):
        return number
    raise ValueError(f"has {json.dumps(number)} as {name!r}, which is not a whole number from 0 to {MAX_INT64}")


def _to_bytes(value: Any) -> bytes | None:
    """Return the bytes of a text or of ``{"base64": ...}``; any other JSON value becomes compact JSON."""
    if value is None or isinstance(value, str):
        try:
            return None if value is None else value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"has a text that cannot be encoded as UTF-8: {error.reason}") from None
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (TypeError, ValueError) as error:
            raise ValueError(f"has wrong base64: {error}") from None
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
