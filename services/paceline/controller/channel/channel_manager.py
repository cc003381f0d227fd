"""Send control requests: one queue per broker, one request in flight, retried until it is answered.

Delivery is at least once and in order while the broker stays registered. Requests are never reordered, merged or
dropped; an error code in an answer is final. When a broker is removed, its queue is dropped.

Source: docs/protocol/controller.md#control-channel; Kafka 2.8 ControllerChannelManager and RequestSendThread.
"""

import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from paceline.controller.interfaces import ControlTransport
from paceline.model.backoff import Retries
from paceline.model.control import (
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    LiveBroker,
    StopReplicaRequest,
)
from paceline.model.errors import NOT_REGISTERED, PacelineError
from paceline.model.node_description import NodePeer
from paceline.model.scheduler import Cancellable, Scheduler
from paceline.model.settings import ControllerConfig

LOG = logging.getLogger(__name__)

OnResponse = Callable[[int, ControlRequest, ControlResponse], None]
"""Callback with broker id, request and answer."""
OnNotRegistered = Callable[[int, int, bool], None]
"""Callback when the process at the broker's address answers that it is not registered, with broker id, broker epoch,
and whether the registered process has answered before."""


class BrokerChannel:
    """The queue for one broker epoch of a broker."""

    def __init__(
        self,
        broker: LiveBroker,
        config: ControllerConfig,
        scheduler: Scheduler,
        transport: ControlTransport,
        on_response: OnResponse,
        on_not_registered: OnNotRegistered,
        rng: random.Random,
    ) -> None:
        self._on_not_registered = on_not_registered
        self._has_answered = False
        self._broker = broker
        self._retries = Retries(scheduler, rng)
        self._timeout_ms = min(config.controller_socket_timeout_ms, config.request_timeout_ms)
        self._scheduler = scheduler
        self._transport = transport
        self._on_response = on_response
        self._queue: deque[tuple[ControlRequest, int]] = deque()
        self.sent_count = 0
        """Number of requests sent, without retries."""
        self.queued_ms = 0
        """Total waiting time of these requests."""
        self._in_flight: ControlRequest | None = None
        self._in_flight_since_ms = 0
        self._retry: Cancellable | None = None
        self._closed = False
        self.error = ""
        """Error of the latest attempt at the request in flight, empty before the first failure."""

    @property
    def queue_size(self) -> int:
        """Number of unanswered requests."""
        return len(self._queue) + (self._in_flight is not None)

    @property
    def unanswered_ms(self) -> int:
        """Age of the oldest unanswered request that may end a leadership, 0 without one; metadata ends none."""
        waiting = ((self._in_flight, self._in_flight_since_ms), *self._queue)
        since = (ms for request, ms in waiting if isinstance(request, (LeaderAndIsrRequest, StopReplicaRequest)))
        now_ms = self._scheduler.now_ms()
        return now_ms - next(since, now_ms)

    @property
    def peer(self) -> NodePeer:
        """The broker's CONTROL address, and how long the request in flight has had no answer."""
        endpoint = self._broker.endpoint("CONTROL")
        waiting_ms = 0 if self._in_flight is None else self._scheduler.now_ms() - self._in_flight_since_ms
        address = "" if endpoint is None else endpoint.address
        return NodePeer("broker", self._broker.broker_id, address, waiting_ms, error=self.error)

    def update_address(self, broker: LiveBroker) -> None:
        """Use new endpoints from the next send on; the registration and its broker epoch are unchanged."""
        self._broker = broker

    def enqueue(self, request: ControlRequest) -> None:
        """Append a request to the queue."""
        self._queue.append((request, self._scheduler.now_ms()))
        if self._in_flight is None:
            self._send_next()

    def close(self) -> None:
        """Drop the queue; no callback is made afterwards."""
        self._closed = True
        self._queue.clear()
        self._in_flight = None
        if self._retry is not None:
            self._retry.cancel()
        self._transport.close(self._broker.broker_id)

    def _send_next(self) -> None:
        if self._closed or not self._queue:
            return
        self._in_flight, self._in_flight_since_ms = self._queue.popleft()
        self.sent_count += 1
        self.queued_ms += self._scheduler.now_ms() - self._in_flight_since_ms
        self._send()

    def _send(self) -> None:
        request = self._in_flight
        if self._closed or request is None:
            return
        self._retry = None
        stamped = replace(request, stamp=replace(request.stamp, broker_epoch=self._broker.broker_epoch))
        self._transport.send(self._broker, stamped, self._timeout_ms, self._answer_to(stamped))

    def _answer_to(self, request: ControlRequest) -> Callable[[ControlResponse | Exception], None]:
        answered = False

        def on_done(answer: ControlResponse | Exception) -> None:
            nonlocal answered
            if answered or self._closed:
                return
            answered = True
            if isinstance(answer, Exception):
                self._warn(request, answer)
                if isinstance(answer, PacelineError) and NOT_REGISTERED.items() <= answer.metadata.items():
                    self._on_not_registered(self._broker.broker_id, self._broker.broker_epoch, self._has_answered)
                self._retry = self._retries.schedule(self._send)
                return
            self._in_flight, self.error = None, ""
            self._has_answered = True
            self._retries.reset()
            self._on_response(self._broker.broker_id, request, answer)
            self._send_next()

        return on_done

    def _warn(self, request: ControlRequest, failure: Exception) -> None:
        """Log once per request that it is not answered, because all later requests wait for it."""
        if not self.error:
            kind = type(request).__name__.removesuffix("Request")
            LOG.warning(
                "control request is retried: request=%s broker=%d waiting=%d error=%s",
                kind, self._broker.broker_id, self.queue_size, failure,
            )  # fmt: skip
        self.error = str(failure) or type(failure).__name__


@dataclass(slots=True, eq=False)
class ChannelManager:
    """The channels of all registered brokers."""

    _config: ControllerConfig
    _scheduler: Scheduler
    _transport: ControlTransport
    _on_response: OnResponse
    _on_not_registered: OnNotRegistered
    _rng: random.Random
    _channels: dict[int, BrokerChannel] = field(default_factory=dict, init=False)

    @property
    def broker_ids(self) -> list[int]:
        """Broker ids with a channel, sorted."""
        return sorted(self._channels)

    @property
    def total_queue_size(self) -> int:
        """Number of unanswered requests of all brokers."""
        return sum(channel.queue_size for channel in self._channels.values())

    def unanswered_ms(self, broker_id: int) -> int:
        """Age of a broker's oldest unanswered request that may end a leadership, 0 without one."""
        channel = self._channels.get(broker_id)
        return 0 if channel is None else channel.unanswered_ms

    def traffic(self) -> list[tuple[int, int, int, int]]:
        """Return (broker id, unanswered requests, sent requests, their total waiting time in ms) by broker."""
        return [
            (broker_id, channel.queue_size, channel.sent_count, channel.queued_ms)
            for broker_id, channel in sorted(self._channels.items())
        ]

    def peers(self) -> tuple[NodePeer, ...]:
        """Return the brokers that this controller calls, by id."""
        return tuple(channel.peer for _, channel in sorted(self._channels.items()))

    def add_broker(self, broker: LiveBroker) -> None:
        """Open a channel; a broker that already has a channel keeps it."""
        if broker.broker_id not in self._channels:
            self._channels[broker.broker_id] = BrokerChannel(
                broker,
                self._config,
                self._scheduler,
                self._transport,
                self._on_response,
                self._on_not_registered,
                self._rng,
            )

    def update_broker(self, broker: LiveBroker) -> None:
        """Use a broker's new endpoints."""
        channel = self._channels.get(broker.broker_id)
        if channel is not None:
            channel.update_address(broker)

    def remove_broker(self, broker_id: int) -> None:
        """Close a channel and drop its queue; nothing is sent to the broker afterwards."""
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel.close()

    def send(self, broker_id: int, request: ControlRequest) -> None:
        """Queue a request; drops it for a broker without a channel, because a starting broker gets the full state."""
        channel = self._channels.get(broker_id)
        if channel is not None:
            channel.enqueue(request)

    def close(self) -> None:
        """Close every channel: the controller resigned."""
        for broker_id in self.broker_ids:
            self.remove_broker(broker_id)
