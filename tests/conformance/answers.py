"""Judging the answers of drivers."""

import base64
from typing import Any


class UnsupportedError(Exception):
    """The client lacks what a scenario is about."""


class ScenarioError(AssertionError):
    """The client does not behave as the scenario says."""


def difference(wanted: Any, found: Any, path: str = "answer") -> str:
    """Return in words where an answer differs from what is expected, empty when it does not.

    An object has to contain the expected fields and may have others; a list has to have as many entries; other things
    have to be equal.
    """
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            return f"{path} is {found!r}, an object was expected"
        for key, value in wanted.items():
            if key not in found:
                return f"{path} has no {key}: {found!r}"
            problem = difference(value, found[key], f"{path}.{key}")
            if problem:
                return problem
        return ""
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return f"{path} is {found!r}, {len(wanted)} entries were expected"
        problems = (
            difference(one, other, f"{path}[{n}]") for n, (one, other) in enumerate(zip(wanted, found, strict=True))
        )
        return next((problem for problem in problems if problem), "")
    return "" if wanted == found else f"{path} is {found!r}, {wanted!r} was expected"


def packed(data: bytes | None) -> str | None:
    """Return bytes as base64."""
    return None if data is None else base64.b64encode(data).decode()
