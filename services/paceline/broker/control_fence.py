"""Which control requests a broker listens to (spec/replica-manager.md section 2, design 3.11)."""

from collections.abc import Callable

from paceline.model.control import ControllerStamp
from paceline.model.errors import ErrorCode, PacelineError

ReadControllerEpoch = Callable[[Callable[[int | None], None]], None]
"""Reads ``/controller_epoch`` and calls back with its value, None when it could not be read."""


class ControlRequestDeferredError(PacelineError):
    """The broker must register, or ask ZooKeeper, first; the controller sends the same request again."""

    code = ErrorCode.BROKER_NOT_AVAILABLE
    retriable = True


class ControlFence:
    """The highest controller epoch seen, and the highest that ZooKeeper has confirmed.

    An epoch may rise by one unseen. One that jumps further is confirmed before it fences anybody: a single forged or
    damaged number must not lock the cluster's controller out.
    """

    def __init__(self, read_controller_epoch: ReadControllerEpoch) -> None:
        self._read_controller_epoch = read_controller_epoch
        self._asking = False
        self.highest_epoch = 0
        self.confirmed_epoch = 0

    def confirm(self, controller_epoch: int) -> None:
        """Note what ZooKeeper says the controller epoch is."""
        self.confirmed_epoch = max(self.confirmed_epoch, controller_epoch)

    def check(self, stamp: ControllerStamp, own_broker_epoch: int) -> ErrorCode:
        """Return NONE and remember the controller's epoch, or why the request is refused.

        A process that has not registered yet takes nothing: its predecessor's registration may still stand, and what
        is sent to that one supposes a log and roles this process may have lost.

        Raises:
            ControlRequestDeferredError: not registered yet; or the epoch jumps and ZooKeeper is being asked.
        """
        if own_broker_epoch < 0:
            raise ControlRequestDeferredError("the broker is not registered yet, send it again")
        if stamp.broker_epoch is not None and -1 != stamp.broker_epoch < own_broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        epoch = stamp.controller_epoch
        if epoch < self.highest_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if epoch > max(self.highest_epoch, self.confirmed_epoch) + 1:
            self._ask()
            raise ControlRequestDeferredError(
                f"controller epoch {epoch} jumps from {self.highest_epoch}; asking ZooKeeper, send it again"
            )
        self.highest_epoch = epoch
        return ErrorCode.NONE

    def _ask(self) -> None:
        if not self._asking:
            self._asking = True
            self._read_controller_epoch(self._answered)

    def _answered(self, controller_epoch: int | None) -> None:
        self._asking = False
        if controller_epoch is not None:
            self.confirm(controller_epoch)
