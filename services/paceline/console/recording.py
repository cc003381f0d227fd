"""Recordings of a cluster: lines of JSON, of a simulated or a real cluster (docs/console.md#recordings).

The first line is the header. Each later line is an `Entry`: a time in milliseconds since the beginning, and one member
that names its kind. The last line of a whole recording is ``{"t": ..., "end": {}}``; without it the file was cut off.
Readers ignore members and kinds that they do not know, so a version adds freely; `VERSION` rises when an older reader
would misread a file.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from paceline.model.errors import PacelineError

VERSION: Final = 1
SAMPLE_MS: Final = 500
"""Time between two samples of a partition."""
MAX_LINE: Final = 4 << 20
"""Longest line, in characters; pass it to ``readline``, so that a file of another kind does not fill the memory."""
_SIGN: Final = "paceline_recording"

EVENT, SAMPLE, ACKNOWLEDGED, READ, FAULT, GAP, VERDICT, END = (
    "event",
    "sample",
    "acknowledged",
    "read",
    "fault",
    "gap",
    "verdict",
    "end",
)
"""Kinds of entries (docs/console.md#recordings lists their members)."""
_KINDS: Final = frozenset({EVENT, SAMPLE, ACKNOWLEDGED, READ, FAULT, GAP, VERDICT, END})


class RecordingError(PacelineError):
    """A recording cannot be played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line of a recording."""

    title: str
    origin: str
    """``simulation`` or ``cluster``."""
    began_ms: int
    """Unix time of the beginning in milliseconds; 0 in a simulation, whose times are virtual."""
    made_by: str = ""
    """The command that made it."""
    steps: tuple[tuple[int, str], ...] = ()
    """Sentences of a lesson, each with the time in milliseconds that it is about."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line after the header."""

    t: int
    """Milliseconds since the beginning, by the recorder's clock."""
    kind: str
    value: dict[str, Any]


@dataclass(slots=True)
class Recording:
    """A recording as read."""

    header: Header
    entries: list[Entry] = field(default_factory=list)
    """In the order of time."""
    cut: str | None = None
    """Why the recording ends early, after whole entries; None when it is whole."""


def read_recording(lines: Iterable[str]) -> Recording:
    """Read a recording; one that was cut off has all entries before the cut, and says so in ``cut``.

    Raises:
        RecordingError: nothing of it can be played.
    """
    source = iter(lines)
    try:
        first = next(source, "")
    except (ValueError, EOFError, OSError) as error:
        raise RecordingError(f"the first line cannot be read: {error}") from None
    recording = Recording(_header(first))
    count = 1
    try:
        for line in source:
            entry = _entry(line)
            count += 1
            if entry is not None and entry.kind == END:
                break
            if entry is not None:
                recording.entries.append(entry)
        else:
            recording.cut = f"the recording was cut off after line {count}"
    except (ValueError, EOFError, OSError) as error:  # EOFError, OSError: a compressed file that was cut off
        recording.cut = f"the recording was cut off at line {count + 1}: {error}"
    # Acknowledgements are written when they are noticed, with the time at which they happened.
    recording.entries.sort(key=lambda entry: entry.t)
    return recording


def _header(line: str) -> Header:
    try:
        found = json.loads(line)
        version = found[_SIGN]
    except (ValueError, KeyError, TypeError):
        raise RecordingError("the first line is not the header of a recording") from None
    if version != VERSION:
        raise RecordingError(f"the recording has version {version}, this program reads version {VERSION}")
    known = {one.name for one in fields(Header)}
    try:
        header = Header(**{name: value for name, value in found.items() if name in known})
        steps = tuple((int(at), str(text)) for at, text in header.steps)
        return Header(
            title=str(header.title),
            origin=str(header.origin),
            began_ms=int(header.began_ms),
            made_by=str(header.made_by),
            steps=steps,
        )
    except (TypeError, ValueError) as error:
        raise RecordingError(f"the header is not complete: {error}") from None


def _entry(line: str) -> Entry | None:
    found = json.loads(line)
    kind = next((one for one in found if one in _KINDS), None) if isinstance(found, dict) else None
    if kind is None:
        return None
    at, value = found.get("t"), found[kind]
    if not isinstance(at, int) or not isinstance(value, dict):
        raise ValueError(f"a line of kind {kind} has no time or no object")
    return Entry(at, kind, value)


class RecordingWriter:
    """Writes a recording line by line, so that a crash costs only the last line. Not thread-safe."""

    def __init__(self, write: Callable[[str], object], header: Header) -> None:
        self._write = write
        self._last_t = 0
        self._put({_SIGN: VERSION, **asdict(header)})

    def add(self, entry: Entry) -> None:
        """Write an entry."""
        self._last_t = max(self._last_t, entry.t)
        self._put({"t": entry.t, entry.kind: entry.value})

    def end(self) -> None:
        """Mark the recording as whole."""
        self._put({"t": self._last_t, END: {}})

    def _put(self, line: Mapping[str, Any]) -> None:
        self._write(json.dumps(line, separators=(",", ":")) + "\n")
