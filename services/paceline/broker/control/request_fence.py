"""Fence control requests: refuse old broker epochs, and accept only controller epochs that ZooKeeper has confirmed.

Source: docs/protocol/replication.md#request-fences.
"""

from collections.abc import Callable

from paceline.model.control import ControllerStamp
from paceline.model.errors import NOT_REGISTERED, ErrorCode, PacelineError

ReadControllerEpoch = Callable[[Callable[[int | None], None]], None]
"""Reads ``/controller_epoch`` and calls back with its value, or None when it could not be read."""


class ControlRequestDeferredError(PacelineError):
    """The broker must first register, or look up an epoch in ZooKeeper; the controller retries the request."""

    code = ErrorCode.BROKER_NOT_AVAILABLE
    retriable = True


class RequestFence:
    """Checks requests against this broker's epoch and the highest controller epoch that ZooKeeper has confirmed.

    A controller writes its epoch to ZooKeeper before it sends any request, so the broker can look the epoch up. A
    request with a higher epoch is applied only after ZooKeeper has confirmed the epoch: a forged epoch could clear this
    broker's metadata and lock out the real controller.
    """

    def __init__(
        self, read_controller_epoch: ReadControllerEpoch, on_refuted: Callable[[int], None] = lambda _epoch: None
    ) -> None:
        """``on_refuted`` receives the controller epoch of a request if ZooKeeper has a lower epoch."""
        self._read_controller_epoch = read_controller_epoch
        self._on_refuted = on_refuted
        self._is_reading = False
        self._claimed_epoch = 0
        self._waiting: list[Callable[[], None]] = []
        self.confirmed_epoch = 0

    def confirm(self, controller_epoch: int) -> None:
        """Store the controller epoch read from ZooKeeper."""
        self.confirmed_epoch = max(self.confirmed_epoch, controller_epoch)

    def check(self, stamp: ControllerStamp, own_broker_epoch: int) -> ErrorCode:
        """Return NONE when the request may be applied, otherwise the error.

        A process that has not registered yet accepts no request: its predecessor's registration may still exist, and
        requests for it assume a log and roles that this process may have lost.

        Raises:
            ControlRequestDeferredError: not registered yet, or the request's epoch is being looked up in ZooKeeper.
        """
        if own_broker_epoch < 0:
            raise ControlRequestDeferredError("the broker is not registered yet, send it again").with_metadata(
                **NOT_REGISTERED
            )
        if stamp.broker_epoch is not None and -1 != stamp.broker_epoch < own_broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        epoch = stamp.controller_epoch
        if epoch < self.confirmed_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if epoch > self.confirmed_epoch:
            self._read(epoch)
            raise ControlRequestDeferredError(
                f"controller epoch {epoch} rises from {self.confirmed_epoch}; "
                "the broker reads ZooKeeper, the controller repeats the request"
            )
        return ErrorCode.NONE

    def when_read(self, on_read: Callable[[], None]) -> None:
        """Call ``on_read`` when ZooKeeper has answered the read in flight, or immediately if no read is in flight."""
        if self._is_reading:
            self._waiting.append(on_read)
        else:
            on_read()

    def _read(self, claimed_epoch: int) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._claimed_epoch = claimed_epoch
            self._read_controller_epoch(self._answered)

    def _answered(self, controller_epoch: int | None) -> None:
        self._is_reading = False
        if controller_epoch is not None:
            self.confirm(controller_epoch)
            if self._claimed_epoch > self.confirmed_epoch:
                self._on_refuted(self._claimed_epoch)
        waiting, self._waiting = self._waiting, []
        for on_read in waiting:
            on_read()
