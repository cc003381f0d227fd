"""Errors of a log whose bytes differ from those written (docs/decisions/0011-damaged-and-stray-logs.md)."""

from paceline.model.errors import CorruptMessageError


class DamagedLogError(CorruptMessageError):
    """The log itself holds bytes that are no sound batch; the caller's input was valid.

    A client gets CORRUPT_MESSAGE. The owner of the log has it rebuilt from a peer, if there is one.
    """
