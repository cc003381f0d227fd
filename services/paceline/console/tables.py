"""The table twin of each drawing: the same facts as text, for readers, screen readers and tests."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from paceline.console.drawing import request_text, sender_of
from paceline.console.lens import Frame, clock_text


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts."""

    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def offsets_table(frame: Frame) -> Table:
    """Return offsets and epochs of each replica."""
    headers = (
        "broker",
        "state",
        "in ISR",
        "applied",
        "log start",
        "high watermark",
        "log end",
        "epochs",
        "as of",
        "last fetch",
    )
    rows = tuple(
        (
            str(one.broker_id),
            one.state,
            "yes" if one.in_isr else "no",
            "-" if one.applied_leader_epoch is None else f"leader {one.applied_leader} e{one.applied_leader_epoch}",
            _number(one.log_start_offset),
            _number(one.high_watermark),
            _number(one.log_end_offset) + (f" (truncated from {one.truncated_from:,})" if one.truncated_from else ""),
            " ".join(f"e{epoch}:{start:,}" for epoch, start, _ in one.epochs) or "-",
            clock_text(frame.began_ms, one.known_ms),
            "-" if one.last_fetch_ago_ms is None else f"{one.last_fetch_ago_ms / 1000:.1f} s ago",
        )
        for one in frame.replicas
    )
    acknowledged = f"acknowledged to acks=all {_number(frame.acknowledged)}"
    return Table(f"Offsets at {frame.clock}; {acknowledged}; ends are exclusive", headers, rows)


def strip_table(frame: Frame) -> Table:
    """Return the changes of leader and ISR, with the log ends at that moment."""
    headers = ("time", "leader", "epoch", "ISR", "log ends then", "reported as")
    rows = tuple(
        (
            clock_text(frame.began_ms, one.begin),
            "none" if one.leader is None else str(one.leader),
            str(one.leader_epoch),
            ", ".join(map(str, one.isr)),
            ", ".join(f"{broker}: {end:,}" for broker, end in sorted(one.offsets.items())) or "-",
            one.cause or "-",
        )
        for one in frame.spans
    )
    return Table("Changes of leader and ISR", headers, rows)


def faults_table(frame: Frame) -> Table:
    """Return the faults of the recording, and the truncations that removed records."""
    both = sorted([*frame.faults, *((t, text) for t, _, text in frame.truncations)])
    rows = tuple((clock_text(frame.began_ms, t), text) for t, text in both)
    return Table("Faults and truncations", ("time", "fault or truncation"), rows)


def controllers_table(frame: Frame) -> Table:
    """Return the terms of the controllers, and the newest epoch that each broker has applied."""
    terms = [
        (
            one.controller,
            f"epoch {one.controller_epoch}",
            clock_text(frame.began_ms, one.begin),
            "-" if one.end is None else clock_text(frame.began_ms, one.end),
        )
        for one in frame.controllers
    ]
    applied = [
        (f"broker {broker}", f"applied {epoch}", clock_text(frame.began_ms, t), "-")
        for broker, steps in frame.applied
        for epoch, t in steps
        if t <= frame.t
    ]
    caption = "Controllers, and the controller epochs that brokers applied"
    return Table(caption, ("process", "epoch", "from", "until"), (*terms, *applied))


def requests_table(frame: Frame) -> Table:
    """Return the latest control requests."""
    rows = tuple(
        (
            one["clock"],
            sender_of(one),
            str(one.get("who", "-")),
            str(one.get("controller_epoch", "-")),
            request_text(one),
        )
        for one in frame.requests
    )
    return Table("The latest control requests", ("time", "from", "to", "controller epoch", "request and answer"), rows)


def events_table(frame: Frame) -> Table:
    """Return the latest events."""
    rows = tuple(
        (one["clock"], str(one.get("who", "-")), str(one.get("kind", "-")), details(one)) for one in frame.events
    )
    return Table("The latest events", ("time", "reported by", "event", "details"), rows)


def details(event: dict[str, Any]) -> str:
    """Return the details of an event: all but its time, its reporter and its kind."""
    parts = []
    if event.get("to_state"):
        before = f"{event['from_state']} to " if event.get("from_state") else ""
        parts.append(f"{before}{event['to_state']}")
    parts += [
        f"{name.replace('_', ' ')} {event[name]}" for name in ("replica", "leader", "leader_epoch") if name in event
    ]
    if event.get("isr"):
        parts.append(f"ISR {_ids(event['isr'])}")
    if event.get("end_offset") is not None:
        parts.append(f"log end after {event['end_offset']:,}")
    if event.get("replicas"):
        ends = " ".join(f"{one['broker_id']}:{_number(one.get('log_end_offset'))}" for one in event["replicas"])
        parts.append(f"ends {ends}")
    if event.get("cause"):
        parts.append(f"({event['cause']})")
    return ", ".join(parts) or "-"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))
