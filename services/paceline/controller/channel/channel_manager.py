"""Send control requests: one queue per broker, one request in flight, repeated until it is answered.

Delivery is at least once and in order while the broker stays registered. No request is reordered, merged or given
up; an error code in an answer is final. Removing the broker drops its queue.

Source: docs/protocol/controller.md#control-channel; Kafka 2.8 ControllerChannelManager and RequestSendThread.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from paceline.controller.interfaces import ControlTransport
from paceline.model.control import ControlRequest, ControlResponse, LiveBroker
from paceline.model.errors import NOT_REGISTERED, PacelineError
from paceline.model.scheduler import Cancellable, Scheduler
from paceline.model.settings import ControllerConfig

LOG = logging.getLogger(__name__)

OnResponse = Callable[[int, ControlRequest, ControlResponse], None]
"""Called with broker id, request and answer."""
OnNotRegistered = Callable[[int, int, bool], None]
"""Called with broker id, broker epoch, and whether the registered process has answered before, when the process at the
broker's address says that it is not registered."""


class BrokerChannel:
    """The queue of one registration of one broker."""

    def __init__(
        self,
        broker: LiveBroker,
        config: ControllerConfig,
        scheduler: Scheduler,
        transport: ControlTransport,
        on_response: OnResponse,
        on_not_registered: OnNotRegistered,
    ) -> None:
        self._on_not_registered = on_not_registered
        self._has_answered = False
        self._broker = broker
        self._config = config
        self._scheduler = scheduler
        self._transport = transport
        self._on_response = on_response
        self._queue: deque[tuple[ControlRequest, int]] = deque()
        self.sent_count = 0
        """Requests sent, repetitions left out."""
        self.queued_ms = 0
        """How long they had waited, all together."""
        self._in_flight: ControlRequest | None = None
        self._retry: Cancellable | None = None
        self._closed = False
        self._failed = False
        """Whether the request in flight has failed before."""

    @property
    def queue_size(self) -> int:
        """Requests not answered yet."""
        return len(self._queue) + (self._in_flight is not None)

    def update_address(self, broker: LiveBroker) -> None:
        """Use new endpoints from the next send on; the registration, and so the broker epoch, stays the same."""
        self._broker = broker

    def enqueue(self, request: ControlRequest) -> None:
        """Send after everything queued before."""
        self._queue.append((request, self._scheduler.now_ms()))
        if self._in_flight is None:
            self._send_next()

    def close(self) -> None:
        """Drop the queue; nothing is called back afterwards."""
        self._closed = True
        self._queue.clear()
        self._in_flight = None
        if self._retry is not None:
            self._retry.cancel()
        self._transport.close(self._broker.broker_id)

    def _send_next(self) -> None:
        if self._closed or not self._queue:
            return
        self._in_flight, since_ms = self._queue.popleft()
        self.sent_count += 1
        self.queued_ms += self._scheduler.now_ms() - since_ms
        self._send()

    def _send(self) -> None:
        request = self._in_flight
        if self._closed or request is None:
            return
        self._retry = None
        stamped = replace(request, stamp=replace(request.stamp, broker_epoch=self._broker.broker_epoch))
        self._transport.send(self._broker, stamped, self._config.request_timeout_ms, self._answer_to(stamped))

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
                self._retry = self._scheduler.call_later(self._config.send_retry_backoff_ms, self._send)
                return
            self._in_flight, self._failed = None, False
            self._has_answered = True
            self._on_response(self._broker.broker_id, request, answer)
            self._send_next()

        return on_done

    def _warn(self, request: ControlRequest, failure: Exception) -> None:
        """Say once per request that it does not get through: everything behind it waits."""
        if not self._failed:
            kind = type(request).__name__.removesuffix("Request")
            LOG.warning(
                "%s to broker %d is sent again until it is answered, %d requests wait: %s",
                kind, self._broker.broker_id, self.queue_size, failure,
            )  # fmt: skip
        self._failed = True


class ChannelManager:
    """The channels of all registered brokers."""

    def __init__(
        self,
        config: ControllerConfig,
        scheduler: Scheduler,
        transport: ControlTransport,
        on_response: OnResponse,
        on_not_registered: OnNotRegistered = lambda *_: None,
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._transport = transport
        self._on_response = on_response
        self._on_not_registered = on_not_registered
        self._channels: dict[int, BrokerChannel] = {}

    @property
    def broker_ids(self) -> list[int]:
        """Brokers with a channel, by id."""
        return sorted(self._channels)

    @property
    def total_queue_size(self) -> int:
        """Requests not answered yet, over all brokers."""
        return sum(channel.queue_size for channel in self._channels.values())

    def queue_size(self, broker_id: int) -> int:
        """Requests one broker has not answered yet."""
        channel = self._channels.get(broker_id)
        return 0 if channel is None else channel.queue_size

    def traffic(self) -> list[tuple[int, int, int, int]]:
        """Return (broker id, requests not answered, requests sent, milliseconds they had waited) by broker."""
        return [
            (broker_id, channel.queue_size, channel.sent_count, channel.queued_ms)
            for broker_id, channel in sorted(self._channels.items())
        ]

    def add_broker(self, broker: LiveBroker) -> None:
        """Open a channel; a broker that has one already keeps it."""
        if broker.broker_id not in self._channels:
            self._channels[broker.broker_id] = BrokerChannel(
                broker, self._config, self._scheduler, self._transport, self._on_response, self._on_not_registered
            )

    def update_broker(self, broker: LiveBroker) -> None:
        """Use a broker's new endpoints."""
        channel = self._channels.get(broker.broker_id)
        if channel is not None:
            channel.update_address(broker)

    def remove_broker(self, broker_id: int) -> None:
        """Close a channel and drop its queue; no send happens after this."""
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel.close()

    def send(self, broker_id: int, request: ControlRequest) -> None:
        """Queue a request; one to a broker without a channel is dropped, a starting broker gets the full state."""
        channel = self._channels.get(broker_id)
        if channel is not None:
            channel.enqueue(request)

    def close(self) -> None:
        """Close every channel: the controller resigned."""
        for broker_id in self.broker_ids:
            self.remove_broker(broker_id)
