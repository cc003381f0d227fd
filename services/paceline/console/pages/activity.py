"""Reassignments with the reason why one waits, and events of the cluster."""

from collections.abc import Iterator, Sequence
from heapq import nlargest
from typing import Any, Final

from paceline.console.pages.view import Query, Row, moment_text, paged
from paceline.console.recording import Entry
from paceline.console.tables import details
from paceline.console.timeline import Timeline
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChangeKind

_SEVERITIES: Final = {"stuck": "critical", "copying": "note", "finishing": "ok"}
_MOST_EVENTS: Final = 200
_KINDS: Final = sorted(kind.value for kind in StateChangeKind)


def reassignments(moves: Sequence[tuple[TopicPartition, Row]], query: Query) -> Row:
    """Return the running moves, each with the result of `move_row`."""
    shown, numbers = paged(moves, query)
    left = [row["bytes_left"] for _, row in moves]
    rows = [row | where._asdict() | {"name": str(where), "severity": _SEVERITIES[row["state"]]} for where, row in shown]
    total = None if None in left else sum(left)
    stuck = sum(row["state"] == "stuck" for _, row in moves)
    facts = {"moves": len(moves), "stuck": stuck, "bytes left": total}
    return {"title": "Reassignments", "facts": facts, "moves": rows, **numbers}


def events(timeline: Timeline, query: Query) -> Row:
    """Return the newest events with the kind, topic (or topic/partition) and broker of the query.

    Raises:
        ValueError: the kind does not exist, or the broker is not a number.
    """
    kind, topic, broker = (query.get(name, "").strip() for name in ("kind", "topic", "broker"))
    if kind and kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}")
    if broker and not broker.isdecimal():
        raise ValueError("broker must be a whole number")

    def matches(entry: Entry) -> bool:
        value = entry.value
        about = {f"broker-{value.get('replica')}", str(value.get("who"))}
        return (not kind or value.get("kind") == kind) and (not broker or f"broker-{broker}" in about)

    def found() -> Iterator[Entry]:
        for where, track in timeline.tracks.items():
            if topic in ("", where.topic, str(where)):
                yield from _newest(track.events.entries, matches)
        for entry in _newest(timeline.cluster.entries, matches):
            if topic in ("", entry.value.get("topic")):
                yield entry

    began_ms = timeline.header.began_ms
    rows = [
        {
            "time": moment_text(began_ms + one.t),
            "who": one.value.get("who"),
            "kind": one.value.get("kind"),
            "topic": one.value.get("topic"),
            "partition": one.value.get("partition"),
            "details": details(one.value),
            "event": one.value,
        }
        for one in nlargest(_MOST_EVENTS, found(), key=lambda one: one.t)
    ]
    return {"title": "Events", "events": rows, "kinds": _KINDS, "since": moment_text(began_ms + (timeline.begin or 0))}


def _newest(entries: Sequence[Entry], matches: Any) -> Iterator[Entry]:
    count = 0
    for entry in reversed(entries):
        if matches(entry):
            yield entry
            count += 1
        if count == _MOST_EVENTS:
            return
