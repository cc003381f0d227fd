"""Shared by the screens: rows, paging, and values as text for people."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

Query = Mapping[str, str]
Row = dict[str, Any]

PAGE: Final = 100
"""Rows of a table on one page."""


def picked(source: Any, names: str, **more: Any) -> Row:
    """Return a row of the named attributes, and of more values."""
    row = {name: getattr(source, name) for name in names.split()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in row.items()} | more


def number_of(query: Query, name: str, default: int | None = None, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return a number of a query or a form.

    Raises:
        ValueError: it is missing, without a ``default``, or not a whole number in the range.
    """
    text = query.get(name) or ("" if default is None else str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
        within = f" from {least:,} to {most:,}" if most < 2**63 - 1 else ""
        raise ValueError(f"{name} must be a whole number{within}")
    return int(text)


def paged(rows: Sequence[Any], query: Query) -> tuple[Sequence[Any], dict[str, int]]:
    """Return the rows of ``?page=``, which is at most the last, and the numbers of the page, of pages and of rows.

    Raises:
        ValueError: the page is not a number.
    """
    pages = max(-(-len(rows) // PAGE), 1)
    page = min(number_of(query, "page", 0), pages - 1)
    return rows[page * PAGE : (page + 1) * PAGE], {"page": page, "pages": pages, "total": len(rows)}


def matching(names: Sequence[str], query: Query) -> list[str]:
    """Return the sorted names that contain the text of ``?q=``, in any case."""
    return sorted(name for name in names if query.get("q", "").lower() in name.lower())


def show(value: Any, form: str = "") -> str:
    """Return a value as text; ``form`` is ``size`` (bytes), ``ms`` or ``s`` (durations), or ``id`` (digits)."""
    if value is None:
        return "-"
    if form == "size":
        return size_text(value)
    if form in ("ms", "s"):
        return seconds_text(value / 1000 if form == "ms" else value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and form != "id":
        return f"{value:,}"
    return (", ".join(map(str, value)) or "none") if isinstance(value, list | tuple) else str(value)


def size_text(count: int) -> str:
    """Return a number of bytes with a unit."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def seconds_text(seconds: float) -> str:
    """Return a duration with a unit."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds % 1 else f"{seconds:.0f} s"
    minutes = int(seconds) // 60
    return f"{minutes} min {int(seconds) % 60} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def moment_text(ms: int) -> str:
    """Return a Unix time in milliseconds as UTC, also one that no calendar has."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def lens_path(topic: str, partition: int) -> str:
    """Return the path of the lens of a partition."""
    return f"/partition/{quote(topic, safe='')}/{partition}"


def topic_path(topic: str, part: str = "") -> str:
    """Return the path of a page about a topic."""
    return f"/topics/{quote(topic, safe='')}{part and '/'}{part}"


def link(row: Row, kind: str) -> str:
    """Return the address that a cell leads to: lens, topic, group, or the whole ``key`` or ``value`` of a record."""
    if kind in ("lens", "topic") and row["topic" if kind == "topic" else "partition"] is None:
        return ""
    if kind == "lens":
        return lens_path(row["topic"], row["partition"])
    if kind == "topic":
        return topic_path(row["topic"])
    if kind == "group":  # in the query: the id of a group may be empty or have slashes
        return f"/group?{urlencode({'id': row['group']})}"
    query = urlencode({"partition": row["partition"], "offset": row["offset"], "part": kind})
    return "" if row[f"{kind}_bytes"] is None else f"{topic_path(row['topic'], 'record')}?{query}"
