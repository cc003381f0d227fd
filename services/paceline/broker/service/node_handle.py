"""Where the servicers find the broker's node: they answer before it exists, so a long recovery is seen to be alive."""

from paceline.broker.node import BrokerNode
from paceline.model.errors import NOT_REGISTERED, BrokerNotAvailableError


class NodeHandle:
    """Holds the node as soon as it exists. All methods of the node are called on its event loop."""

    def __init__(self) -> None:
        self._node: BrokerNode | None = None

    def set(self, node: BrokerNode) -> None:
        """Let requests through."""
        self._node = node

    def get(self) -> BrokerNode:
        """Return the node.

        Raises:
            BrokerNotAvailableError: it does not exist yet.
        """
        if self._node is None:
            raise BrokerNotAvailableError("the broker is starting").with_metadata(**NOT_REGISTERED)
        return self._node
