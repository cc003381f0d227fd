"""Send the active controller's state to its standbys: a snapshot, then the changes of each commit and event.

States are sent as soon as the context holds them; broker epochs only between events, when every state is at least as
new as the registration of its leader (required by docs/decisions/0009-warm-standbys.md). A standby that is too slow is
disconnected and reconnects for a snapshot. This module never waits for a standby.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

from paceline.controller.context import ControllerContext
from paceline.controller.state.journal import ControllerJournal
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.scheduler import Cancellable, Scheduler
from paceline.model.standby import StateUpdate, TopicStates

LOG = logging.getLogger(__name__)

HEARTBEAT_MS = 1_000
"""Longest time between two messages to a standby."""
PARTITIONS_PER_UPDATE = 10_000
"""Maximum number of partitions in a message, which is then about 300 KB on the wire."""
MAX_FOLLOWERS = 16
"""Maximum number of streams; a further stream ends the oldest stream. Each stream begins with a snapshot."""


class StateSink(Protocol):
    """Receives the updates for one standby."""

    def put(self, update: StateUpdate) -> bool:
        """Queue an update, in order; return False when the queue is full or the standby has disconnected."""

    def end(self) -> None:
        """End the stream; `put` is not called afterwards."""


class _Follower:
    """The stream to one standby."""

    def __init__(self, standby_id: int, sink: StateSink) -> None:
        self.standby_id = standby_id
        self.sink = sink
        self.number = 0
        self.has_snapshot = False


class StatePublisher:
    """The streams of a controller to its standbys; only an active controller has streams."""

    def __init__(self, context: ControllerContext, journal: ControllerJournal, scheduler: Scheduler) -> None:
        self._context = context
        self._journal = journal
        self._scheduler = scheduler
        self._followers: list[_Follower] = []
        self._broker_epochs: dict[int, int] = {}
        self._busy = False
        self._flush_is_due = False
        self._heartbeat: Cancellable | None = None

    @property
    def standby_ids(self) -> tuple[int, ...]:
        """Ids of the standbys that follow, sorted."""
        return tuple(sorted(follower.standby_id for follower in self._followers))

    def follow(self, standby_id: int, sink: StateSink) -> Callable[[], None]:
        """Open a stream; return a function that ends it. An earlier stream of the same standby is ended."""
        for known in [one for one in self._followers if one.standby_id == standby_id]:
            self._drop(known)
        while len(self._followers) >= MAX_FOLLOWERS:
            self._drop(self._followers[0])
        follower = _Follower(standby_id, sink)
        self._followers.append(follower)
        if not self._busy:
            self._send_snapshots()
        if self._heartbeat is None:
            self._heartbeat = self._scheduler.call_later(HEARTBEAT_MS, self._beat)

        def cancel() -> None:
            if follower in self._followers:
                self._followers.remove(follower)

        return cancel

    def event_begins(self) -> None:
        """Mark the context as inconsistent while an event is handled."""
        self._busy = True

    def event_ends(self) -> None:
        """Mark the context as consistent: send the remaining changes with broker epochs, and waiting snapshots."""
        self._busy = False
        self._flush(self._changed_broker_epochs())
        self._send_snapshots()

    def flush_soon(self) -> None:
        """Send committed changes after the running event has put them into the context."""
        if self._followers and not self._flush_is_due:
            self._flush_is_due = True
            self._scheduler.call_soon(self._flush_now)

    def reset(self) -> None:
        """End every stream: the controller resigned."""
        for follower in list(self._followers):
            self._drop(follower)
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None
        self._broker_epochs = {}
        self._busy = False

    # sending

    def _flush_now(self) -> None:
        self._flush_is_due = False
        if self._followers:
            self._flush(None)

    def _beat(self) -> None:
        self._heartbeat = None
        if not self._followers:
            return
        self._heartbeat = self._scheduler.call_later(HEARTBEAT_MS, self._beat)
        self._flush(None, even_if_empty=True)

    def _flush(self, broker_epochs: dict[int, int] | None, even_if_empty: bool = False) -> None:
        context = self._context
        ready = [follower for follower in self._followers if follower.has_snapshot]
        if not ready:
            context.take_changes()
            return
        changed, dropped = context.take_changes()
        if not changed and not dropped and broker_epochs is None and not even_if_empty:
            return
        parts = list(self._topics(changed)) or [{}]
        for index, topics in enumerate(parts):
            last = index == len(parts) - 1
            for follower in ready:
                self._put(
                    follower,
                    StateUpdate(
                        self._next(follower),
                        context.epoch,
                        sequence=self._journal.applied if last else None,
                        topics=topics,
                        dropped_topics=dropped if index == 0 else (),
                        broker_epochs=broker_epochs if last else None,
                    ),
                )

    def _send_snapshots(self) -> None:
        waiting = [follower for follower in self._followers if not follower.has_snapshot]
        if not waiting:
            return
        context = self._context
        self._broker_epochs = self._current_broker_epochs()
        parts = list(self._topics(context.leadership)) or [{}]
        for follower in waiting:
            for index, topics in enumerate(parts):
                last = index == len(parts) - 1
                self._put(
                    follower,
                    StateUpdate(
                        self._next(follower),
                        context.epoch,
                        in_snapshot=not last,
                        sequence=self._journal.applied if last else None,
                        topics=topics,
                        broker_epochs=self._broker_epochs if last else None,
                    ),
                )
            follower.has_snapshot = True
            LOG.info(
                "standby connected: standby=%d sequence=%d partitions=%d",
                follower.standby_id, self._journal.applied, len(context.leadership),
            )  # fmt: skip

    def _topics(self, topic_partitions: Iterable[TopicPartition]) -> Iterator[dict[str, TopicStates]]:
        context = self._context
        remaining = iter(topic_partitions)
        while chunk := list(islice(remaining, PARTITIONS_PER_UPDATE)):
            states: dict[str, dict[int, LeaderAndIsr | None]] = {}
            for topic_partition in chunk:
                states.setdefault(topic_partition.topic, {})[topic_partition.partition] = context.leadership.get(
                    topic_partition
                )
            yield {
                topic: TopicStates(context.topic_ids.get(topic), known, self._extras(topic, known))
                for topic, known in states.items()
            }

    def _extras(self, topic: str, partitions: Iterable[int]) -> dict[int, Mapping[str, Any]]:
        extras = self._context.state_extras
        if not extras:
            return {}
        found = ((partition, extras.get(TopicPartition(topic, partition))) for partition in partitions)
        return {partition: extra for partition, extra in found if extra}

    def _current_broker_epochs(self) -> dict[int, int]:
        brokers = self._context.brokers
        return {broker_id: brokers[broker_id].broker_epoch for broker_id in sorted(brokers)}

    def _changed_broker_epochs(self) -> dict[int, int] | None:
        if not self._followers:
            return None
        current = self._current_broker_epochs()
        if current == self._broker_epochs:
            return None
        self._broker_epochs = current
        return current

    def _next(self, follower: _Follower) -> int:
        follower.number += 1
        return follower.number

    def _put(self, follower: _Follower, update: StateUpdate) -> None:
        if follower in self._followers and not follower.sink.put(update):
            LOG.warning("standby is too slow, disconnecting it: standby=%d", follower.standby_id)
            self._drop(follower)

    def _drop(self, follower: _Follower) -> None:
        if follower in self._followers:
            self._followers.remove(follower)
        follower.sink.end()
