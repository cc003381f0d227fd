"""Watch events of a cluster live, following the controller from process to process."""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc

from paceline.model.addresses import address_of
from paceline.model.errors import BrokerNotAvailableError, NotControllerError, PacelineError, RequestTimedOutError
from paceline.model.state_change import StateChange, StateChangeKind
from paceline.rpc.convert.events import event_from_proto, event_kind_to_proto
from paceline.rpc.errors import is_retriable
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline.v1.cluster_event_pb2 import EventPartition
from paceline.v1.metadata_service_pb2 import (
    EVENT_GAP_REASON_OTHER_PROCESS,
    EventBatch,
    EventFilter,
    WatchEventsRequest,
)
from paceline.v1.metadata_service_pb2_grpc import MetadataServiceStub
from paceline_client.admin_connection import ONE_CALL_S, AdminConnection, describe_cluster_once, named
from paceline_client.errors import sendable
from paceline_client.stream_reader import StreamReader
from paceline_client.wait_notice import Wait, wait_notice

STREAM_S: Final = 30.0
"""Longest life of a stream, which is then re-opened at its cursor, so that a server that hangs is left in time."""
PATIENCE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class EventGap:
    """Events are missing, or may be missing."""

    lost_count: int | None
    """Number of dropped events; None when it is not known."""
    other_process: bool
    """Whether the watch continues at another process, which has its own events."""


@dataclass(frozen=True, slots=True)
class WatchedEvents:
    """Events in the order in which they happened at one process."""

    events: tuple[StateChange, ...]
    address: str
    """``host:port`` of that process."""
    gap: EventGap | None = None
    """Set when events before these are missing."""


class WatchAdmin(AdminConnection):
    """The part of `Admin` that watches. `watch_events` returns an endless iterator; `close` it, or the `Admin`."""

    def watch_events(
        self,
        *,
        since_ms: int | None = None,
        topics: Collection[str] = (),
        kinds: Collection[StateChangeKind] = (),
        partitions: Collection[tuple[str, int]] = (),
        broker_id: int | None = None,
        patience_ms: int = PATIENCE_MS,
    ) -> Iterator[WatchedEvents]:
        """Yield events live, either of the active controller, following failovers, or of one broker.

        The first item comes with the connection and may be empty; later items have events, or a gap.

        Args:
            since_ms: start with retained events of this time or later, milliseconds since the epoch; None starts with
                future events.
            topics: only events about these topics and ``partitions``; if both are empty, also events that are not about
                a topic.
            kinds: only events of these kinds; empty means all.
            partitions: pairs of topic and partition; with ``broker_id`` the broker also reports the controller's
                requests about them (`StateChangeKind.CONTROL_REQUEST`).
            broker_id: a broker to watch instead of the controller.
            patience_ms: give up when no process has answered for this long.

        Raises:
            BootstrapError, NotControllerError, BrokerNotAvailableError: no process answered for ``patience_ms``.
            PacelineError: the watch was refused.
        """
        with sendable():
            wanted = _filter(topics, kinds, partitions)
        began_ms = int(time.time() * 1000)
        cursor, last_ms, before = "", since_ms, ""

        def ask(stub: Any, timeout_s: float) -> Any:
            with sendable():
                request = WatchEventsRequest(
                    cursor=cursor, since_ms=last_ms, filter=wanted, active_controller_only=broker_id is None
                )
            return stub.WatchEvents(request, timeout=timeout_s)

        for address, message in self._messages(ask, broker_id, patience_ms):
            batch: EventBatch = message.batch
            cursor = batch.cursor
            events = tuple(event_from_proto(event) for event in batch.events)
            # After a failover, skip events of the new process from before the switch.
            last_ms = max([last_ms or began_ms, *(event.wall_ms for event in events)])
            gap = _gap(batch) if batch.HasField("gap") else None
            if events or gap or address != before:
                yield WatchedEvents(events, address, gap)
            before = address

    def past_events(
        self,
        *,
        since_ms: int = 0,
        topics: Collection[str] = (),
        kinds: Collection[StateChangeKind] = (),
        broker_id: int | None = None,
        address: str | None = None,
        timeout_ms: int = 2_000,
    ) -> list[StateChange]:
        """Return the events that the active controller, or a broker, still has; arguments as of `watch_events`.

        ``address`` names the process by its ``host:port`` instead.

        Raises:
            PacelineError: the process did not send all of them within ``timeout_ms``.
        """
        with sendable():
            request = WatchEventsRequest(filter=_filter(topics, kinds), since_ms=since_ms, past_only=True)
        with wait_notice("past events") as wait:
            address = address or self._watched(broker_id, timeout_ms / 1000, wait)
            try:
                messages = MetadataServiceStub(self._channel(address)).WatchEvents(request, timeout=timeout_ms / 1000)
                return [event_from_proto(event) for message in messages for event in message.batch.events]
            except grpc.RpcError as failure:
                raise named(address, failure) from failure

    def _messages(
        self, ask: Callable[[Any, float], Any], broker_id: int | None, patience_ms: int
    ) -> Iterator[tuple[str, Any]]:
        """Yield (address, message) from successive streams."""
        policy = RetryPolicy(deadline_ms=patience_ms)
        while True:
            address, stream, first = self._open(ask, broker_id, policy)
            try:
                yield address, first
                for message in stream:
                    yield address, message
            except grpc.RpcError as failure:
                self._left(address, failure)
            finally:
                stream.cancel()

    def _open(
        self, ask: Callable[[Any, float], Any], broker_id: int | None, policy: RetryPolicy
    ) -> tuple[str, StreamReader, Any]:
        watched = "the active controller" if broker_id is None else f"broker {broker_id}"
        with wait_notice(f"a stream of {watched}") as wait:
            return call_with_retry(
                policy,
                lambda left_s: self._opened(ask, broker_id, left_s, wait),
                should_retry=is_retriable,
                on_retry=wait.failed,
            )

    def _opened(
        self, ask: Callable[[Any, float], Any], broker_id: int | None, left_s: float | None, wait: Wait
    ) -> tuple[str, StreamReader, Any]:
        """Open a stream and wait for its first message, which servers send immediately."""
        wait_s = min(left_s or ONE_CALL_S, ONE_CALL_S)
        address = self._watched(broker_id, wait_s, wait)
        call = ask(MetadataServiceStub(self._channel(address)), STREAM_S)
        patience = threading.Timer(wait_s, call.cancel)
        patience.daemon = True
        patience.start()
        try:
            stream = StreamReader(call)
            return address, stream, next(stream)
        except StopIteration:
            raise BrokerNotAvailableError(f"{address} ended the watch") from None
        except grpc.RpcError as failure:
            if call.code() is grpc.StatusCode.CANCELLED:
                self._controller = ""
                raise BrokerNotAvailableError(f"{address} has not answered within {wait_s:.1f} s") from failure
            raise self._left(address, failure) from failure
        finally:
            patience.cancel()

    def _watched(self, broker_id: int | None, timeout_s: float, wait: Wait) -> str:
        if broker_id is None:
            return self._controller or self._find_controller(timeout_s, wait)
        answer = self._ask_each(
            describe_cluster_once,
            int(timeout_s * 1000),
            lambda found: any(broker.id == broker_id for broker in found.brokers),
            wait,
        )
        for broker in answer.brokers:
            if broker.id == broker_id:
                return address_of(broker.host, broker.port)
        raise BrokerNotAvailableError(f"broker {broker_id} is not alive")

    def _left(self, address: str, failure: grpc.RpcError) -> PacelineError:
        """Return why a stream ended; raise it when another stream would end with the same error."""
        error = named(address, failure)
        if isinstance(error, RequestTimedOutError):  # the stream reached its maximum life
            return error
        self._controller = error.metadata.get("address", "") if isinstance(error, NotControllerError) else ""
        if not error.retriable:
            raise error from failure
        return error


def _filter(
    topics: Collection[str], kinds: Collection[StateChangeKind], partitions: Collection[tuple[str, int]] = ()
) -> EventFilter:
    return EventFilter(
        topics=sorted(topics),
        kinds=[event_kind_to_proto(kind) for kind in kinds],
        partitions=[EventPartition(topic=topic, partition=index) for topic, index in partitions],
    )


def _gap(batch: EventBatch) -> EventGap:
    gap = batch.gap
    lost = gap.lost_events if gap.HasField("lost_events") else None
    return EventGap(lost, gap.reason == EVENT_GAP_REASON_OTHER_PROCESS)
