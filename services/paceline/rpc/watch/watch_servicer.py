"""WatchEvents and DescribeNode, the same on brokers and controllers."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from paceline.model.acls import Operation, ResourceType
from paceline.model.errors import InvalidRequestError, ShuttingDownError
from paceline.model.node_description import NodeDescription
from paceline.model.state_change import StateChange
from paceline.rpc.convert.events import (
    event_filter_from_proto,
    event_to_proto,
    named_partitions,
    without_broker_epoch,
)
from paceline.rpc.convert.nodes import node_to_proto
from paceline.rpc.security.authorizer import Call, current_call
from paceline.rpc.security.guard import current_caller
from paceline.rpc.security.rpc_needs import Need
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.v1 import metadata_service_pb2 as pb
from paceline.v1 import metadata_service_pb2_grpc

MAX_EVENTS: Final = 500
ALIVE_S: Final = 10.0
"""Interval of the empty messages on a stream without events."""
RULES_S: Final = 2.0
"""Interval at which a stream without events checks that its caller may still watch."""
_MAX_CURSOR: Final = 100
_DESCRIBE_CLUSTER: Final = Need(Operation.DESCRIBE, ResourceType.CLUSTER)
_DESCRIBE_TOPIC: Final = Need(Operation.DESCRIBE, ResourceType.TOPIC)

Wanted = Callable[[StateChange], bool]


class WatchServicer(metadata_service_pb2_grpc.MetadataServiceServicer):
    """The RPCs WatchEvents and DescribeNode of MetadataService. Subclasses serve the other RPCs."""

    def __init__(self, hub: WatchHub, describe_node: Callable[[], NodeDescription] | None = None) -> None:
        self._hub = hub
        self._describe_node = describe_node

    @abstractmethod
    def _check_active(self) -> None:
        """Raise NotControllerError unless this is the active controller."""

    def _shown(self, cluster: pb.DescribeClusterResponse) -> pb.DescribeClusterResponse:
        """Return what the caller may see of the description of the cluster: any client needs the addresses in it."""
        if not current_call().allows(_DESCRIBE_CLUSTER, cluster):
            for detail in ("controller_silent_ms", "zookeeper_connected", "server_version"):
                cluster.ClearField(detail)
        return cluster

    async def DescribeNode(  # noqa: N802
        self, request: pb.DescribeNodeRequest, context: Any
    ) -> pb.DescribeNodeResponse:
        """Describe this process, from memory."""
        if self._describe_node is None:
            raise ShuttingDownError("this process cannot describe itself")
        return node_to_proto(self._describe_node())

    async def WatchEvents(  # noqa: N802
        self, request: pb.WatchEventsRequest, context: Any
    ) -> AsyncGenerator[pb.WatchEventsResponse, None]:
        """Send events until the caller ends the stream."""
        self._hub.check_open()
        if request.active_controller_only:
            self._check_active()
        call = current_call()
        wanted = _shown_to(call, event_filter_from_proto(request.filter))
        reader = EventReader(self._hub, request.cursor, _since_ms(request), wanted)
        with self._hub.watcher(() if request.past_only else named_partitions(request.filter)):
            sent_s = 0.0  # send the first message at once, because the client needs its cursor
            while True:
                withdrawn = call.withdrawn()
                if withdrawn is not None:
                    raise withdrawn
                batch = reader.read(MAX_EVENTS)
                if batch.events or batch.HasField("gap") or time.monotonic() - sent_s >= ALIVE_S:
                    sent_s = time.monotonic()
                    yield pb.WatchEventsResponse(batch=batch)
                    continue
                if request.past_only and reader.at_end:
                    return
                self._hub.check_open()
                if request.active_controller_only:
                    self._check_active()
                await reader.wait_for_events(RULES_S)


def _shown_to(call: Call, wanted: Wanted | None) -> Wanted | None:
    """Return a filter without the events about topics that the caller may not describe."""
    if call.exempt is not None:
        return wanted

    def shown(change: StateChange) -> bool:
        topic = change.topic_partition.topic if change.topic_partition is not None else change.topic
        return (wanted is None or wanted(change)) and (not topic or call.allows(_DESCRIBE_TOPIC, topic))

    return shown


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
        instance, position = _read_cursor(cursor)
        if instance == hub.instance:
            self._position = position
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


def _read_cursor(cursor: str) -> tuple[str, int]:
    """Return the process and the position in a cursor."""
    parts = cursor[: _MAX_CURSOR + 1].split(".")
    if len(cursor) <= _MAX_CURSOR and len(parts) == 3 and parts[0] == "e":
        _, instance, position = parts
        if position.isascii() and position.isdecimal():
            return instance, int(position)
    raise InvalidRequestError("the cursor does not come from a response of this RPC")
