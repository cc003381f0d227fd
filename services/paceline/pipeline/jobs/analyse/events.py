"""Records of ``__cluster_events`` as rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from paceline.v1 import cluster_event_pb2


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event; fields that its kind does not have are None or empty."""

    event_id: str
    """Equal for all attempts to publish the event."""
    kind: str
    source: str
    time_ms: int
    """By the clock of the source."""
    offset: int = 0
    topic: str = ""
    partition: int = -1
    broker_id: int | None = None
    leader: int | None = None
    leader_epoch: int = -1
    zk_version: int = -1
    controller_epoch: int = -1
    isr: tuple[int, ...] = ()
    old_isr: tuple[int, ...] = ()
    replica_count: int = 0
    """Replicas with offsets in the event."""
    silent_ms: int | None = None
    cause: str = ""

    @property
    def where(self) -> tuple[str, int]:
        """The partition."""
        return self.topic, self.partition


def row_of(value: bytes, event_id: str, offset: int) -> EventRow | None:
    """Return the row of a record's value, None for a value that is not an event or an event unknown to this release."""
    try:
        message = cluster_event_pb2.ClusterEvent.FromString(value)
    except DecodeError:
        return None
    kind = message.WhichOneof("event")
    if kind is None:
        return None
    event: Any = getattr(message, kind)
    names = event.DESCRIPTOR.fields_by_name
    found: dict[str, Any] = {}
    if "partition" in names:
        found["topic"], found["partition"] = event.partition.topic, event.partition.partition
    elif "topic" in names:
        found["topic"] = event.topic
    for name in ("broker_id", "controller_epoch", "silent_ms"):
        if name in names and (not names[name].has_presence or event.HasField(name)):
            found[name] = getattr(event, name)
    if "leadership" in names and event.HasField("leadership"):
        leadership = event.leadership
        found["leader"] = leadership.leader if leadership.HasField("leader") else None
        found["leader_epoch"], found["isr"] = leadership.leader_epoch, tuple(leadership.isr)
        found["zk_version"] = leadership.zk_version if leadership.HasField("zk_version") else -1
    if "old_isr" in names:
        found["old_isr"] = tuple(event.old_isr)
    if "replicas" in names:
        found["replica_count"] = len(event.replicas)
    return EventRow(event_id, kind, message.source, message.time_ms, offset, cause=message.cause, **found)


def from_dict(found: dict[str, Any]) -> EventRow:
    """Return the row from its JSON object, the fields by name."""
    return EventRow(**{**found, "isr": tuple(found["isr"]), "old_isr": tuple(found["old_isr"])})


def in_order(rows: Iterable[EventRow]) -> list[EventRow]:
    """Return every event once, in topic order: epochs order events whose clocks belong to different machines."""
    unique: dict[str, EventRow] = {}
    for row in sorted(rows, key=lambda each: each.offset):
        unique.setdefault(row.event_id, row)
    return list(unique.values())
