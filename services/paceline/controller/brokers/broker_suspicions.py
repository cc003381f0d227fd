"""Suspect brokers whose process seems to be dead before their ZooKeeper session ends.

Missing heartbeats alone are no evidence. After this controller was connected to the broker, either of these suffices:
the connection closed and two connects to the address were refused, or the process at the address answers that it is not
registered. The same evidence without an earlier connection, and connects that time out or find no route, count only
together with the report of a follower whose fetch connection to the broker broke. Paused processes and broken links are
left to the lease and the session.

A false suspicion has the effect of an expired lease: leaders move to in-sync replicas, the new leader epoch fences the
old leader at its followers, and the broker's next heartbeat ends the suspicion.

Source: docs/decisions/0017-suspicion.md.
"""

import logging
from collections.abc import Collection, Iterable
from enum import Enum

from paceline.controller.brokers.broker_leases import BrokerLeases
from paceline.controller.context import ControllerContext
from paceline.model.scheduler import Scheduler

LOG = logging.getLogger(__name__)

FIRST_DAMPING_MS = 30_000
LAST_DAMPING_MS = 480_000
"""First and longest time to ignore evidence after a false suspicion; it doubles with each further false suspicion."""


class Evidence(Enum):
    """Signs that a broker's process is dead; the values appear in logs and events."""

    REFUSED = "its control connection closed and two connects were refused"
    NOT_REGISTERED = "another process answers at its address, which is not registered"
    UNREACHABLE = "connects to it time out or find no route"
    REFUSED_UNCONNECTED = "two connects were refused"
    NOT_REGISTERED_UNCONNECTED = "the process at its address is not registered"

    @property
    def is_conclusive(self) -> bool:
        """Whether the evidence is sufficient without the report of a follower."""
        return self in (Evidence.REFUSED, Evidence.NOT_REGISTERED)


class BrokerSuspicions:
    """Suspects brokers on evidence; ignores evidence about too many brokers, and for a time after a false suspicion."""

    def __init__(self, enabled: bool, context: ControllerContext, leases: BrokerLeases, scheduler: Scheduler) -> None:
        self._enabled = enabled
        self._context = context
        self._leases = leases
        self._scheduler = scheduler
        self._suspected: dict[int, str] = {}
        """Evidence by suspected broker."""
        self._weak: dict[int, Evidence] = {}
        """Evidence that needs the report of a follower."""
        self._broken_fetches: dict[int, frozenset[int]] = {}
        """By follower: leaders to which its fetch connection is broken, according to its last heartbeat."""
        self._damped_until_ms: dict[int, int] = {}
        self._damping_ms: dict[int, int] = {}

    def is_suspected(self, broker_id: int) -> bool:
        """Whether a suspicion has ended the broker's lease."""
        return broker_id in self._suspected

    def evidence_against(self, broker_id: int) -> str:
        """Return the evidence for which the broker is suspected, empty when it is not suspected."""
        return self._suspected.get(broker_id, "")

    def found(self, broker_id: int, broker_epoch: int, evidence: Evidence) -> None:
        """Suspect a broker, or store evidence that needs a follower's report; ignore an outdated broker epoch."""
        broker = self._context.brokers.get(broker_id)
        if not self._enabled or broker is None or broker.broker_epoch != broker_epoch:
            return
        if evidence.is_conclusive:
            self._suspect(broker_id, evidence.value, evidence is Evidence.NOT_REGISTERED)
        else:
            LOG.info(
                "broker may be dead, waiting for the report of a follower: broker=%d evidence=%r",
                broker_id,
                evidence.value,
            )
            self._weak[broker_id] = evidence
            self._combine(broker_id)

    def not_registered(self, broker_id: int, broker_epoch: int, has_answered: bool) -> None:
        """Judge a broker whose address answers that it is not registered."""
        # Before its first answer this may be the registered process, which has not read its registration yet.
        evidence = Evidence.NOT_REGISTERED if has_answered else Evidence.NOT_REGISTERED_UNCONNECTED
        self.found(broker_id, broker_epoch, evidence)

    def connected(self, broker_id: int) -> None:
        """Discard evidence that needs a follower's report, because the broker accepted a connection."""
        self._weak.pop(broker_id, None)

    def heartbeat_received(self, broker_id: int, broken_leaders: Collection[int] = ()) -> None:
        """End a suspicion of this broker and ignore evidence for a time; store the leaders it cannot fetch from."""
        self._weak.pop(broker_id, None)
        if broker_id in self._suspected:
            del self._suspected[broker_id]
            damping_ms = self._damping_ms.get(broker_id, FIRST_DAMPING_MS)
            self._damping_ms[broker_id] = min(2 * damping_ms, LAST_DAMPING_MS)
            self._damped_until_ms[broker_id] = self._scheduler.now_ms() + damping_ms
            LOG.warning(
                "suspicion was false, the broker sent a heartbeat: broker=%d damped_ms=%d", broker_id, damping_ms
            )
        self._broken_fetches[broker_id] = frozenset(broken_leaders)
        for leader in broken_leaders:
            self._combine(leader)

    def forget(self, broker_ids: Iterable[int]) -> None:
        """Remove brokers whose registration ended; their suspicions were true, so later evidence is not ignored."""
        for broker_id in broker_ids:
            self._suspected.pop(broker_id, None)
            self._weak.pop(broker_id, None)
            self._broken_fetches.pop(broker_id, None)

    def clear(self) -> None:
        """Remove all suspicions and damping after the controller has resigned."""
        self._suspected.clear()
        self._weak.clear()
        self._broken_fetches.clear()
        self._damped_until_ms.clear()
        self._damping_ms.clear()

    def _combine(self, broker_id: int) -> None:
        """Suspect a broker if evidence is stored and a follower with a lease has reported a broken fetch connection."""
        evidence = self._weak.get(broker_id)
        if evidence is None or not self._enabled:
            return
        for follower, leaders in sorted(self._broken_fetches.items()):
            if broker_id in leaders and follower != broker_id and not self._leases.has_expired(follower):
                text = f"{evidence.value}, and the fetch connection of broker {follower} to it broke"
                self._suspect(broker_id, text, False)
                return

    def _suspect(self, broker_id: int, evidence: str, is_certain: bool) -> None:
        """Suspect a broker, unless it is shutting down or the evidence is probably wrong.

        At most max(1, a third of the registered brokers) are suspected at a time: a controller that cannot reach most
        brokers is probably cut off itself. ``is_certain`` means that a process at the address answered: neither this
        limit nor damping applies then.
        """
        if broker_id in self._context.retiring or broker_id in self._suspected:
            return
        now_ms = self._scheduler.now_ms()
        if not is_certain and now_ms < self._damped_until_ms.get(broker_id, now_ms):
            LOG.warning("ignoring suspicion, the previous suspicion of this broker was false: broker=%d", broker_id)
            return
        limit = max(1, len(self._context.brokers) // 3)
        if not is_certain and len(self._suspected) >= limit:
            LOG.error(
                "ignoring suspicion, too many brokers are suspected: broker=%d suspected=%s limit=%d",
                broker_id, sorted(self._suspected), limit,
            )  # fmt: skip
            return
        LOG.warning("broker suspected to be dead: broker=%d evidence=%r", broker_id, evidence)
        self._weak.pop(broker_id, None)
        self._suspected[broker_id] = evidence
        self._leases.expire(broker_id)
