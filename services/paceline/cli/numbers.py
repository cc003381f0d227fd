"""Numbers as the contract has room for them: what does not fit is refused before anything is asked."""

import math
from typing import Any

import click

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

BROKER_ID = click.IntRange(0, MAX_INT32)
COUNT = click.IntRange(1, MAX_INT32)
LONG_COUNT = click.IntRange(1, MAX_INT64)
OFFSET = click.IntRange(0, MAX_INT64)


class _Seconds(click.FloatRange):
    """A time that ends: neither ``nan``, which is in every range, nor ``inf``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


SECONDS = _Seconds(0)
INTERVAL_S = _Seconds(0.2, 3_600)


def parse_number(text: str, largest: int = MAX_INT32) -> int | None:
    """Return a number of 0 or more in decimal digits, None for any other text.

    Raises:
        click.BadParameter: it is larger than ``largest``.
    """
    if not (text.isascii() and text.isdecimal()):
        return None
    digits = text.lstrip("0") or "0"
    # Python itself refuses to read thousands of digits.
    if len(digits) > len(str(largest)) or int(digits) > largest:
        raise click.BadParameter(f"{text[:40]} is too large, the largest is {largest}")
    return int(digits)
