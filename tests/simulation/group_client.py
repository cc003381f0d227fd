"""A client of a group coordinator: finds it, calls it, and looks for it again when it has moved."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.broker.groups.coordinator import GroupCoordinator
from paceline.model.errors import ErrorCode, PacelineError
from tests.simulation.clients import Client

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster

RETRY_MS = 100
CALL_TIMEOUT_MS = 1_500
MOVED = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}


class GroupClient(Client):
    """A client of one group."""

    def __init__(self, cluster: "SimulatedCluster", name: str, group_id: str) -> None:
        super().__init__(cluster, name)
        self.group_id = group_id
        self._coordinator: str | None = None

    def _ask(
        self,
        ask: Callable[[GroupCoordinator, Callable[[Any], None]], object],
        done: Callable[[Any], None],
        timeout_ms: int = CALL_TIMEOUT_MS,
        target: str | None = None,
    ) -> None:
        """Call the coordinator, or the broker ``target``; ``done`` gets the answer or the error."""
        name = target or self._coordinator
        if name is None:
            self._find_coordinator()
            self.scheduler.call_later(RETRY_MS, lambda: done(TimeoutError("the coordinator is not known")))
            return

        def handle(reply: Callable[[Any], None]) -> None:
            life = self.cluster.broker_named(name)
            if life is None:
                return
            try:
                ask(life.node.group_coordinator(), reply)
            except PacelineError as error:
                reply(error)

        def answered(answer: Any) -> None:
            is_failure = isinstance(answer, Exception)
            if is_failure and (not isinstance(answer, PacelineError) or answer.code in MOVED):
                self._coordinator = None
            done(answer)

        self.cluster.network.call(self.peer, name, handle, timeout_ms, answered)

    def _find_coordinator(self) -> None:
        name = f"broker-{self.chance.choice(self.cluster.profile.broker_ids)}"

        def found(answer: Any) -> None:
            if not isinstance(answer, Exception):
                self._coordinator = f"broker-{answer}"

        self._ask(lambda coordinator, reply: reply(coordinator.find_coordinator(self.group_id)), found, target=name)
