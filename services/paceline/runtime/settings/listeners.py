"""``listeners`` and ``advertised.listeners``: ``CLIENT://host:port,REPLICATION://host:port,...``."""

import re
from collections.abc import Sequence
from typing import Final

from paceline.model.control import Endpoint

DEFAULT_LISTENERS: Final = {
    "broker": "CLIENT://127.0.0.1:9092,REPLICATION://127.0.0.1:9093,CONTROL://127.0.0.1:9094",
    "controller": "CLIENT://127.0.0.1:9082,CONTROL://127.0.0.1:9084",
    "gateway": "CLIENT://127.0.0.1:9095",
}
"""Loopback only: a process is reachable from other machines only when its settings allow it."""

REQUIRED: Final = {
    "broker": ("CLIENT", "REPLICATION", "CONTROL"),
    "controller": ("CLIENT", "CONTROL"),
    "gateway": ("CLIENT",),
}
ALLOWED: Final = {
    "broker": ("CLIENT", "EXTERNAL", "REPLICATION", "CONTROL"),
    "controller": ("CLIENT", "EXTERNAL", "CONTROL"),
    "gateway": ("CLIENT", "EXTERNAL"),
}

_ENTRY = re.compile(r"([A-Za-z]+)://(\[[0-9A-Fa-f:.%]+\]|[^:/\s\[\]]+):(\d{1,5})")
_UNSPECIFIED = {"0.0.0.0", "::"}


def parse_listeners(role: str, text: str | None, problems: list[str]) -> tuple[Endpoint, ...]:
    """Return the listeners of a ``broker``, ``controller`` or ``gateway``; adds errors to ``problems``."""
    found = _parse("listeners", text or DEFAULT_LISTENERS[role], problems)
    names = [endpoint.listener for endpoint in found]
    problems.extend(f"listeners: {name} is required" for name in REQUIRED[role] if name not in names)
    problems.extend(
        f"listeners: a {role} has no listener {name}; there are {', '.join(ALLOWED[role])}"
        for name in names
        if name not in ALLOWED[role]
    )
    used = [(endpoint.host, endpoint.port) for endpoint in found if endpoint.port]
    if len(set(used)) != len(used):
        problems.append("listeners: two listeners have the same address")
    return found


def advertised_listeners(listeners: Sequence[Endpoint], text: str | None, problems: list[str]) -> tuple[Endpoint, ...]:
    """Return the addresses to publish: the given addresses, else the bound ones; 0.0.0.0 cannot be published."""
    given = {endpoint.listener: endpoint for endpoint in _parse("advertised.listeners", text or "", problems)}
    names = [endpoint.listener for endpoint in listeners]
    problems.extend(f"advertised.listeners: {name} is not among the listeners" for name in given if name not in names)
    advertised = tuple(given.get(endpoint.listener, endpoint) for endpoint in listeners)
    problems.extend(
        f"{endpoint.listener} would advertise {endpoint.host}, which no client can reach: set advertised.listeners"
        for endpoint in advertised
        if endpoint.host in _UNSPECIFIED
    )
    return advertised


def _parse(key: str, text: str, problems: list[str]) -> tuple[Endpoint, ...]:
    found: list[Endpoint] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        match = _ENTRY.fullmatch(part)
        if match is None or int(match[3]) > 65_535:
            problems.append(f"{key}: {part!r} is not NAME://host:port")
            continue
        name = match[1].upper()
        if any(endpoint.listener == name for endpoint in found):
            problems.append(f"{key}: {name} is listed twice")
            continue
        found.append(Endpoint(name, match[2].strip("[]"), int(match[3])))
    return tuple(found)
