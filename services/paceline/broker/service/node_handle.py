"""Access to the broker's node for servicers, which answer before it exists, so that a long recovery looks alive."""

from paceline.broker.node import BrokerNode
from paceline.model.errors import NOT_REGISTERED, BrokerNotAvailableError


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
            BrokerNotAvailableError: it does not exist yet.
        """
        if self._node is None:
            raise BrokerNotAvailableError("the broker is starting").with_metadata(**NOT_REGISTERED)
        return self._node
