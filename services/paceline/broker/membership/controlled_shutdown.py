"""Controlled shutdown: ask the controller to move leadership away before stopping.

Source: docs/protocol/controller.md#controlled-shutdown; Kafka 2.8 KafkaServer.controlledShutdown, KIP-380.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.broker.interfaces import BrokerTransport
from paceline.broker.membership.contact import ClusterContact
from paceline.coordination import znodes
from paceline.coordination.flow import Flow, FlowRun, Zk
from paceline.coordination.interface import GetData, ZkCode, ZooKeeper
from paceline.coordination.recipes import expect
from paceline.model.control import ControlledShutdownRequest, ControlledShutdownResponse, Endpoint, control_endpoint
from paceline.model.errors import ErrorCode
from paceline.model.scheduler import Cancellable, Scheduler
from paceline.model.settings import BrokerConfig


@dataclass(frozen=True, slots=True)
class FoundController:
    """The active controller according to ZooKeeper."""

    is_named: bool
    """Whether there is an active controller."""
    endpoint: Endpoint | None = None
    """CONTROL address of the active controller, None when it has not published this address."""


def find_controller() -> Flow[FoundController]:
    """Return the active controller according to ZooKeeper."""
    (active,) = yield Zk([GetData(znodes.CONTROLLER)])
    expect(active, znodes.CONTROLLER, ZkCode.NO_NODE)
    if active.stat is None:
        return FoundController(is_named=False)
    controller_id = znodes.decode_active_controller(znodes.CONTROLLER, active.data).controller_id
    path = znodes.controller_path(controller_id)
    (registration,) = yield Zk([GetData(path)])
    expect(registration, path, ZkCode.NO_NODE)
    if registration.stat is None:
        return FoundController(is_named=True)
    endpoints = znodes.decode_controller_registration(path, registration.data, controller_id).endpoints
    return FoundController(is_named=True, endpoint=control_endpoint(endpoints))


@dataclass(slots=True, eq=False)
class ControlledShutdown:
    """Makes up to ``controlled.shutdown.max.retries`` attempts, then gives up.

    Each attempt looks up the controller again. A look-up takes at most as long as the pause between attempts, so
    that a stop ends even without ZooKeeper (KAFKA-9189). All attempts together take at most three quarters of
    ``shutdown.timeout.ms``: a controller that does not answer must leave time to close the logs.
    """

    _config: BrokerConfig
    _scheduler: Scheduler
    _zookeeper: ZooKeeper
    _transport: BrokerTransport
    _contact: ClusterContact
    _on_done: Callable[[bool], None]
    _attempt: int = field(default=0, init=False)
    _timer: Cancellable | None = field(default=None, init=False)
    _deadline: Cancellable | None = field(default=None, init=False)
    _search: FlowRun[FoundController] | None = field(default=None, init=False)
    _over: bool = field(default=False, init=False)

    def start(self) -> None:
        """Make the first attempt; ``on_done`` is called once, with True if all leaders were moved."""
        if self._config.controlled_shutdown_max_retries < 1:
            self._end(False)
            return
        limit_ms = self._config.shutdown_timeout_ms * 3 // 4
        self._deadline = self._scheduler.call_later(limit_ms, lambda: self._end(False))
        self._next_attempt()

    def _next_attempt(self) -> None:
        self._attempt += 1
        attempt = self._attempt
        self._timer = self._scheduler.call_later(
            self._config.controlled_shutdown_retry_backoff_ms, lambda: self._give_up_search(attempt)
        )
        self._search = FlowRun(
            find_controller(),
            self._zookeeper,
            self._scheduler,
            lambda found: self._found(attempt, found.endpoint),
            lambda _error: self._found(attempt, None),
        ).start()

    def _give_up_search(self, attempt: int) -> None:
        if self._is_current(attempt):
            if self._search is not None:
                self._search.cancel()
            self._failed(attempt, waited=True)

    def _found(self, attempt: int, endpoint: Endpoint | None) -> None:
        if not self._is_current(attempt):
            return
        if self._timer is not None:
            self._timer.cancel()
        if endpoint is None:
            self._failed(attempt)
            return
        self._transport.controlled_shutdown(
            endpoint,
            ControlledShutdownRequest(self._config.broker_id, self._contact.broker_epoch),
            self._config.request_timeout_ms,
            lambda answer: self._answered(attempt, answer),
        )

    def _answered(self, attempt: int, answer: ControlledShutdownResponse | Exception) -> None:
        if not self._is_current(attempt):
            return
        if isinstance(answer, Exception) or answer.error is not ErrorCode.NONE or answer.remaining:
            self._failed(attempt)
        else:
            self._end(True)

    def _failed(self, attempt: int, waited: bool = False) -> None:
        delay_ms = 0 if waited else self._config.controlled_shutdown_retry_backoff_ms
        if attempt < self._config.controlled_shutdown_max_retries:
            # Use another number, so that late answers of the failed attempt are ignored; `_retry` restores the count.
            self._attempt += 1
            self._timer = self._scheduler.call_later(delay_ms, self._retry)
        else:
            self._timer = self._scheduler.call_later(delay_ms, lambda: self._end(False))

    def _retry(self) -> None:
        self._attempt -= 1
        self._next_attempt()

    def _is_current(self, attempt: int) -> bool:
        return not self._over and attempt == self._attempt

    def _end(self, clean: bool) -> None:
        if not self._over:
            self._over = True
            for pending in (self._timer, self._deadline, self._search):
                if pending is not None:
                    pending.cancel()
            self._on_done(clean)
