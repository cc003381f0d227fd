"""Revoked certificates, named by their serial numbers: lower-case hexadecimal digits without leading zeros."""

import re
from typing import Final, NamedTuple

from paceline.model.errors import InvalidRequestError

_SERIAL_NUMBER: Final = re.compile(r"[0-9a-f]{1,40}")


class RevokedCertificate(NamedTuple):
    """A certificate that every process refuses."""

    serial_number: str
    principal: str = ""
    """The owner, for people who read the list; empty if not known."""
    revoked_at_ms: int = 0
    """Milliseconds since the epoch."""


def serial_number_of(text: str) -> str:
    """Return a serial number in the form of the list; colons, ``0x``, blanks and leading zeros do not matter.

    Raises:
        InvalidRequestError: not a hexadecimal number of at most 20 bytes, or 0.
    """
    found = text.strip().lower().removeprefix("0x").replace(":", "").lstrip("0")
    if not _SERIAL_NUMBER.fullmatch(found):
        raise InvalidRequestError(f"{text[:100]!r} is not a serial number: 1 to 40 hexadecimal digits, not all 0")
    return found
