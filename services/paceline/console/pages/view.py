"""The parts of a screen: facts, notes, panels with one table each, and forms."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

Row = Mapping[str, Any]
Show = Callable[[Any], str]

PAGE: Final = 100
"""Rows of a panel on one page."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What a place of a table shows."""

    text: str
    href: str = ""
    severity: str = ""
    """``ok``, ``note``, ``warning`` or ``critical``: shown as a word before the text."""
    lines: bool = False
    """Whether line breaks and spaces of the text are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a panel."""

    key: str
    """Member of the rows."""
    title: str = ""
    """Heading; the key when empty."""
    show: Show | None = None
    """Returns the text of a value that is not None."""
    href: Callable[[Row], str] | None = None
    severity: str = ""
    """Member of the rows with the severity that stands before the value."""
    lines: bool = False

    @property
    def heading(self) -> str:
        """Text above the column."""
        return self.title or self.key.replace("_", " ")

    def cell(self, row: Row) -> Cell:
        """Return the cell of a row."""
        value = row.get(self.key)
        text = self.show(value) if self.show and value is not None else plain(value)
        severity = str(row.get(self.severity) or "") if self.severity else ""
        return Cell(text, self.href(row) if self.href else "", severity, self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A table, and the picture of the same facts if there is one."""

    name: str
    """Name of the rows in the JSON twin."""
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    """Those of this page."""
    total: int | None = None
    """Rows of all pages; None when there is one page."""
    page: int = 0
    empty: str = "none"
    help: str = ""
    picture: str = ""
    """SVG, already safe."""

    @property
    def pages(self) -> int:
        """Number of pages, at least 1."""
        return max(-(-(self.total or 0) // PAGE), 1)

    def cells(self) -> Iterator[list[Cell]]:
        """Yield the cells of each row."""
        for row in self.rows:
            yield [column.cell(row) for column in self.columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a form."""

    name: str
    label: str
    value: str = ""
    kind: str = "text"
    """``text``, ``number``, ``select``, ``area`` or ``hidden``."""
    options: Sequence[tuple[str, str]] = ()
    """Value and text of each choice of a ``select``."""
    hint: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form; GET forms only choose what is shown."""

    title: str
    submit: str
    fields: Sequence[Field]
    action: str = ""
    method: str = "get"
    is_risky: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A page of the console."""

    title: str
    section: str
    """Part of the navigation that the page belongs to."""
    facts: Sequence[tuple[str, Any]] = ()
    notes: Sequence[tuple[str, str]] = ()
    """Severity and sentence."""
    forms: Sequence[Form] = ()
    panels: Sequence[Panel] = ()
    tabs: Sequence[tuple[str, str]] = ()
    """Text and address of pages about the same thing, the first about it as a whole."""
    actions: Sequence[tuple[str, str]] = ()
    """Text and address of changes; only shown where changes are allowed."""
    tail: str = ""
    """Address of the records after those shown, when the page follows a topic."""
    read_on: str = ""
    """Address of the page after this one, where pages have no numbers."""
    is_live: bool = True
    """Whether the page follows the cluster."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Members of the JSON twin that the page has in another form."""

    def as_json(self) -> dict[str, Any]:
        """Return the twin: the facts, and the rows of each panel under its name."""
        found: dict[str, Any] = {"title": self.title, "facts": dict(self.facts)}
        found["notes"] = [{"severity": severity, "sentence": sentence} for severity, sentence in self.notes]
        for panel in self.panels:
            found[panel.name] = [dict(row) for row in panel.rows]
            if panel.total is not None:
                found |= {"total": panel.total, "page": panel.page, "pages": panel.pages}
        return found | dict(self.more)


def page_of(query: Mapping[str, str]) -> int:
    """Return the page that a request asks for, from 0.

    Raises:
        ValueError: it is not a number.
    """
    text = query.get("page", "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise ValueError("page must be a whole number")
    return int(text)


def paged(rows: Sequence[Any], query: Mapping[str, str]) -> tuple[Sequence[Any], int, int]:
    """Return the rows of the asked page, the number of all rows, and the page, which is at most the last."""
    page = min(page_of(query), max(-(-len(rows) // PAGE) - 1, 0))
    return rows[page * PAGE : (page + 1) * PAGE], len(rows), page


def matching(names: Sequence[str], query: Mapping[str, str]) -> list[str]:
    """Return the names that contain the text of ``?q=``, in any case."""
    wanted = query.get("q", "").lower()
    return [name for name in names if wanted in name.lower()]


def search(query: Mapping[str, str], label: str) -> Form:
    """Return the form for `matching`."""
    return Form(title="Search", submit="Search", fields=(Field(name="q", label=label, value=query.get("q", "")),))


def plain(value: Any) -> str:
    """Return a value as text for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def size_text(count: int) -> str:
    """Return a number of bytes with a unit."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


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
    return f"/topics/{quote(topic, safe='')}" + (f"/{part}" if part else "")


def group_path(group: str) -> str:
    """Return the path of a group; a query, because a group id may be empty or have slashes."""
    return f"/group?{urlencode({'id': group})}"
