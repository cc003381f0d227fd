"""What a log says when its own bytes are not what was written (docs/decisions/0011-damaged-and-stray-logs.md)."""

from paceline.model.errors import CorruptMessageError


class DamagedLogError(CorruptMessageError):
    """The log itself holds something that is no sound batch; what a caller handed in was fine.

    A client is told CORRUPT_MESSAGE. Whoever owns the log has it rebuilt from a peer, if there is one.
    """
