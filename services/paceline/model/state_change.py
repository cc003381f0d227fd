"""Record of a change in the cluster, for the state-change log, the event stream, the CLI and the console.

The emitter sets the fields that it knows and leaves all others None; `kind` determines the expected fields.
"""

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final

from paceline.model.identifiers import TopicPartition


class StateChangeKind(Enum):
    """Kind of change; the values are displayed to people."""

    BECAME_LEADER = "became-leader"
    BECAME_FOLLOWER = "became-follower"
    BECAME_OFFLINE = "became-offline"
    REPLICA_STOPPED = "replica-stopped"
    REPLICA_DELETED = "replica-deleted"
    ISR_PROPOSED = "isr-proposed"
    ISR_SHRUNK = "isr-shrunk"
    ISR_EXPANDED = "isr-expanded"
    ISR_REFUSED = "isr-refused"
    ISR_UNKNOWN = "isr-unknown"
    TRUNCATED = "truncated"
    FETCH_FENCED = "fetch-fenced"
    FETCHER_FAILED = "fetcher-failed"
    CONTROL_REFUSED = "control-refused"
    BROKER_REGISTERED = "broker-registered"
    SESSION_CHANGED = "session-changed"
    LOG_DIR_FAILED = "log-dir-failed"
    LOG_DIR_SHORT = "log-dir-short"
    LOG_DIR_ROOMY = "log-dir-roomy"
    LOG_DAMAGED = "log-damaged"
    LOG_SET_ASIDE = "log-set-aside"
    FIRST_COMMIT = "first-commit"
    BROKER_SUSPECTED = "broker-suspected"
    LEADER_UNREACHABLE = "leader-unreachable"
    CONTROLLER_ELECTED = "controller-elected"
    CONTROLLER_RESIGNED = "controller-resigned"
    BROKER_UP = "broker-up"
    BROKER_DOWN = "broker-down"
    TRANSITION = "transition"
    """A state machine of the controller moved from ``from_state`` to ``to_state``."""
    LEADER_ELECTED = "leader-elected"
    TOPIC_CREATED = "topic-created"
    TOPIC_DELETED = "topic-deleted"
    TOPIC_CONFIGURED = "topic-configured"
    BROKER_CONFIGURED = "broker-configured"
    REASSIGNMENT = "reassignment"
    CONTROL_REQUEST = "control-request"
    """A broker answered a controller's request about a partition that a watcher names."""


@dataclass(slots=True)
class ReplicaOffsets:
    """Offsets of a replica at the time of a change, known to the emitter; ends are exclusive."""

    broker_id: int
    log_end_offset: int | None
    high_watermark: int | None = None


@dataclass(slots=True, kw_only=True)
class RequestAnswer:
    """A broker's answer to a controller's request; the request's own epochs are those of the state change."""

    request: str
    """``LeaderAndIsr``, ``StopReplica`` or ``UpdateMetadata``."""
    controller_id: int
    error: str | None = None
    """Name of the error code; None when the request was applied. The other fields are set only with an error."""
    known_controller_epoch: int | None = None
    known_leader_epoch: int | None = None
    known_broker_epoch: int | None = None


@dataclass(slots=True, kw_only=True)
class StateChange:
    """A change, reported by the process that made it; treat it as immutable.

    The class is not frozen: creating a frozen instance costs three times as much, and an election of ten thousand
    partitions creates tens of thousands of instances.
    """

    who: str
    """The process, for example ``broker-1`` or ``controller-1000000``."""
    wall_ms: int
    """Milliseconds since the epoch by the emitter's clock."""
    kind: StateChangeKind = StateChangeKind.TRANSITION
    topic_partition: TopicPartition | None = None
    topic: str | None = None
    """The topic, for a change of a topic instead of a partition."""
    topic_id: str | None = None
    replica: int | None = None
    """Broker id of the replica that changed; None for a change of the partition or the process."""
    from_state: str | None = None
    to_state: str | None = None
    """New state of a state machine, or of a ZooKeeper session (`SESSION_CHANGED`: a name of `SessionState`)."""
    controller_epoch: int | None = None
    leader: int | None = None
    leader_epoch: int | None = None
    isr: tuple[int, ...] | None = None
    old_isr: tuple[int, ...] | None = None
    zk_version: int | None = None
    replicas: tuple[ReplicaOffsets, ...] = ()
    """The emitter's own replica first, then the replicas whose progress it tracks."""
    broker_epoch: int | None = None
    """Broker epoch of the broker that changed."""
    silent_ms: int | None = None
    """Time since the controller last received a heartbeat of the broker."""
    log_dir: str | None = None
    end_offset: int | None = None
    """End of a follower's log after a truncation, exclusive."""
    origin_replicas: tuple[int, ...] | None = None
    """Replicas before a reassignment; None when the reassignment is complete."""
    target_replicas: tuple[int, ...] | None = None
    """Target replicas of a reassignment."""
    answer: RequestAnswer | None = None
    cause: str | None = None
    """Cause, as a text for people."""


_STATE_CHANGE_FIELDS: Final = tuple(field.name for field in fields(StateChange))


def state_change_fields(change: StateChange) -> dict[str, Any]:
    """Return the known fields of a state change as JSON values; a partition becomes topic and partition."""
    found: dict[str, Any] = {}
    for name in _STATE_CHANGE_FIELDS:
        value = getattr(change, name)
        if value is None or value == ():
            continue
        if name == "topic_partition":
            found["topic"], found["partition"] = value
        elif name == "replicas":
            found["replicas"] = [_known_fields(replica) for replica in value]
        elif name == "answer":
            found |= _known_fields(value)
        elif isinstance(value, tuple):
            found[name] = list(value)
        else:
            found[name] = value._value_ if isinstance(value, Enum) else value
    return found


def _known_fields(part: ReplicaOffsets | RequestAnswer) -> dict[str, Any]:
    return {field.name: value for field in fields(part) if (value := getattr(part, field.name)) is not None}
