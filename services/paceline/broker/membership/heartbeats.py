"""Heartbeats to the active controller, three per lease, and immediately when a connection breaks.

They renew the lease, end a false suspicion, and report leaders to which a fetch connection broke. A response is one of
the two proofs that this broker was not deposed (`replication.leadership_proof`).
"""

from collections.abc import Callable
from typing import Final

from paceline.broker.interfaces import BrokerTransport
from paceline.broker.membership.contact import ClusterContact
from paceline.broker.membership.controlled_shutdown import FoundController, find_controller
from paceline.broker.metadata_cache import MetadataCache
from paceline.coordination.flow import FlowRun
from paceline.coordination.interface import ZooKeeper
from paceline.model.control import BrokerHeartbeatRequest, BrokerHeartbeatResponse, Endpoint, control_endpoint
from paceline.model.errors import ErrorCode
from paceline.model.scheduler import Cancellable, Scheduler
from paceline.model.settings import BrokerConfig

REPORT_RETRY_MS: Final = 200
REPORT_RETRIES: Final = 25
"""Pause before a failed heartbeat is repeated while fetch connections are broken: the controller may be dead, too."""
_MAX_REPORTED: Final = 250
"""Most leaders in each list of a heartbeat, so that it is smaller than ``control.request.max.bytes``."""


class ControllerHeartbeats:
    """Sends three heartbeats per lease to the controller in the metadata, otherwise to the controller in ZooKeeper.

    After a failed heartbeat the next heartbeat reads the controller from ZooKeeper; after a read without response the
    next heartbeat uses the metadata again.
    """

    def __init__(
        self,
        config: BrokerConfig,
        scheduler: Scheduler,
        zookeeper: ZooKeeper,
        transport: BrokerTransport,
        contact: ClusterContact,
        metadata: MetadataCache,
        highest_controller_epoch: Callable[[], int],
        leader_reports: Callable[[], tuple[tuple[int, ...], ...]],
        is_stopping: Callable[[], bool],
    ) -> None:
        """Send no heartbeat before the first registration.

        ``contact`` receives the time until which this broker certainly has every request of the active controller:
        when it sent a heartbeat, or the oldest request that the answer calls unanswered; or when it looked up that
        ZooKeeper names no active controller.
        """
        self._broker_id = config.broker_id
        self._period_ms = max(config.controller_broker_lease_ms // 3, 1)
        self._enabled = config.controller_broker_lease_ms > 0
        self._scheduler = scheduler
        self._zookeeper = zookeeper
        self._transport = transport
        self._contact = contact
        self._metadata = metadata
        self._highest_controller_epoch = highest_controller_epoch
        self._leader_reports = leader_reports
        self._is_stopping = is_stopping
        self.answered_ms: int | None = None
        """When the active controller last answered; None before its first answer."""
        self.error = ""
        """Error of the latest heartbeat, empty after an answer of the active controller."""
        self._retries = 0
        self._search: FlowRun[FoundController] | None = None
        self._ask_zookeeper = False
        self._attempt = 0
        self._timer: Cancellable | None = None

    def start(self) -> None:
        """Start; a registration includes a full lease, so the first heartbeat is not urgent."""
        if self._enabled:
            self._timer = self._scheduler.call_later(self._period_ms, self._beat)

    def stop(self) -> None:
        """Stop sending heartbeats."""
        self._attempt += 1
        for pending in (self._timer, self._search):
            if pending is not None:
                pending.cancel()
        self._timer = self._search = None

    def beat_now(self) -> None:
        """Send a heartbeat immediately: a connection broke, or another controller became active."""
        if self._timer is not None:
            self._retries = 0
            self._timer.cancel()
            self._beat()

    def _beat(self) -> None:
        self._timer = self._scheduler.call_later(self._period_ms, self._beat)
        self._attempt += 1
        attempt = self._attempt
        if self._search is not None:
            self._search.cancel()
            self._search = None
            self._ask_zookeeper = False
        if self._contact.broker_epoch < 0:
            return
        known = control_endpoint(self._metadata.snapshot.controller_endpoints)
        if known is not None and not self._ask_zookeeper:
            self._send(attempt, known)
            return
        asked_ms = self._scheduler.now_ms()
        self._search = FlowRun(
            find_controller(),
            self._zookeeper,
            self._scheduler,
            lambda found: self._found(attempt, asked_ms, found),
            lambda _error: self._not_found(attempt),
        )
        self._search.start()

    def _found(self, attempt: int, asked_ms: int, found: FoundController) -> None:
        if attempt != self._attempt:
            return
        self._search = None
        if found.endpoint is not None:
            self._send(attempt, found.endpoint)
        elif not found.is_named:
            self._contact.proof.controller_answered(asked_ms, self._scheduler.now_ms())
            self._retry_report()

    def _not_found(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._search = None

    def _send(self, attempt: int, controller: Endpoint) -> None:
        asked_ms = self._scheduler.now_ms()
        broken, unreachable, reached = (report[:_MAX_REPORTED] for report in self._leader_reports())
        self._transport.broker_heartbeat(
            controller,
            BrokerHeartbeatRequest(
                self._broker_id, self._contact.broker_epoch, broken, unreachable, reached, self._is_stopping()
            ),
            self._period_ms,
            lambda answer: self._answered(attempt, asked_ms, answer),
        )

    def _answered(self, attempt: int, asked_ms: int, answer: BrokerHeartbeatResponse | Exception) -> None:
        is_overtaken = isinstance(answer, Exception) or answer.controller_epoch < self._highest_controller_epoch()
        self.error = str(answer) if isinstance(answer, Exception) else answer.error.name if answer.error else ""
        if not isinstance(answer, Exception) and answer.error is ErrorCode.NONE and not is_overtaken:
            self.answered_ms = self._scheduler.now_ms()
            # A request that has not arrived may name a successor.
            self._contact.proof.controller_answered(asked_ms - answer.unanswered_ms, self.answered_ms)
        if attempt != self._attempt:
            # Too late to prove the present state; the controller is slow or dead.
            return
        self._ask_zookeeper = (
            isinstance(answer, Exception)
            or answer.error not in (ErrorCode.NONE, ErrorCode.STALE_BROKER_EPOCH)
            or is_overtaken
        )
        if self._ask_zookeeper:
            self._retry_report()

    def _retry_report(self) -> None:
        """Repeat soon a report that a dead or unready controller has not received."""
        if self._timer is not None and self._leader_reports()[0] and self._retries < REPORT_RETRIES:
            self._retries += 1
            self._timer.cancel()
            self._timer = self._scheduler.call_later(min(REPORT_RETRY_MS, self._period_ms), self._beat)
