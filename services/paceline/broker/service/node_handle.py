"""`NodeHandle` gives servicers the broker's node once it exists; `Listener` looks up the addresses of a listener."""

from typing import Final

from paceline.broker.node import BrokerNode
from paceline.model.control import Endpoint
from paceline.model.errors import NOT_REGISTERED, BrokerNotAvailableError

CLIENT: Final = "CLIENT"


class NodeHandle:
    """Holds the node once it exists. Call the node's methods on its event loop."""

    def __init__(self) -> None:
        self._node: BrokerNode | None = None

    def set(self, node: BrokerNode) -> None:
        """Set the node and accept requests."""
        self._node = node

    def get(self) -> BrokerNode:
        """Return the node.

        Raises:
            BrokerNotAvailableError: the node does not exist yet.
        """
        if self._node is None:
            raise BrokerNotAvailableError("the broker is starting").with_metadata(**NOT_REGISTERED)
        return self._node


class Listener:
    """The addresses of one listener, for hints and metadata."""

    def __init__(self, name: str, core: NodeHandle) -> None:
        self.name = name
        self._core = core

    def address_of(self, broker_id: int) -> Endpoint | None:
        """Return a live broker's address on this listener, or its CLIENT address if it lacks this listener."""
        broker = self._core.get().metadata.snapshot.brokers.get(broker_id)
        if broker is None:
            return None
        return broker.endpoint(self.name) or broker.endpoint(CLIENT)

    def controller_address(self) -> Endpoint | None:
        """Return the active controller's address on this listener, or its CLIENT address."""
        endpoints = {
            endpoint.listener: endpoint for endpoint in self._core.get().metadata.snapshot.controller_endpoints
        }
        return endpoints.get(self.name) or endpoints.get(CLIENT)
