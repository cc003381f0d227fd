"""A transport for controllers that no standby follows and that follow no controller."""

from collections.abc import Callable

from paceline.model.control import Endpoint
from paceline.model.standby import StateUpdate


class NoStandbyTransport:
    """Follows no controller: every failover reads all states from ZooKeeper."""

    def follow(
        self,
        controller: Endpoint,
        standby_id: int,
        on_update: Callable[[StateUpdate], None],
        on_end: Callable[[Exception | None], None],
    ) -> Callable[[], None]:
        """Do nothing."""
        return lambda: None
