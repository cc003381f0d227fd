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


class ControllerEpochFence:
    """The highest controller epoch taken, and the highest that ZooKeeper has confirmed.

    A controller writes its epoch before it sends anything, so an epoch can be looked up. The next epoch after a
    confirmed one counts at once, for a failover must not wait, and is looked up behind it; one that jumps further
    waits for the answer. An epoch that ZooKeeper does not know is forgotten again, and from then on every rise is
    looked up first. So neither one forged number nor a staircase of them locks the cluster's controller out.
    """

    def __init__(
        self, read_controller_epoch: ReadControllerEpoch, on_refuted: Callable[[int], None] = lambda _epoch: None
    ) -> None:
        """``on_refuted`` is told a controller epoch that was taken and then not found in ZooKeeper."""
        self._read_controller_epoch = read_controller_epoch
        self._on_refuted = on_refuted
        self._asking = False
        self._asked_about = 0
        self._may_rise_unseen = True
        self.highest_epoch = 0
        self.confirmed_epoch = 0

    def confirm(self, controller_epoch: int) -> None:
        """Note what ZooKeeper says the controller epoch is."""
        if controller_epoch > self.confirmed_epoch:
            self.confirmed_epoch = controller_epoch
            self._may_rise_unseen = True

    def check(self, stamp: ControllerStamp, own_broker_epoch: int) -> ErrorCode:
        """Return NONE and remember the controller's epoch, or why the request is refused.

        A process that has not registered yet takes nothing: its predecessor's registration may still stand, and what
        is sent to that one supposes a log and roles this process may have lost.

        Raises:
            ControlRequestDeferredError: not registered yet; or ZooKeeper is being asked about an epoch, this one or
                the higher one that would fence it.
        """
        if own_broker_epoch < 0:
            raise ControlRequestDeferredError("the broker is not registered yet, send it again")
        if stamp.broker_epoch is not None and -1 != stamp.broker_epoch < own_broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        epoch = stamp.controller_epoch
        if epoch < self.confirmed_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if epoch < self.highest_epoch:
            self._ask()
            raise ControlRequestDeferredError(
                f"controller epoch {epoch} is below {self.highest_epoch}; asking ZooKeeper, send it again"
            )
        if epoch > self.confirmed_epoch + (1 if self._may_rise_unseen else 0):
            self._ask()
            raise ControlRequestDeferredError(
                f"controller epoch {epoch} rises from {self.confirmed_epoch}; asking ZooKeeper, send it again"
            )
        self.highest_epoch = epoch
        if epoch > self.confirmed_epoch:
            self._ask()
        return ErrorCode.NONE

    def _ask(self) -> None:
        if not self._asking:
            self._asking = True
            self._asked_about = self.highest_epoch
            self._read_controller_epoch(self._answered)

    def _answered(self, controller_epoch: int | None) -> None:
        self._asking = False
        if controller_epoch is None:
            return  # the next request asks again
        self.confirm(controller_epoch)
        if self.highest_epoch <= self.confirmed_epoch:
            return
        if self.highest_epoch > self._asked_about:
            self._ask()  # taken while the question was under way, so the answer may be older than the epoch
            return
        refuted, self.highest_epoch = self.highest_epoch, self.confirmed_epoch
        self._may_rise_unseen = False
        self._on_refuted(refuted)
