"""What may go wrong when talking to ZooKeeper, apart from the codes of single requests."""

from paceline.coordination.interface import ZkCode
from paceline.model.errors import PacelineError


class CoordinationError(PacelineError):
    """Base of the errors of this package."""


class MalformedZnodeError(CoordinationError):
    """A node's data is not what its schema says; the node was read, nothing was changed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ZooKeeperRequestError(CoordinationError):
    """ZooKeeper refused a request in a way the flow has no answer to; unlike a lost session it is no passing state."""

    definite = False

    def __init__(self, code: ZkCode, path: str) -> None:
        super().__init__(f"ZooKeeper answered {code.name} for {path}")
        self.zk_code = code
        self.path = path


class SessionLostError(CoordinationError):
    """The session a flow belongs to has ended, so has the flow; whether its last write took effect is unknown."""

    retriable = True
    definite = False


class ZooKeeperDataLostError(CoordinationError):
    """The ensemble no longer has what it told us: it was wiped, or restored from an old copy.

    Going on would be wrong: what is missing would look deleted.
    """


class DuplicateBrokerIdError(CoordinationError):
    """A live process with another session holds this id's registration node.

    It may be this process's own predecessor that was killed a moment ago: its node goes when its session times out,
    so a starting process tries again for a session timeout before it gives up.
    """

    retriable = True

    def __init__(self, path: str, owner_session_id: int) -> None:
        super().__init__(f"{path} is registered by another session, 0x{owner_session_id:x}")
        self.path = path
        self.owner_session_id = owner_session_id


class JavaNotFoundError(CoordinationError):
    """No usable Java runtime; the message says how to install one."""


class ZooKeeperJarsNotFoundError(CoordinationError):
    """PySpark's jars, which contain ZooKeeper, are not installed; the message says how to install them."""


class ZooKeeperStartError(CoordinationError):
    """The embedded ZooKeeper did not come up; the message quotes the end of its log."""
