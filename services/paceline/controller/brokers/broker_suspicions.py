"""Brokers whose process is suspected to be dead before their ZooKeeper session ends.

Evidence, never silence: a control connection that was established has closed, and two connects to the same address, a
pause apart, were refused. The host answers and no process listens, so the process that was registered is dead. A
paused process or a cut link refuses nothing; those stay with lease and session.

A suspicion is as harmless as a lost lease: leaders move to in-sync replicas, the new leader epoch fences the old leader
at its followers, and the next heartbeat of the broker ends it.

Source: docs/decisions/0017-suspicion.md.
"""

import logging
from collections.abc import Callable, Iterable

from paceline.controller.brokers.broker_leases import BrokerLeases
from paceline.controller.context import ControllerContext
from paceline.model.scheduler import Scheduler

LOG = logging.getLogger(__name__)

FIRST_DAMPING_MS = 30_000
LAST_DAMPING_MS = 480_000
"""After a false suspicion of a broker the next one is ignored for so long; doubled with each further one."""
EVIDENCE = "its control connection closed and two connects were refused"


class BrokerSuspicions:
    """The suspected brokers of one controller, and the limits that keep wrong evidence cheap."""

    def __init__(self, enabled: bool, context: ControllerContext, leases: BrokerLeases, scheduler: Scheduler) -> None:
        self._enabled = enabled
        self._context = context
        self._leases = leases
        self._scheduler = scheduler
        self._suspected: set[int] = set()
        self._damped_until_ms: dict[int, int] = {}
        self._damping_ms: dict[int, int] = {}

    def is_suspected(self, broker_id: int) -> bool:
        """Whether the broker lost its lease through a suspicion."""
        return broker_id in self._suspected

    def connection_refused(self, broker_id: int, broker_epoch: int) -> bool:
        """Suspect a broker; return whether the evidence was accepted.

        Evidence about another registration than the known one is ignored. So is evidence about more brokers than
        max(1, a third of those registered): a controller that finds most of its brokers dead is more likely to be cut
        off itself.
        """
        broker = self._context.brokers.get(broker_id)
        if not self._enabled or broker is None or broker.broker_epoch != broker_epoch:
            return False
        if broker_id in self._context.retiring:
            return False
        now_ms = self._scheduler.now_ms()
        if now_ms < self._damped_until_ms.get(broker_id, now_ms):
            LOG.warning("suspicion of a broker ignored, the last one was false: broker=%d", broker_id)
            return False
        limit = max(1, len(self._context.brokers) // 3)
        if len(self._suspected) >= limit:
            LOG.error(
                "suspicion of a broker ignored, too many brokers are suspected: broker=%d suspected=%s limit=%d",
                broker_id, sorted(self._suspected), limit,
            )  # fmt: skip
            return False
        LOG.warning("broker suspected to be dead: broker=%d evidence=%r", broker_id, EVIDENCE)
        self._suspected.add(broker_id)
        self._leases.expire(broker_id)
        return True

    def heartbeat_received(self, broker_id: int) -> None:
        """End a suspicion that this heartbeat refutes, and damp the next one of the same broker."""
        if broker_id not in self._suspected:
            return
        self._suspected.discard(broker_id)
        damping_ms = self._damping_ms.get(broker_id, FIRST_DAMPING_MS)
        self._damping_ms[broker_id] = min(2 * damping_ms, LAST_DAMPING_MS)
        self._damped_until_ms[broker_id] = self._scheduler.now_ms() + damping_ms
        LOG.warning("suspicion was false, the broker sent a heartbeat: broker=%d damped_ms=%d", broker_id, damping_ms)

    def forget(self, broker_ids: Iterable[int]) -> None:
        """Drop brokers whose registration ended: their suspicion was right."""
        self._suspected.difference_update(broker_ids)

    def clear(self) -> None:
        """Drop everything: the controller resigned."""
        self._suspected.clear()
        self._damped_until_ms.clear()
        self._damping_ms.clear()


Refused = Callable[[int, int], None]
"""Receives broker id and broker epoch of the registration whose CONTROL address refused two connects."""
