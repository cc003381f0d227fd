"""Compare the answers of drivers with the expected answers."""

import base64
from typing import Any


class UnsupportedError(Exception):
    """The client does not support the subject of a scenario."""


class ScenarioError(AssertionError):
    """The client does not behave as the scenario requires."""


def difference(wanted: Any, found: Any, path: str = "answer") -> str:
    """Return the difference between an answer and the expected answer in words, empty when there is none.

    An object must contain the expected fields and may have more; a list must have the expected length; other values
    must be equal.
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
