"""Families of tests of which `make test` runs a part, and `make test-all` every member."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but_every(step: int, values: Iterable[Any]) -> list[Any]:
    """Return the parameters of a test; all but each ``step``-th are slow."""
    return [
        value if number % step == 0 else pytest.param(value, marks=pytest.mark.slow)
        for number, value in enumerate(values)
    ]
