"""Parse times on the command line: a duration before now, or a date and time in this machine's time zone."""

import datetime
import re
import time
from typing import Final

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def parse_moment(text: str) -> int | None:
    """Return the Unix time in ms of ``10m`` (ten minutes ago) or ``2026-11-21T17:00``; None for any other text."""
    ago = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if ago:
        return max(0, int((time.time() - int(ago[1]) * _UNITS[ago[2]]) * 1000))
    if text.isdecimal():  # an offset, although fromisoformat accepts 20261121
        return None
    try:
        return max(0, int(datetime.datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        return None
