"""The error of a log whose bytes differ from those written (docs/decisions/0011-damaged-and-stray-logs.md)."""

from paceline.model.errors import CorruptMessageError


class DamagedLogError(CorruptMessageError):
    """The log contains bytes that are not a sound batch; the caller's input was valid.

    A client receives CORRUPT_MESSAGE. The owner of the log rebuilds it from another replica, if there is one.
    """
