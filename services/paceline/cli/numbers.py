"""Number parameters with the ranges of the protocol, so that a value out of range is refused before any call."""

import math
from typing import Any

import click

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1


class _Integer(click.IntRange):
    """A whole number in a range; without this ``name`` click would call other text "not a valid integer range"."""

    name = "integer"


BROKER_ID = _Integer(0, MAX_INT32)
COUNT = _Integer(1, MAX_INT32)
LONG_COUNT = _Integer(1, MAX_INT64)
OFFSET = _Integer(0, MAX_INT64)


class _Seconds(click.FloatRange):
    """A finite number of seconds: refuses ``inf``, and ``nan``, which click accepts in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


SECONDS = _Seconds(0)
INTERVAL_S = _Seconds(0.2, 3_600)


def parse_number(text: str, largest: int = MAX_INT32) -> int | None:
    """Parse a non-negative decimal number; return None for any other text.

    Raises:
        click.BadParameter: the number is larger than ``largest``.
    """
    if not (text.isascii() and text.isdecimal()):
        return None
    digits = text.lstrip("0") or "0"
    # Python refuses to convert thousands of digits.
    if len(digits) > len(str(largest)) or int(digits) > largest:
        raise click.BadParameter(f"{text[:40]} is too large, the largest is {largest}")
    return int(digits)
