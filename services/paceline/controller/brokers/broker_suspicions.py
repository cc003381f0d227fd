"""Suspect brokers whose process seems to be dead before their ZooKeeper session ends.

Evidence, never silence. A closed control connection whose address then refuses two connects is enough; so is an
answer that the process at the address is not registered. Connects that time out, or that are refused before this
controller was ever connected, count only together with a follower whose fetch connection to the broker broke. A paused
process or a cut link gives no such evidence; lease and session decide those.

A suspicion is as harmless as a lost lease: leaders move to in-sync replicas, the new leader epoch fences the old leader
at its followers, and the next heartbeat of the broker ends it.

Source: docs/decisions/0017-suspicion.md.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from enum import Enum

from paceline.controller.brokers.broker_leases import BrokerLeases
from paceline.controller.context import ControllerContext
from paceline.model.scheduler import Scheduler

LOG = logging.getLogger(__name__)

FIRST_DAMPING_MS = 30_000
LAST_DAMPING_MS = 480_000
"""After a false suspicion of a broker the next one is ignored for so long; doubled with each further one."""


class Evidence(Enum):
    """Signs that a broker's process is dead; the values are the words in logs and events."""

    REFUSED = "its control connection closed and two connects were refused"
    NOT_REGISTERED = "another process answers at its address, which is not registered"
    UNREACHABLE = "connects to it time out or find no route"
    REFUSED_UNCONNECTED = "two connects were refused"
    NOT_REGISTERED_UNCONNECTED = "the process at its address is not registered"

    @property
    def is_conclusive(self) -> bool:
        """Whether it counts without the report of a follower."""
        return self in (Evidence.REFUSED, Evidence.NOT_REGISTERED)


class BrokerSuspicions:
    """The suspected brokers of one controller, and the limits that keep wrong evidence cheap."""

    def __init__(self, enabled: bool, context: ControllerContext, leases: BrokerLeases, scheduler: Scheduler) -> None:
        self._enabled = enabled
        self._context = context
        self._leases = leases
        self._scheduler = scheduler
        self._suspected: dict[int, str] = {}
        """Evidence by suspected broker."""
        self._weak: dict[int, Evidence] = {}
        """Evidence that waits for the report of a follower."""
        self._broken_fetches: dict[int, frozenset[int]] = {}
        """By follower: leaders to which its fetch connection is broken, as its last heartbeat said."""
        self._damped_until_ms: dict[int, int] = {}
        self._damping_ms: dict[int, int] = {}

    def is_suspected(self, broker_id: int) -> bool:
        """Whether the broker lost its lease through a suspicion."""
        return broker_id in self._suspected

    def evidence_against(self, broker_id: int) -> str:
        """Return why the broker is suspected, empty when it is not."""
        return self._suspected.get(broker_id, "")

    def found(self, broker_id: int, broker_epoch: int, evidence: Evidence) -> None:
        """Take evidence about one registration; evidence about another one than the known one is ignored."""
        broker = self._context.brokers.get(broker_id)
        if not self._enabled or broker is None or broker.broker_epoch != broker_epoch:
            return
        if evidence.is_conclusive:
            self._suspect(broker_id, evidence.value, evidence is Evidence.NOT_REGISTERED)
        else:
            LOG.info("evidence waits for a follower: broker=%d evidence=%r", broker_id, evidence.value)
            self._weak[broker_id] = evidence
            self._combine(broker_id)

    def connected(self, broker_id: int) -> None:
        """Drop evidence that waits for a follower: the broker accepted a connection."""
        self._weak.pop(broker_id, None)

    def heartbeat_received(self, broker_id: int, broken_leaders: Collection[int] = ()) -> None:
        """End a suspicion that this heartbeat refutes, damp the next one, and note what the follower reports."""
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
        """Drop brokers whose registration ended: their suspicion was right."""
        for broker_id in broker_ids:
            self._suspected.pop(broker_id, None)
            self._weak.pop(broker_id, None)
            self._broken_fetches.pop(broker_id, None)

    def clear(self) -> None:
        """Drop everything: the controller resigned."""
        self._suspected.clear()
        self._weak.clear()
        self._broken_fetches.clear()
        self._damped_until_ms.clear()
        self._damping_ms.clear()

    def _combine(self, broker_id: int) -> None:
        """Suspect a broker when evidence of this controller and the report of a follower with a lease come together."""
        evidence = self._weak.get(broker_id)
        if evidence is None or not self._enabled:
            return
        for follower, leaders in sorted(self._broken_fetches.items()):
            if broker_id in leaders and follower != broker_id and not self._leases.has_expired(follower):
                text = f"{evidence.value}, and the fetch connection of broker {follower} to it broke"
                self._suspect(broker_id, text, False)
                return

    def _suspect(self, broker_id: int, evidence: str, is_certain: bool) -> None:
        """Suspect a broker, unless it stops anyway or wrong evidence is likely.

        Evidence about more brokers than max(1, a third of those registered) is ignored: a controller that finds most of
        its brokers dead is more likely to be cut off itself. It is not cut off from a process that answers.
        """
        if broker_id in self._context.retiring or broker_id in self._suspected:
            return
        now_ms = self._scheduler.now_ms()
        if not is_certain and now_ms < self._damped_until_ms.get(broker_id, now_ms):
            LOG.warning("suspicion of a broker ignored, the last one was false: broker=%d", broker_id)
            return
        limit = max(1, len(self._context.brokers) // 3)
        if not is_certain and len(self._suspected) >= limit:
            LOG.error(
                "suspicion of a broker ignored, too many brokers are suspected: broker=%d suspected=%s limit=%d",
                broker_id, sorted(self._suspected), limit,
            )  # fmt: skip
            return
        LOG.warning("broker suspected to be dead: broker=%d evidence=%r", broker_id, evidence)
        self._weak.pop(broker_id, None)
        self._suspected[broker_id] = evidence
        self._leases.expire(broker_id)


OnEvidence = Callable[[int, int, Evidence], None]
"""Receives broker id and broker epoch of the registration that the evidence is about."""
