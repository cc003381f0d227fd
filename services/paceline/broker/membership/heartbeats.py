"""Heartbeats to the active controller, three per lease (design 3.7).

They only keep the lease: a broker that reaches no controller goes on serving what it leads until it is told otherwise.
"""

from collections.abc import Callable

from paceline.broker.interfaces import BrokerTransport
from paceline.broker.membership.controlled_shutdown import CONTROL_LISTENER, find_controller
from paceline.coordination.flow import FlowRun
from paceline.coordination.interface import ZooKeeper
from paceline.model.control import BrokerHeartbeatRequest, BrokerHeartbeatResponse, Endpoint
from paceline.model.errors import ErrorCode
from paceline.model.scheduler import Cancellable, Scheduler
from paceline.model.settings import BrokerConfig

Endpoints = Callable[[], tuple[Endpoint, ...]]


class ControllerHeartbeats:
    """One heartbeat per third of a lease, to the controller the metadata name, else to the one in ZooKeeper.

    After a failure the next one asks ZooKeeper; after a search that ZooKeeper did not answer the next one trusts the
    metadata again.
    """

    def __init__(
        self,
        config: BrokerConfig,
        scheduler: Scheduler,
        zookeeper: ZooKeeper,
        transport: BrokerTransport,
        broker_epoch: Callable[[], int],
        controller_endpoints: Endpoints,
        highest_controller_epoch: Callable[[], int],
    ) -> None:
        """``broker_epoch`` is negative before the first registration; nothing is sent then."""
        self._broker_id = config.broker_id
        self._period_ms = max(config.controller_broker_lease_ms // 3, 1)
        self._enabled = config.controller_broker_lease_ms > 0
        self._scheduler = scheduler
        self._zookeeper = zookeeper
        self._transport = transport
        self._broker_epoch = broker_epoch
        self._controller_endpoints = controller_endpoints
        self._highest_controller_epoch = highest_controller_epoch
        self._search: FlowRun[Endpoint | None] | None = None
        self._ask_zookeeper = False
        self._attempt = 0
        self._timer: Cancellable | None = None

    def start(self) -> None:
        """Begin; a registration comes with a full lease, so the first beat has time."""
        if self._enabled:
            self._timer = self._scheduler.call_later(self._period_ms, self._beat)

    def stop(self) -> None:
        """Send nothing more."""
        self._attempt += 1
        for pending in (self._timer, self._search):
            if pending is not None:
                pending.cancel()
        self._timer = self._search = None

    def _beat(self) -> None:
        self._timer = self._scheduler.call_later(self._period_ms, self._beat)
        self._attempt += 1
        attempt = self._attempt
        if self._search is not None:
            self._search.cancel()
            self._search = None
            self._ask_zookeeper = False
        if self._broker_epoch() < 0:
            return
        known = next((one for one in self._controller_endpoints() if one.listener == CONTROL_LISTENER), None)
        if known is not None and not self._ask_zookeeper:
            self._send(attempt, known)
            return
        self._search = FlowRun(
            find_controller(),
            self._zookeeper,
            self._scheduler,
            lambda endpoint: self._found(attempt, endpoint),
            lambda _error: self._found(attempt, None),
        )
        self._search.start()

    def _found(self, attempt: int, endpoint: Endpoint | None) -> None:
        if attempt != self._attempt:
            return
        self._search = None
        if endpoint is not None:
            self._send(attempt, endpoint)

    def _send(self, attempt: int, controller: Endpoint) -> None:
        self._transport.broker_heartbeat(
            controller,
            BrokerHeartbeatRequest(self._broker_id, self._broker_epoch()),
            self._period_ms,
            lambda answer: self._answered(attempt, answer),
        )

    def _answered(self, attempt: int, answer: BrokerHeartbeatResponse | Exception) -> None:
        if attempt != self._attempt:
            # Too late to say anything about the present, except that this controller is slow or gone.
            return
        self._ask_zookeeper = (
            isinstance(answer, Exception)
            or answer.error not in (ErrorCode.NONE, ErrorCode.STALE_BROKER_EPOCH)
            or answer.controller_epoch < self._highest_controller_epoch()
        )
