"""Judge by heartbeats and evidence which registered brokers may lead."""

from collections.abc import Callable, Collection

from paceline.controller.brokers.broker_leases import BrokerLeases
from paceline.controller.brokers.broker_suspicions import BrokerSuspicions
from paceline.controller.brokers.unreached_leaders import UnreachedLeaders
from paceline.controller.context import ControllerContext
from paceline.model.control import BrokerHeartbeatRequest
from paceline.model.scheduler import Scheduler
from paceline.model.settings import ControllerConfig


class BrokerLiveness:
    """Leases and suspicions of registered brokers, and the leaders that their followers cannot reach."""

    def __init__(
        self,
        config: ControllerConfig,
        context: ControllerContext,
        scheduler: Scheduler,
        on_change: Callable[[int], None],
    ) -> None:
        """``on_change`` receives the id of a broker that must give up its leaders, or may lead again."""
        lease_ms = config.controller_broker_lease_ms
        # Without leases brokers send no heartbeats, and only a heartbeat disproves a suspicion.
        has_suspicions = config.broker_suspect_ms > 0 and lease_ms > 0
        self._scheduler = scheduler
        self.leases = BrokerLeases(lease_ms, scheduler, on_change)
        self.suspicions = BrokerSuspicions(has_suspicions, context, self.leases, scheduler)
        self.unreached = UnreachedLeaders(context, on_change)

    def heartbeat_received(self, request: BrokerHeartbeatRequest) -> None:
        """Renew the broker's lease, end a suspicion of it, and store which leaders it can reach."""
        self.suspicions.heartbeat_received(request.broker_id, request.broken_leaders)
        self.leases.renew(request.broker_id)
        self.unreached.heartbeat_received(request, self._scheduler.now_ms())

    def forget(self, broker_ids: Collection[int]) -> None:
        """Remove brokers whose registration ended."""
        self.leases.drop(broker_ids)
        self.suspicions.forget(broker_ids)
        self.unreached.forget(broker_ids)

    def clear(self, broker_ids: Collection[int]) -> None:
        """Forget all leases and suspicions, and the reports about ``broker_ids``: the controller resigned."""
        self.leases.clear()
        self.suspicions.clear()
        self.unreached.forget(broker_ids)
