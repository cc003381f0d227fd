"""Internal errors of the controller: they end an event, or make the controller resign, and never reach a client."""

from paceline.coordination.interface import ZkCode
from paceline.model.errors import NotControllerError


class ControllerMovedError(NotControllerError):
    """A fenced write failed its check of ``/controller_epoch``: this process must stop acting as controller.

    Source: docs/protocol/zookeeper.md#epoch-fence; docs/protocol/controller.md#resigning.
    """

    def __init__(self, message: str, may_be_applied: bool = False) -> None:
        super().__init__(message)
        self.may_be_applied = may_be_applied
        """Whether earlier writes of the same event may have been applied."""


class SessionLostError(ControllerMovedError):
    """The ZooKeeper session ended, or the connection broke, during an event."""

    def __init__(self, message: str) -> None:
        super().__init__(message, may_be_applied=True)


class IllegalStateError(Exception):
    """Requests of an earlier batch were never sent.

    The controller must resign; its successor sends the full state.
    """


class UnexpectedResponseError(Exception):
    """ZooKeeper answered with an unexpected code."""

    def __init__(self, code: ZkCode, what: str) -> None:
        super().__init__(f"{what}: {code.name}")
        self.code = code


class ActiveControllerDeadError(Exception):
    """The stream of the active controller closed, and its address refused two connects: its process is dead."""


class UnreadableEpochError(Exception):
    """``/controller_epoch`` does not contain an epoch; no controller can be elected until an operator repairs it."""
