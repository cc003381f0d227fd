"""State changes on the wire: `model.state_change` <-> ``paceline.v1.ClusterEvent``."""

from collections.abc import Callable
from typing import Any, Final

from paceline.model.errors import InvalidRequestError
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import ReplicaOffsets, StateChange, StateChangeKind
from paceline.rpc.convert.common import MAX_CLIENT_PARTITIONS, bounded
from paceline.v1 import cluster_event_pb2 as pb
from paceline.v1.metadata_service_pb2 import EventFilter

_PREFIX: Final = "CLUSTER_EVENT_KIND_"
_NUMBER_OF: Final[dict[StateChangeKind, int]] = {
    kind: dict(pb.ClusterEventKind.items()).get(_PREFIX + kind.name, 0) for kind in StateChangeKind
}
_KIND_OF: Final[dict[int, StateChangeKind]] = {number: kind for kind, number in _NUMBER_OF.items() if number}


def event_kind_to_proto(kind: StateChangeKind) -> Any:
    """Return the number of a kind."""
    return _NUMBER_OF[kind]


def event_to_proto(change: StateChange) -> pb.ClusterEvent:
    """Return the message."""
    partition = change.topic_partition
    return pb.ClusterEvent(
        who=change.who,
        wall_ms=change.wall_ms,
        kind=_NUMBER_OF[change.kind],  # type: ignore[arg-type]
        topic=(change.topic or "") if partition is None else partition.topic,
        partition=None if partition is None else partition.partition,
        topic_id=change.topic_id or "",
        replica=change.replica,
        from_state=change.from_state or "",
        to_state=change.to_state or "",
        controller_epoch=change.controller_epoch,
        leader=change.leader,
        leader_epoch=change.leader_epoch,
        isr=change.isr or (),
        old_isr=change.old_isr or (),
        zk_version=change.zk_version,
        replicas=[
            pb.ReplicaOffsets(
                broker_id=one.broker_id, log_end_offset=one.log_end_offset, high_watermark=one.high_watermark
            )
            for one in change.replicas
        ],
        cause=change.cause or "",
    )


def event_from_proto(message: pb.ClusterEvent) -> StateChange:
    """Return the change; a kind this release does not know is a `TRANSITION`, and its cause names the number."""
    kind = _KIND_OF.get(message.kind)
    known_partition = message.HasField("partition")
    cause = message.cause if kind is not None else f"event kind {message.kind}: {message.cause}"
    return StateChange(
        who=message.who,
        wall_ms=message.wall_ms,
        kind=kind or StateChangeKind.TRANSITION,
        topic_partition=TopicPartition(message.topic, message.partition) if known_partition else None,
        topic=None if known_partition else message.topic or None,
        topic_id=message.topic_id or None,
        replica=_optional(message, "replica"),
        from_state=message.from_state or None,
        to_state=message.to_state or None,
        controller_epoch=_optional(message, "controller_epoch"),
        leader=_optional(message, "leader"),
        leader_epoch=_optional(message, "leader_epoch"),
        isr=tuple(message.isr) or None,
        old_isr=tuple(message.old_isr) or None,
        zk_version=_optional(message, "zk_version"),
        replicas=tuple(
            ReplicaOffsets(one.broker_id, _optional(one, "log_end_offset"), _optional(one, "high_watermark"))
            for one in message.replicas
        ),
        cause=cause or None,
    )


def event_filter_from_proto(message: EventFilter) -> Callable[[StateChange], bool] | None:
    """Return what says whether an event is wanted; None when all are.

    Raises:
        InvalidRequestError: a kind is not known here, or there are far too many names.
    """
    topics = frozenset(bounded(message.topics, MAX_CLIENT_PARTITIONS, "topics"))
    unknown = [number for number in bounded(message.kinds, len(pb.ClusterEventKind.keys()) * 4, "kinds")
               if number not in _KIND_OF]  # fmt: skip
    if unknown:
        raise InvalidRequestError(f"event kind {unknown[0]} is not known")
    kinds = frozenset(_KIND_OF[number] for number in message.kinds)
    if not topics and not kinds:
        return None

    def wanted(change: StateChange) -> bool:
        if kinds and change.kind not in kinds:
            return False
        return not topics or (change.topic_partition.topic if change.topic_partition else change.topic) in topics

    return wanted


def _optional(message: Any, field: str) -> int | None:
    return getattr(message, field) if message.HasField(field) else None
