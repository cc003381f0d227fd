"""Records of a topic: the request for a read, and the screen of its result."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from paceline.console.pages.view import Query, Row, moment_text, number_of, topic_path
from paceline.console.values import FORMS, Decoder, Text, as_text

STARTS: Final = ("newest", "start", "offset", "time", "tail")
FIELDS: Final = ("any", "key", "value", "header")
MOST_RECORDS: Final = 500
_MOST_HEADERS: Final = 50
MOST_PARTITIONS: Final = 200
"""Partitions that are read at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A read: its place, its filter and its end."""

    partition: int | None = None
    """None for all."""
    start: str = "newest"
    """One of `STARTS`."""
    place: str = ""
    """The offset, or the time as `parse_moment` reads it or ``@MS``."""
    positions: Mapping[int, int] = field(default_factory=dict)
    """Offset by partition where an earlier read has ended; overrides ``start``."""
    records: int = 50
    mebibytes: int = 8
    seconds: int = 3
    text: str = ""
    """Only records that contain this."""
    inside: str = "any"
    """One of `FIELDS`."""
    form: str = "auto"
    size: int = 1024
    """Bytes of each key and value that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a read."""

    records: Sequence[Any]
    """`ConsumerRecord`s, in the order in which they are shown."""
    scanned: int
    scanned_bytes: int
    reason: str
    """Why the reading stopped."""
    positions: Mapping[int, int]
    """Where the next read continues, by partition."""
    left_out: int = 0
    """Partitions of the topic that were not read."""


def wish_of(query: Query) -> Wish:
    """Return the read that a request asks for.

    Raises:
        ValueError: a parameter is not valid; the message names it.
    """
    start = query.get("from", "newest")
    wish = Wish(
        partition=number_of(query, "partition", most=2**31 - 1) if query.get("partition") else None,
        start=_one_of(start, "from", STARTS),
        place=query.get("place", "").strip(),
        positions=_positions(query.get("at", "")),
        records=number_of(query, "n", 50, 1, MOST_RECORDS),
        mebibytes=number_of(query, "mib", 8, 1, 32),
        seconds=number_of(query, "seconds", 3, 1, 10),
        text=query.get("q", ""),
        inside=_one_of(query.get("in", "any"), "in", FIELDS),
        form=_one_of(query.get("as", "auto"), "as", FORMS),
        size=number_of(query, "size", 1024, 16, 1 << 16),
    )
    if start == "offset" and not wish.positions:
        number_of({"place": wish.place}, "place")
    return wish


def _one_of(value: str, name: str, known: Sequence[str]) -> str:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}")
    return value


def _positions(text: str) -> dict[int, int]:
    """Parse ``0:17,1:4``."""
    found = {}
    for part in text.split(",") if text else ():
        place = dict(zip(("partition in at", "offset in at"), part.split(":"), strict=False))
        found[number_of(place, "partition in at")] = number_of(place, "offset in at")
    if len(found) > MOST_PARTITIONS:
        raise ValueError(f"at may name at most {MOST_PARTITIONS} partitions")
    return found


def place_of(query: Query) -> tuple[int, int, str]:
    """Return partition, offset and part (``key`` or ``value``) of a download.

    Raises:
        ValueError: a parameter is missing or not valid.
    """
    part = _one_of(query.get("part", "value"), "part", ("key", "value"))
    return number_of(query, "partition"), number_of(query, "offset"), part


def matches(wish: Wish, record: Any) -> bool:
    """Return whether a record contains the wanted text, compared as bytes of UTF-8."""
    if not wish.text:
        return True
    needle = wish.text.encode(errors="surrogateescape")
    parts: list[bytes | None] = []
    if wish.inside in ("any", "key"):
        parts.append(record.key)
    if wish.inside in ("any", "value"):
        parts.append(record.value)
    if wish.inside in ("any", "header"):
        parts += [part for name, value in record.headers for part in (name.encode(errors="replace"), value)]
    return any(part is not None and needle in part for part in parts)


def bytes_of(record: Any) -> int:
    """Return the bytes of key, value and headers of a record."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def row_of(wish: Wish, record: Any, decoder: Decoder | None, show_records: bool) -> Row:
    """Return a record as it is shown; without ``show_records`` without its contents."""
    row = {name: getattr(record, name) for name in ("topic", "partition", "offset", "timestamp_ms")}
    row["time"] = None if record.timestamp_ms is None else moment_text(record.timestamp_ms)
    row |= {"key_bytes": _length(record.key), "value_bytes": _length(record.value)}
    if not show_records:
        return row
    key_form = "auto" if wish.form == "protobuf" else wish.form
    headers = [[name, as_text(value, "auto", wish.size).text] for name, value in record.headers[:_MOST_HEADERS]]
    row |= _shown("key", as_text(record.key, key_form, wish.size))
    row |= _shown("value", as_text(record.value, wish.form, wish.size, decoder))
    return row | {"headers": headers, "header_text": "\n".join(f"{name}: {value}" for name, value in headers)}


def _length(data: bytes | None) -> int | None:
    return None if data is None else len(data)


def _shown(part: str, text: Text) -> Row:
    notes = [f"… cut, {text.size:,} bytes"] if text.is_cut else []
    notes += [f"({text.problem})"] if text.problem else []
    return {part: "\n".join([text.text, *notes]), f"{part}_form": text.form, f"{part}_is_cut": text.is_cut}


def messages(topic: str, wish: Wish, found: Found, decoder: Decoder | None, show_records: bool) -> Row:
    """Return the page of records."""
    again = urlencode({"from": wish.start, **_kept(wish), "at": _places(found)})
    return {
        "title": topic,
        "topic": topic,
        "wish": asdict(wish),
        "show_records": show_records,
        "records": [row_of(wish, one, decoder, show_records) for one in found.records],
        **{name: getattr(found, name) for name in ("scanned", "scanned_bytes", "reason", "left_out")},
        "positions": dict(found.positions),
        "next": f"{topic_path(topic, 'messages')}?{again}",
    }


def _kept(wish: Wish) -> Row:
    kept = {"n": wish.records, "mib": wish.mebibytes, "seconds": wish.seconds, "as": wish.form, "size": wish.size}
    return kept | ({"q": wish.text, "in": wish.inside} if wish.text else {})


def _places(found: Found) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(found.positions.items()))
