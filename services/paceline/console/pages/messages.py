"""Records of a topic: what a request wants to read, and the screen of what was read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from paceline.console.pages.topics import about_topic
from paceline.console.pages.view import Column, Field, Form, Panel, Screen, moment_text, size_text, topic_path
from paceline.console.values import FORMS, Decoder, Text, as_text

STARTS: Final = (
    ("newest", "the newest"),
    ("start", "the first record"),
    ("offset", "an offset"),
    ("time", "a time"),
    ("tail", "now on, live"),
)
FIELDS: Final = (("any", "key, value or header"), ("key", "key"), ("value", "value"), ("header", "header"))
MOST_RECORDS: Final = 500
MOST_PARTITIONS: Final = 200
"""Partitions that are read at the same time."""
MOST_OFFSET: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to read, and when to stop."""

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

    @property
    def follows(self) -> bool:
        """Whether the page continues with new records."""
        return self.start == "tail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was read."""

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


def wish_of(query: Mapping[str, str]) -> Wish:
    """Return what a request wants to read.

    Raises:
        ValueError: a parameter is not valid; the message names it.
    """
    start = query.get("from", "newest")
    wish = Wish(
        partition=_number(query, "partition", 0, 2**31 - 1) if query.get("partition") else None,
        start=_one_of(start, "from", [name for name, _ in STARTS]),
        place=query.get("place", "").strip(),
        positions=_positions(query.get("at", "")),
        records=_number(query, "n", 1, MOST_RECORDS, 50),
        mebibytes=_number(query, "mib", 1, 32, 8),
        seconds=_number(query, "seconds", 1, 10, 3),
        text=query.get("q", ""),
        inside=_one_of(query.get("in", "any"), "in", [name for name, _ in FIELDS]),
        form=_one_of(query.get("as", "auto"), "as", FORMS),
        size=_number(query, "size", 16, 1 << 16, 1024),
    )
    if start == "offset" and not wish.positions and _integer(wish.place) is None:
        raise ValueError("place must be an offset, as from is offset")
    return wish


def _number(query: Mapping[str, str], name: str, least: int, most: int, default: int = 0) -> int:
    number = _integer(query.get(name) or str(default))
    if number is None or not least <= number <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}")
    return number


def _integer(text: str) -> int | None:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
    return number if number is not None and number <= MOST_OFFSET else None


def _one_of(value: str, name: str, known: Sequence[str]) -> str:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}")
    return value


def _positions(text: str) -> dict[int, int]:
    """Parse ``0:17,1:4``."""
    found = {}
    for part in text.split(",") if text else ():
        partition, _, offset = part.partition(":")
        if (index := _integer(partition)) is None or (position := _integer(offset)) is None:
            raise ValueError("at must be partitions with offsets, as 0:17,1:4")
        found[index] = position
    if len(found) > MOST_PARTITIONS:
        raise ValueError(f"at may name at most {MOST_PARTITIONS} partitions")
    return found


def place_of(query: Mapping[str, str]) -> tuple[int, int, str]:
    """Return partition, offset and part (``key`` or ``value``) of a download.

    Raises:
        ValueError: a parameter is missing or not valid.
    """
    where = [_integer(query.get(name, "")) for name in ("partition", "offset")]
    if where[0] is None or where[1] is None:
        raise ValueError("give partition and offset as numbers")
    return where[0], where[1], _one_of(query.get("part", "value"), "part", ("key", "value"))


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


def row_of(wish: Wish, record: Any, decoder: Decoder | None, show_records: bool) -> dict[str, Any]:
    """Return a record as it is shown; without ``show_records`` without what is in it."""
    row: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "time": None if record.timestamp_ms is None else moment_text(record.timestamp_ms),
        "key_bytes": None if record.key is None else len(record.key),
        "value_bytes": None if record.value is None else len(record.value),
    }
    if not show_records:
        return row
    key_form = "auto" if wish.form == "protobuf" else wish.form
    headers = [[name, as_text(value, "auto", wish.size).text] for name, value in record.headers]
    return (
        row
        | _shown("key", as_text(record.key, key_form, wish.size))
        | _shown("value", as_text(record.value, wish.form, wish.size, decoder))
        | {"headers": headers, "header_text": "\n".join(f"{name}: {value}" for name, value in headers)}
    )


def _shown(part: str, text: Text) -> dict[str, Any]:
    notes = [f"… cut, {text.size:,} bytes"] if text.is_cut else []
    notes += [f"({text.problem})"] if text.problem else []
    return {part: "\n".join([text.text, *notes]), f"{part}_form": text.form, f"{part}_is_cut": text.is_cut}


def messages(
    topic: str,
    partitions: Sequence[int],
    wish: Wish,
    found: Found | None,
    decoder: Decoder | None,
    show_records: bool,
) -> Screen:
    """Return the page of records; ``found`` is None when nothing was read."""
    rows = [row_of(wish, one, decoder, show_records) for one in found.records] if found else []
    notes = []
    if not show_records:
        notes.append(("note", "The contents of records are hidden: start the console with --show-records to see them."))
    if found:
        scanned = f"read {found.scanned:,} records, {size_text(found.scanned_bytes)}"
        notes.append(("note", f"Shows {len(rows):,} records; {scanned}; stopped because {found.reason}."))
        if found.left_out:
            text = f"{found.left_out:,} more partitions were not read: choose one of them."
            notes.append(("warning", text))
    columns = [
        Column(key="offset", show=str),
        Column(key="partition", show=str),
        Column(key="time", title="time (UTC)"),
    ]
    if show_records:
        columns += [
            Column(key="key", lines=True),
            Column(key="value", lines=True),
            Column(key="value_form", title="shown as"),
            Column(key="header_text", title="headers", lines=True),
        ]
    for part in ("key", "value"):
        link = (lambda row, part=part: _whole(row, part)) if show_records else None
        columns.append(Column(key=f"{part}_bytes", title=f"whole {part}" if link else part, show=size_text, href=link))
    return Screen(
        title=topic,
        **about_topic(topic),
        notes=notes,
        forms=(_form(wish, partitions, show_records),),
        panels=(Panel(name="records", title="Records", columns=columns, rows=rows, empty="no records"),),
        tail=_again(topic, wish, found) if found and wish.follows else "",
        read_on=_again(topic, wish, found) if found and wish.start not in ("newest", "tail") else "",
        is_live=wish.follows,
        more={
            "positions": dict(found.positions) if found else {},
            "scanned": found.scanned if found else 0,
        },
    )


def _whole(row: Mapping[str, Any], part: str) -> str:
    if row[f"{part}_bytes"] is None:
        return ""
    query = urlencode({"partition": row["partition"], "offset": row["offset"], "part": part})
    return f"{topic_path(row['topic'], 'record')}?{query}"


def _again(topic: str, wish: Wish, found: Found) -> str:
    """Return the address of the records after those that were read."""
    query: dict[str, Any] = {"from": wish.start, "n": wish.records, "mib": wish.mebibytes, "seconds": wish.seconds}
    query |= {"q": wish.text, "in": wish.inside, "as": wish.form, "size": wish.size}
    query["at"] = ",".join(f"{partition}:{offset}" for partition, offset in sorted(found.positions.items()))
    return f"{topic_path(topic, 'messages')}?{urlencode(query)}"


def _form(wish: Wish, partitions: Sequence[int], show_records: bool) -> Form:
    few = [(str(one), str(one)) for one in partitions] if len(partitions) <= MOST_PARTITIONS else None
    chosen = "" if wish.partition is None else str(wish.partition)
    fields = [
        Field(name="from", label="From", kind="select", value=wish.start, options=STARTS),
        Field(
            name="place",
            label="Offset or time",
            value=wish.place,
            hint="17; 10m ago: 10m; 2026-11-21T17:00; @ and milliseconds since 1970",
        ),
        Field(name="partition", label="Partition", kind="select", value=chosen, options=[("", "all"), *few])
        if few is not None
        else Field(name="partition", label=f"Partition, 0 to {len(partitions) - 1}", kind="number", value=chosen),
        Field(name="n", label="Stop after records", kind="number", value=str(wish.records)),
        Field(name="mib", label="… or after MiB", kind="number", value=str(wish.mebibytes)),
        Field(name="seconds", label="… or seconds", kind="number", value=str(wish.seconds)),
    ]
    if show_records:
        fields += [
            Field(name="q", label="Only with the text", value=wish.text),
            Field(name="in", label="in", kind="select", value=wish.inside, options=FIELDS),
            Field(name="as", label="Shown as", kind="select", value=wish.form, options=[(one, one) for one in FORMS]),
            Field(name="size", label="Bytes of each value", kind="number", value=str(wish.size)),
        ]
    return Form(title="Records to read", submit="Read", fields=fields)
