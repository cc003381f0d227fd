"""Report the controller's transitions to the state-change log and the event stream."""

from collections.abc import Callable
from enum import Enum, StrEnum

from paceline.controller.context import ControllerContext
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChange, StateChangeKind


class Cause(StrEnum):
    """Why a broker lost its leaders; label of the election metric and start of the cause in events."""

    SESSION = "session"
    LEASE = "lease"
    SUSPICION = "suspicion"
    UNREACHABLE = "unreachable"
    SHUTDOWN = "shutdown"
    OTHER = "other"


class StateChangeLog:
    """Converts transitions into `StateChange` records."""

    def __init__(
        self,
        who: str,
        context: ControllerContext,
        wall_ms: Callable[[], int],
        sink: Callable[[StateChange], None],
    ) -> None:
        self._who = who
        self._context = context
        self._wall_ms = wall_ms
        self._sink = sink
        self.cause = "Startup"
        """The event being handled, or, when a broker lost its leaders, a `Cause` with its evidence."""
        self.cause_of_election = Cause.OTHER

    def because(self, cause: str, evidence: str = "") -> None:
        """Set the cause of the following changes, until the end of the event."""
        self.cause = f"{cause}: {evidence}" if evidence else cause
        self.cause_of_election = cause if isinstance(cause, Cause) else Cause.OTHER

    def record(
        self,
        topic_partition: TopicPartition,
        before: Enum,
        after: Enum,
        replica: int | None = None,
        kind: StateChangeKind = StateChangeKind.TRANSITION,
    ) -> None:
        """Report a transition, with the leadership after it from the context."""
        known = self._context.leadership.get(topic_partition)
        self._sink(
            StateChange(
                who=self._who,
                wall_ms=self._wall_ms(),
                kind=kind,
                topic_partition=topic_partition,
                topic_id=self._context.topic_ids.get(topic_partition.topic),
                replica=replica,
                from_state=str(before._value_),
                to_state=str(after._value_),
                controller_epoch=self._context.epoch,
                leader=None if known is None else known.leader,
                leader_epoch=None if known is None else known.leader_epoch,
                isr=None if known is None else known.isr,
                zk_version=None if known is None else known.zk_version,
                cause=self.cause,
            )
        )

    def note(
        self,
        kind: StateChangeKind,
        replica: int | None = None,
        cause: str | None = None,
        topic_partition: TopicPartition | None = None,
        topic: str | None = None,
        *,
        broker_epoch: int | None = None,
        silent_ms: int | None = None,
        origin_replicas: tuple[int, ...] | None = None,
        target_replicas: tuple[int, ...] | None = None,
    ) -> None:
        """Report a change that is not a transition of a partition: about the controller, a broker or a topic."""
        self._sink(
            StateChange(
                who=self._who,
                wall_ms=self._wall_ms(),
                kind=kind,
                topic_partition=topic_partition,
                topic=topic,
                topic_id=None if topic is None else self._context.topic_ids.get(topic),
                replica=replica,
                controller_epoch=self._context.epoch,
                broker_epoch=broker_epoch,
                silent_ms=silent_ms,
                origin_replicas=origin_replicas,
                target_replicas=target_replicas,
                cause=cause or self.cause,
            )
        )

    def isr_changed(self, topic_partition: TopicPartition, old_isr: tuple[int, ...]) -> None:
        """Report an ISR change written by a leader, whose own report has the offsets."""
        known = self._context.leadership[topic_partition]
        grown = any(broker_id not in old_isr for broker_id in known.isr)
        self._sink(
            StateChange(
                who=self._who,
                wall_ms=self._wall_ms(),
                kind=StateChangeKind.ISR_EXPANDED if grown else StateChangeKind.ISR_SHRUNK,
                topic_partition=topic_partition,
                topic_id=self._context.topic_ids.get(topic_partition.topic),
                controller_epoch=self._context.epoch,
                leader=known.leader,
                leader_epoch=known.leader_epoch,
                isr=known.isr,
                old_isr=old_isr,
                zk_version=known.zk_version,
                cause=self.cause,
            )
        )
