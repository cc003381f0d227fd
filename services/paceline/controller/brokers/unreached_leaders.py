"""Find brokers that most of their followers cannot fetch from, so that other in-sync replicas lead.

Source: docs/protocol/controller.md#unreached-leaders; docs/decisions/0019-unreached-leaders.md.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from paceline.controller.context import ControllerContext
from paceline.model.control import BrokerHeartbeatRequest

HOLD_MS: Final = 30_000
"""Time without reports after which a broker may be preferred again, so that no leader moves back and forth."""


def unreached_brokers(heartbeats: Iterable[BrokerHeartbeatRequest]) -> set[int]:
    """Return the brokers that more followers fail to reach than reach.

    A follower that reaches none of several leaders is probably cut off itself, so its report does not count.
    """
    failing, reaching = Counter[int](), Counter[int]()
    for heartbeat in heartbeats:
        if heartbeat.reached_leaders or len(heartbeat.unreachable_leaders) == 1:
            failing.update(heartbeat.unreachable_leaders)
            reaching.update(heartbeat.reached_leaders)
    return {broker_id for broker_id, count in failing.items() if count > reaching[broker_id]}


class UnreachedLeaders:
    """Keeps `ControllerContext.unreached` up to date, from the latest heartbeat of each live broker."""

    def __init__(self, context: ControllerContext, on_unreached: Callable[[int], None]) -> None:
        self._context = context
        self._on_unreached = on_unreached
        self._heartbeats: dict[int, BrokerHeartbeatRequest] = {}

    def heartbeat_received(self, heartbeat: BrokerHeartbeatRequest, now_ms: int) -> None:
        """Replace the broker's report; call ``on_unreached`` with each broker that becomes unreached."""
        self._heartbeats[heartbeat.broker_id] = heartbeat
        unreached, live = self._context.unreached, self._context.live_broker_ids()
        known = [self._heartbeats[broker_id] for broker_id in live if broker_id in self._heartbeats]
        # A new controller waits for the heartbeats of all live brokers: the first report may be that of the minority.
        for broker_id in unreached_brokers(known).intersection(live) if len(known) == len(live) else ():
            is_new, unreached[broker_id] = broker_id not in unreached, now_ms
            if is_new:
                self._on_unreached(broker_id)
        for broker_id in [one for one, reported_ms in unreached.items() if now_ms - reported_ms >= HOLD_MS]:
            del unreached[broker_id]

    def forget(self, broker_ids: Iterable[int]) -> None:
        """Remove brokers whose registration ended; the next registration may have another address."""
        for broker_id in broker_ids:
            self._heartbeats.pop(broker_id, None)
            self._context.unreached.pop(broker_id, None)
