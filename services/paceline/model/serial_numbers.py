"""Serial numbers of certificates: lower-case hexadecimal digits without leading zeros."""

import re
from typing import Final

from paceline.model.errors import InvalidRequestError

_SERIAL_NUMBER: Final = re.compile(r"[0-9a-f]{1,40}")


def serial_number_of(text: str) -> str:
    """Return a serial number in this form; colons, ``0x``, blanks around it and leading zeros do not matter.

    Raises:
        InvalidRequestError: not a hexadecimal number of at most 20 bytes, or 0.
    """
    found = text.strip().lower().removeprefix("0x").replace(":", "").lstrip("0")
    if not _SERIAL_NUMBER.fullmatch(found):
        raise InvalidRequestError(f"{text[:100]!r} is not a serial number: 1 to 40 hexadecimal digits, not all 0")
    return found
