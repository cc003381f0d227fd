"""Errors of the ZooKeeper client and recipes, apart from the result codes of single requests."""

from paceline.coordination.interface import ZkCode
from paceline.model.errors import PacelineError


class CoordinationError(PacelineError):
    """Base of the errors of this package."""


class MalformedZnodeError(CoordinationError):
    """A node's data does not match its schema; the node was read, nothing was changed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ZooKeeperRequestError(CoordinationError):
    """ZooKeeper refused a request with a code that the flow cannot handle; unlike a lost session this is permanent."""

    definite = False

    def __init__(self, code: ZkCode, path: str) -> None:
        super().__init__(f"ZooKeeper answered {code.name} for {path}")
        self.path = path


class SessionLostError(CoordinationError):
    """The ZooKeeper session ended, which ends the flow; it is unknown whether its last write was applied."""

    retriable = True
    definite = False


class ZooKeeperDataLostError(CoordinationError):
    """The ensemble has lost transactions that this client has seen: it was wiped, or restored from an old copy.

    The process must not continue: lost nodes would look deleted.
    """


class DuplicateBrokerIdError(CoordinationError):
    """Another live session holds this id's registration node.

    The session may belong to a killed predecessor of this process; ZooKeeper then deletes the node when that session
    times out. Therefore a starting process retries for the length of a session timeout.
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
    """The embedded ZooKeeper did not start; the message contains the end of its log."""
