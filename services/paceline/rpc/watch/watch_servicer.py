"""WatchEvents, WatchMetadata, PollEvents and PollMetadata, the same on brokers and controllers."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

from paceline.model.errors import InvalidRequestError
from paceline.model.metadata_revisions import CLUSTER, MetadataPosition, MetadataRevisions
from paceline.model.state_change import StateChange
from paceline.rpc.convert.common import MAX_CLIENT_PARTITIONS, at_least, bounded
from paceline.rpc.convert.events import event_filter_from_proto, event_to_proto, without_broker_epoch
from paceline.rpc.deadlines import wait_within_deadline
from paceline.rpc.security.guard import current_caller
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.v1 import metadata_service_pb2 as pb
from paceline.v1 import metadata_service_pb2_grpc

MAX_EVENTS: Final = 500
MAX_TOPICS: Final = 1_000
MAX_PARTITIONS: Final = 5_000
"""Partitions after which a message gets no further topic; about 300 KB."""
MAX_POLL_MS: Final = 60_000
ALIVE_S: Final = 10.0
"""Interval of the empty messages on a stream without events or changes."""
_MAX_CURSOR: Final = 100

Wanted = Callable[[StateChange], bool]


class WatchServicer(metadata_service_pb2_grpc.MetadataServiceServicer):
    """The watch and poll RPCs of MetadataService. Subclasses provide the metadata."""

    def __init__(self, hub: WatchHub) -> None:
        self._hub = hub

    @abstractmethod
    def _revisions(self) -> MetadataRevisions:
        """Return the revisions of the metadata; raise NotControllerError if this process cannot serve a watch."""

    @abstractmethod
    def _cluster(self) -> pb.DescribeClusterResponse:
        """Describe the live brokers and the active controller."""

    @abstractmethod
    def _topics(self, names: Sequence[str]) -> list[pb.TopicDescription]:
        """Describe topics in the order of ``names``, with an error for each topic that does not exist."""

    @abstractmethod
    def _check_active(self) -> None:
        """Raise NotControllerError unless this is the active controller."""

    async def WatchEvents(  # noqa: N802
        self, request: pb.WatchEventsRequest, context: Any
    ) -> AsyncGenerator[pb.WatchEventsResponse, None]:
        """Send events until the caller ends the stream."""
        self._hub.check_open()
        if request.active_controller_only:
            self._check_active()
        reader = EventReader(self._hub, request.cursor, _since_ms(request), event_filter_from_proto(request.filter))
        with self._hub.watcher():
            sent_s = 0.0  # send the first message at once, because the client needs its cursor
            while True:
                batch = reader.read(MAX_EVENTS)
                if batch.events or batch.HasField("gap") or time.monotonic() - sent_s >= ALIVE_S:
                    sent_s = time.monotonic()
                    yield pb.WatchEventsResponse(batch=batch)
                    continue
                self._hub.check_open()
                if request.active_controller_only:
                    self._check_active()
                await reader.wait_for_events(ALIVE_S)

    async def PollEvents(self, request: pb.PollEventsRequest, context: Any) -> pb.PollEventsResponse:  # noqa: N802
        """Respond with events as soon as there are any, or with an empty batch after the wait."""
        self._hub.check_open()
        if request.active_controller_only:
            self._check_active()
        deadline = _deadline(request.max_wait_ms, context)
        max_events = min(at_least(request.max_events, 0, "max_events") or MAX_EVENTS, MAX_EVENTS)
        reader = EventReader(self._hub, request.cursor, _since_ms(request), event_filter_from_proto(request.filter))
        with self._hub.watcher():
            while True:
                batch = reader.read(max_events)
                left_s = deadline - time.monotonic()
                if batch.events or batch.HasField("gap") or (left_s <= 0 and reader.at_end):
                    return pb.PollEventsResponse(batch=batch)
                self._hub.check_open()
                if request.active_controller_only:
                    self._check_active()
                await reader.wait_for_events(max(left_s, 0))

    async def WatchMetadata(  # noqa: N802
        self, request: pb.WatchMetadataRequest, context: Any
    ) -> AsyncGenerator[pb.WatchMetadataResponse, None]:
        """Send the metadata since the cursor, then its changes, until the caller ends the stream."""
        topics = _topic_filter(request.topics)
        cursor = request.cursor
        with self._hub.watcher():
            sent_s = 0.0
            while True:
                self._hub.check_open()
                changes = self._changes(cursor, topics)
                cursor = changes.cursor
                if _has_changes(changes) or time.monotonic() - sent_s >= ALIVE_S:
                    sent_s = time.monotonic()
                    yield pb.WatchMetadataResponse(changes=changes)
                elif not changes.more:
                    await self._hub.wait_for_wake(ALIVE_S)

    async def PollMetadata(  # noqa: N802
        self, request: pb.PollMetadataRequest, context: Any
    ) -> pb.PollMetadataResponse:
        """Respond with changes as soon as there are any, or with no changes after the wait."""
        topics = _topic_filter(request.topics)
        cursor = request.cursor
        deadline = _deadline(request.max_wait_ms, context)
        with self._hub.watcher():
            while True:
                self._hub.check_open()
                changes = self._changes(cursor, topics)
                cursor = changes.cursor
                left_s = deadline - time.monotonic()
                if _has_changes(changes) or (left_s <= 0 and not changes.more):
                    return pb.PollMetadataResponse(changes=changes)
                if not changes.more:
                    await self._hub.wait_for_wake(max(left_s, 0))

    def _changes(self, cursor: str, wanted: frozenset[str]) -> pb.MetadataChanges:
        revisions = self._revisions()
        found = revisions.since(self._position_of(cursor, revisions), MAX_TOPICS)
        changes = pb.MetadataChanges(snapshot=found.is_snapshot)
        reached, more, partitions = found.position.revision, found.more, 0
        last = reached
        for name, revision in found.entries:
            if name == CLUSTER:
                changes.cluster.CopyFrom(self._cluster())
            elif not wanted or name in wanted:
                if partitions >= MAX_PARTITIONS:
                    reached, more = last, True
                    break
                (topic,) = self._topics([name])
                if topic.HasField("error"):
                    changes.removed_topics.append(name)
                else:
                    changes.topics.append(topic)
                    partitions += len(topic.partitions)
            last = revision
        changes.cursor = f"m.{self._hub.instance}.{revisions.generation}.{reached}.{found.position.began}"
        changes.more = more
        return changes

    def _position_of(self, cursor: str, revisions: MetadataRevisions) -> MetadataPosition | None:
        """Return the position in a cursor, None when the client needs a full snapshot."""
        if not cursor:
            return None
        _, instance, *numbers = _parts_of(cursor, "m", 5)
        generation, revision, began = map(_number, numbers)
        if instance != self._hub.instance or generation != revisions.generation:
            return None
        return MetadataPosition(revision, began)


class EventReader:
    """Reads the events of a process for one watcher."""

    def __init__(self, hub: WatchHub, cursor: str, since_ms: int | None, wanted: Wanted | None) -> None:
        """Start at the cursor if there is one, else at ``since_ms``, else at the next event.

        Raises:
            InvalidRequestError: the cursor cannot be parsed.
        """
        self._hub = hub
        self._wanted = wanted
        self._gap: pb.EventGap | None = None
        ring = hub.ring
        if not cursor:
            self._position = ring.end if since_ms is None else ring.position_since(since_ms)
            return
        _, instance, position = _parts_of(cursor, "e", 3)
        if instance == hub.instance:
            self._position = _number(position)
        else:
            self._gap = pb.EventGap(reason=pb.EVENT_GAP_REASON_OTHER_PROCESS)
            self._position = ring.begin if since_ms is None else ring.position_since(since_ms)

    @property
    def at_end(self) -> bool:
        """Whether the reader has read every event in the ring."""
        return self._position >= self._hub.ring.end

    def read(self, max_events: int) -> pb.EventBatch:
        """Return the next events that pass the filter, possibly none, and the cursor after them."""
        shows_epochs = current_caller().is_super
        found = self._hub.ring.read(self._position, max_events, self._wanted)
        self._position = found.next_position
        gap, self._gap = self._gap, None
        if found.lost_count and gap is None:
            gap = pb.EventGap(reason=pb.EVENT_GAP_REASON_LAGGED, lost_events=found.lost_count)
        shown = found.events if shows_epochs else [without_broker_epoch(change) for change in found.events]
        return pb.EventBatch(
            events=[event_to_proto(change) for change in shown],
            cursor=f"e.{self._hub.instance}.{self._position}",
            gap=gap,
        )

    async def wait_for_events(self, timeout_s: float) -> None:
        """Wait for unread events, at most for ``timeout_s``."""
        if self.at_end:
            await self._hub.wait_for_wake(timeout_s)
        else:
            await asyncio.sleep(0)  # let other coroutines run between two reads that found no event for the filter


def _since_ms(request: Any) -> int | None:
    return request.since_ms if request.HasField("since_ms") else None


def _deadline(max_wait_ms: int, context: Any) -> float:
    wait_ms = wait_within_deadline(min(at_least(max_wait_ms, 0, "max_wait_ms"), MAX_POLL_MS), context)
    return time.monotonic() + wait_ms / 1000


def _topic_filter(names: Sequence[str]) -> frozenset[str]:
    return frozenset(bounded(names, MAX_CLIENT_PARTITIONS, "topics"))


def _has_changes(changes: pb.MetadataChanges) -> bool:
    return bool(changes.snapshot or changes.HasField("cluster") or changes.topics or changes.removed_topics)


def _parts_of(cursor: str, kind: str, count: int) -> list[str]:
    parts = cursor[: _MAX_CURSOR + 1].split(".")
    if len(cursor) > _MAX_CURSOR or len(parts) != count or parts[0] != kind:
        raise InvalidRequestError("the cursor does not come from a response of this RPC")
    return parts


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise InvalidRequestError("the cursor does not come from a response of this RPC")
    return int(text)
