"""State changes on the wire: `model.state_change` <-> ``paceline.v1.ClusterEvent``."""

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from paceline.model.errors import ErrorCode, InvalidRequestError
from paceline.model.identifiers import NO_LEADER, TopicPartition
from paceline.model.state_change import ReplicaOffsets, RequestAnswer, StateChange, StateChangeKind
from paceline.rpc.convert.common import MAX_CLIENT_PARTITIONS, bounded, code_to_proto, known_code
from paceline.v1 import cluster_event_pb2 as pb
from paceline.v1.metadata_service_pb2 import EventFilter

_PREFIX: Final = "CLUSTER_EVENT_KIND_"
_NUMBER_OF: Final[dict[StateChangeKind, int]] = {
    kind: dict(pb.ClusterEventKind.items()).get(_PREFIX + kind.name, 0) for kind in StateChangeKind
}
_KIND_OF: Final[dict[int, StateChangeKind]] = {number: kind for kind, number in _NUMBER_OF.items() if number}

_STATE_WORDS: Final[dict[int, str]] = {
    number: "".join(word.capitalize() for word in name.removeprefix("TRANSITION_STATE_").split("_"))
    for name, number in pb.TransitionState.items()
    if number
}
"""State names of the controller's state machines by number: "OnlinePartition" is TRANSITION_STATE_ONLINE_PARTITION."""
_STATE_NUMBERS: Final[dict[str, int]] = {word: number for number, word in _STATE_WORDS.items()}

_SESSION: Final = "SESSION_STATE_"
_REQUESTS: Final[dict[str, int]] = {
    "LeaderAndIsr": pb.CONTROL_REQUEST_KIND_LEADER_AND_ISR,
    "StopReplica": pb.CONTROL_REQUEST_KIND_STOP_REPLICA,
    "UpdateMetadata": pb.CONTROL_REQUEST_KIND_UPDATE_METADATA,
}
MAX_NAMED_PARTITIONS: Final = 100
"""Maximum number of partitions in an event filter."""


def event_kind_to_proto(kind: StateChangeKind) -> Any:
    """Return the enum number of an event kind."""
    return _NUMBER_OF[kind]


def without_broker_epoch(change: StateChange) -> StateChange:
    """Return the change without broker epochs, which only super users may see."""
    if change.answer is not None and change.answer.known_broker_epoch is not None:
        answer = dataclasses.replace(change.answer, known_broker_epoch=None)
        return dataclasses.replace(change, broker_epoch=None, answer=answer)
    return change if change.broker_epoch is None else dataclasses.replace(change, broker_epoch=None)


def event_to_proto(change: StateChange) -> pb.ClusterEvent:
    """Encode the change; its kind names the field of the message that is set."""
    kind = change.kind.name.lower()
    message, fields = _EVENTS[kind]
    event: Any = message(**{name: value(change) for name, value in fields})
    return pb.ClusterEvent(source=change.who, time_ms=change.wall_ms, cause=change.cause or "", **{kind: event})


def event_from_proto(message: pb.ClusterEvent) -> StateChange:
    """Decode the change; a kind that this release does not know becomes a `TRANSITION` with a cause that says so."""
    field = message.WhichOneof("event")
    if field is None:
        cause = f"an event of a newer release: {message.cause}" if message.cause else "an event of a newer release"
        return StateChange(who=message.source, wall_ms=message.time_ms, cause=cause)
    event: Any = getattr(message, field)
    change = StateChange(
        who=message.source, wall_ms=message.time_ms, kind=StateChangeKind[field.upper()], cause=message.cause or None
    )
    names = event.DESCRIPTOR.fields_by_name
    if "partition" in names:
        change.topic_partition = TopicPartition(event.partition.topic, event.partition.partition)
        change.topic_id = event.partition.topic_id or None
    if "topic" in names:
        change.topic, change.topic_id = event.topic or None, event.topic_id or None
    if "broker_id" in names:
        change.replica = _optional(event, "broker_id") if names["broker_id"].has_presence else event.broker_id
    if "controller_epoch" in names:
        has_presence = names["controller_epoch"].has_presence
        change.controller_epoch = _optional(event, "controller_epoch") if has_presence else event.controller_epoch
    if "leadership" in names and event.HasField("leadership"):
        leadership = event.leadership
        change.leader = leadership.leader if leadership.HasField("leader") else NO_LEADER
        change.leader_epoch = leadership.leader_epoch
        change.isr = tuple(leadership.isr) or None
        change.zk_version = _optional(leadership, "zk_version")
    if "replicas" in names:
        change.replicas = tuple(
            ReplicaOffsets(one.broker_id, _optional(one, "log_end_offset"), _optional(one, "high_watermark"))
            for one in event.replicas
        )
    if isinstance(event, pb.IsrEvent):
        change.old_isr = tuple(event.old_isr) or None
    elif isinstance(event, pb.TruncationEvent):
        change.end_offset = event.end_offset
    elif isinstance(event, pb.TransitionEvent):
        change.from_state = _STATE_WORDS.get(event.from_state)
        change.to_state = _STATE_WORDS.get(event.to_state)
    elif isinstance(event, pb.BrokerEvent):
        change.broker_epoch = _optional(event, "broker_epoch")
        change.silent_ms = _optional(event, "silent_ms")
        states = {number: name.removeprefix(_SESSION) for name, number in pb.SessionState.items() if number}
        change.to_state = states.get(event.session_state)
    elif isinstance(event, pb.ControlRequestEvent):
        change.broker_epoch = _optional(event, "broker_epoch")
        change.answer = RequestAnswer(
            request=next((name for name, kind in _REQUESTS.items() if kind == event.kind), ""),
            controller_id=event.controller_id,
            error=known_code(event.error).name if event.HasField("error") else None,
            known_controller_epoch=_optional(event, "known_controller_epoch"),
            known_leader_epoch=_optional(event, "known_leader_epoch"),
            known_broker_epoch=_optional(event, "known_broker_epoch"),
        )
    elif isinstance(event, pb.LogDirEvent):
        change.log_dir = event.path or None
    elif isinstance(event, pb.ReassignmentEvent):
        change.origin_replicas = None if event.finished else tuple(event.origin_replicas)
        change.target_replicas = tuple(event.target_replicas)
    return change


def _partition(change: StateChange) -> pb.EventPartition:
    topic, partition = change.topic_partition or TopicPartition(change.topic or "", 0)
    return pb.EventPartition(topic=topic, partition=partition, topic_id=change.topic_id or "")


def _leadership(change: StateChange) -> pb.PartitionLeadership | None:
    if change.leader_epoch is None:
        return None
    return pb.PartitionLeadership(
        leader=None if change.leader is None or change.leader < 0 else change.leader,
        leader_epoch=change.leader_epoch,
        isr=change.isr or (),
        zk_version=change.zk_version,
    )


def _offsets(change: StateChange) -> list[pb.ReplicaOffsets]:
    return [
        pb.ReplicaOffsets(broker_id=one.broker_id, log_end_offset=one.log_end_offset, high_watermark=one.high_watermark)
        for one in change.replicas
    ]


_VALUES: Final[dict[str, Callable[[Any], Any]]] = {
    "partition": _partition,
    "leadership": _leadership,
    "replicas": _offsets,
    "broker_id": lambda change: change.replica,
    "path": lambda change: change.log_dir,
    "finished": lambda change: change.origin_replicas is None,
    "from_state": lambda change: _STATE_NUMBERS.get(change.from_state or ""),
    "to_state": lambda change: _STATE_NUMBERS.get(change.to_state or ""),
    "session_state": lambda change: change.to_state and pb.SessionState.Value(_SESSION + change.to_state),
    "kind": lambda change: _REQUESTS[change.answer.request],
    "error": lambda change: code_to_proto(ErrorCode[change.answer.error or "NONE"]),
    **{
        name: attrgetter(f"answer.{name}")
        for name in ("controller_id", "known_controller_epoch", "known_leader_epoch", "known_broker_epoch")
    },
}
"""Functions for the values of fields; any other field is the attribute of the same name. None leaves a field unset."""
_ONEOF: Any = pb.ClusterEvent.DESCRIPTOR.oneofs_by_name["event"]
_EVENTS: Final = {
    event.name: (
        getattr(pb, event.message_type.name),
        [(field.name, _VALUES.get(field.name) or attrgetter(field.name)) for field in event.message_type.fields],
    )
    for event in _ONEOF.fields
}
"""Message class of each kind of event, with its fields."""


def event_filter_from_proto(message: EventFilter) -> Callable[[StateChange], bool] | None:
    """Return a predicate for the events that pass the filter, None when all events pass.

    Raises:
        InvalidRequestError: an event kind is unknown, or the filter has too many names.
    """
    topics = frozenset(bounded(message.topics, MAX_CLIENT_PARTITIONS, "topics"))
    partitions = named_partitions(message)
    unknown = [number for number in bounded(message.kinds, len(pb.ClusterEventKind.keys()) * 4, "kinds")
               if number not in _KIND_OF]  # fmt: skip
    if unknown:
        raise InvalidRequestError(f"event kind {unknown[0]} is not known")
    kinds = frozenset(_KIND_OF[number] for number in message.kinds)
    if not topics and not kinds and not partitions:
        return None

    def wanted(change: StateChange) -> bool:
        if kinds and change.kind not in kinds:
            return False
        if not topics and not partitions:
            return True
        where = change.topic_partition
        return (where.topic if where else change.topic) in topics or where in partitions

    return wanted


def named_partitions(message: EventFilter) -> frozenset[TopicPartition]:
    """Return the partitions that a filter names.

    Raises:
        InvalidRequestError: the filter has too many partitions.
    """
    named = bounded(message.partitions, MAX_NAMED_PARTITIONS, "partitions")
    return frozenset(TopicPartition(one.topic, one.partition) for one in named)


def _optional(message: Any, field: str) -> int | None:
    return getattr(message, field) if message.HasField(field) else None
