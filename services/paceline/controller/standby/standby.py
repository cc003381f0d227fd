"""Keep a copy of the active controller's state on a standby, for use when the standby is elected.

A copy is complete up to its journal sequence, whichever controller sent it: at failover ``/controller_journal`` lists
the partitions that were written after this sequence. A broken stream therefore only makes the copy older, and
only a complete newer copy replaces it.

Source: docs/protocol/controller.md#warm-standby; docs/decisions/0009-warm-standbys.md.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Any

from paceline.controller.election.controller_election import ActiveController
from paceline.controller.errors import ActiveControllerDeadError
from paceline.controller.interfaces import StandbyTransport
from paceline.model.backoff import Retries
from paceline.model.control import Endpoint
from paceline.model.errors import InvalidTransitionError
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.scheduler import Cancellable, Scheduler
from paceline.model.standby import StateUpdate, TopicStates

LOG = logging.getLogger(__name__)

SILENCE_MS = 10_000
"""Time without a message after which a stream is closed; the active controller sends messages ten times as often."""


@dataclass(slots=True)
class MirroredTopic:
    """A standby's copy of one topic."""

    topic_id: str | None
    states: dict[int, LeaderAndIsr] = field(default_factory=dict)
    extras: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class StateMirror:
    """All partition states at one sequence of the journal."""

    controller_epoch: int
    sequence: int | None = None
    """None until the snapshot is complete."""
    topics: dict[str, MirroredTopic] = field(default_factory=dict)
    broker_epochs: dict[int, int] = field(default_factory=dict)

    @property
    def partition_count(self) -> int:
        """Partitions with a state."""
        return sum(len(topic.states) for topic in self.topics.values())

    def apply(self, update: StateUpdate) -> None:
        """Apply a message; messages must arrive in order and without gaps."""
        for topic in update.dropped_topics:
            self.topics.pop(topic, None)
        for topic, states in update.topics.items():
            self._apply_topic(topic, states)
        if update.broker_epochs is not None:
            self.broker_epochs = dict(update.broker_epochs)
        if update.sequence is not None:
            self.sequence = update.sequence

    def _apply_topic(self, topic: str, update: TopicStates) -> None:
        known = self.topics.get(topic)
        if known is None or known.topic_id != update.topic_id:
            known = self.topics[topic] = MirroredTopic(update.topic_id)
        for partition, state in update.states.items():
            if state is None:
                known.states.pop(partition, None)
            else:
                known.states[partition] = state
            extra = update.extras.get(partition)
            if extra:
                known.extras[partition] = extra
            elif known.extras:
                known.extras.pop(partition, None)


class Phase(IntEnum):
    """Progress of a stream, which only goes forward: no message yet, the snapshot, the changes after it, the end."""

    OPENING = auto()
    LOADING = auto()
    FOLLOWING = auto()
    ENDED = auto()


class _Stream:
    """A stream from the active controller."""

    def __init__(self) -> None:
        self.phase = Phase.OPENING
        self.expected = 1
        self.mirror = StateMirror(controller_epoch=0)
        self.close: Callable[[], None] = lambda: None

    def enter(self, phase: Phase) -> None:
        if self.phase >= phase:
            raise InvalidTransitionError(f"{self.phase!r} does not precede {phase!r}")
        self.phase = phase


class Standby:
    """Follows the active controller; `mirror` is the latest complete copy of its state."""

    def __init__(
        self,
        controller_id: int,
        scheduler: Scheduler,
        transport: StandbyTransport,
        rng: random.Random,
        on_active_dead: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        """``on_active_dead`` gets id and epoch of a followed controller whose process is dead, once per epoch."""
        self._on_active_dead = on_active_dead
        self._followed_id: int | None = None
        self._found_dead_epoch = 0
        self._controller_id = controller_id
        self._scheduler = scheduler
        self._transport = transport
        self._endpoint: Endpoint | None = None
        self._stream: _Stream | None = None
        self._retries = Retries(scheduler, rng)
        """Attempts to open a stream; the election of another controller ends a pause."""
        self._timer: Cancellable | None = None
        self._highest_epoch = 0
        self.mirror: StateMirror | None = None

    @property
    def in_sync(self) -> bool:
        """Whether a stream is open and has delivered its snapshot."""
        return self._stream is not None and self._stream.phase is Phase.FOLLOWING and self.mirror is not None

    def follow(self, active: ActiveController | None) -> None:
        """Follow the active controller, or stop following when None; do nothing when it is already followed."""
        if active is not None and active.controller_id == self._controller_id:
            active = None
        by_listener = {} if active is None else {endpoint.listener: endpoint for endpoint in active.endpoints}
        endpoint = by_listener.get("CONTROL")
        if endpoint == self._endpoint:
            return
        self._close()
        self._endpoint = endpoint
        self._followed_id = None if active is None else active.controller_id
        self._retries.reset()
        if endpoint is not None:
            self._open()

    def stop(self) -> None:
        """Stop following the active controller; keep the copy."""
        self.follow(None)

    @property
    def controller_epoch(self) -> int:
        """Highest controller epoch that this process has followed or had."""
        return self._highest_epoch

    def discard_copy(self, controller_epoch: int) -> None:
        """Discard the copy: this process has used it for its own term, and earlier epochs have ended."""
        self.mirror = None
        self._highest_epoch = max(self._highest_epoch, controller_epoch)

    def _open(self) -> None:
        self._timer = None
        endpoint = self._endpoint
        if endpoint is None:
            return
        stream = self._stream = _Stream()
        self._watch_silence(stream)
        stream.close = self._transport.follow(
            endpoint,
            self._controller_id,
            lambda update: self._on_update(stream, update),
            lambda error: self._on_end(stream, error),
        )

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.enter(Phase.ENDED)
            stream.close()

    def _watch_silence(self, stream: _Stream) -> None:
        if self._timer is not None:
            self._timer.cancel()
        silent = TimeoutError(f"no message for {SILENCE_MS} ms")
        self._timer = self._scheduler.call_later(SILENCE_MS, lambda: self._on_end(stream, silent))

    def _on_update(self, stream: _Stream, update: StateUpdate) -> None:
        if stream.phase is Phase.ENDED:
            return
        if update.number != stream.expected:
            self._on_end(stream, ValueError(f"got message {update.number} instead of {stream.expected}"))
            return
        if update.controller_epoch < self._highest_epoch:
            error = ValueError(f"controller epoch {update.controller_epoch} is older than {self._highest_epoch}")
            self._on_end(stream, error)
            return
        self._highest_epoch = update.controller_epoch
        stream.expected += 1
        if stream.phase is Phase.OPENING:
            stream.enter(Phase.LOADING)
            stream.mirror.controller_epoch = update.controller_epoch
        if stream.mirror.controller_epoch != update.controller_epoch:
            self._on_end(stream, ValueError("the controller epoch changed within the stream"))
            return
        stream.mirror.apply(update)
        self._watch_silence(stream)
        if stream.phase is Phase.LOADING and not update.in_snapshot and update.sequence is not None:
            stream.enter(Phase.FOLLOWING)
            self.mirror = stream.mirror
            self._retries.reset()
            LOG.info(
                "standby is warm: states=%d epoch=%d sequence=%d",
                self.mirror.partition_count, update.controller_epoch, update.sequence,
            )  # fmt: skip

    def _report_dead(self, stream: _Stream) -> None:
        """Report a dead controller whose stream was established in the newest epoch, once in that epoch."""
        if stream.phase is Phase.OPENING or self._followed_id is None:
            return
        epoch = stream.mirror.controller_epoch
        if epoch == self._highest_epoch and epoch > self._found_dead_epoch:
            self._found_dead_epoch = epoch
            self._on_active_dead(self._followed_id, epoch)

    def _on_end(self, stream: _Stream, error: Exception | None) -> None:
        if stream is not self._stream:
            return
        if isinstance(error, ActiveControllerDeadError):
            self._report_dead(stream)
        self._close()
        if not self._retries.failures:
            LOG.info("stream of controller state ended, retrying: error=%s", error)
        self._timer = self._retries.schedule(self._open)
