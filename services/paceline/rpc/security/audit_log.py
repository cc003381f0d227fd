"""Write the audit log: one JSON object for each refusal and for each administrative change; docs/security.md#audit-log.

The first refusal of a principal for an RPC and a resource is written at once; further equal refusals are counted, and
written as one line every `SUM_S` seconds. A line never has the contents of records, or secrets.
"""

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from paceline.model.identity import ANONYMOUS

LOGGER: Final = "paceline.audit"
SUM_S: Final = 10.0
MAX_RESOURCES: Final = 50
"""Most (RPC, resource) pairs of a principal in `SUM_S` with lines of their own; further ones share a line per RPC."""
MAX_PRINCIPALS: Final = 1_000
"""Most principals with lines of their own in `SUM_S`; further principals share lines."""
MAX_VALUE_CHARACTERS: Final = 2_000
OTHER: Final = "(other)"

LOG = logging.getLogger(LOGGER)

DENIED, WOULD_DENY, CHANGED = "denied", "would_deny", "changed"


@dataclass(slots=True)
class AuditLine:
    """One line; its fields are the schema, and each is present in every line."""

    event: str
    """``denied``; ``would_deny``, which ``authorizer.mode=log`` lets pass; or ``changed``."""
    principal: str = ANONYMOUS
    uri: str = ""
    """URI in the caller's certificate, empty without a certificate."""
    address: str = ""
    """The caller's connection, as gRPC names it."""
    listener: str = ""
    rpc: str = ""
    resource: str = ""
    """``Topic:LITERAL:rides``; empty when the RPC as a whole is refused."""
    operation: str = ""
    rule: str = ""
    """The rule that decided, or the reason without a matching rule."""
    old: Any = None
    """Value before a change, if the process knew it."""
    new: Any = None
    """Requested value of a change; None for a removal."""
    error: str | None = None
    """Name of the error if the change failed; REQUEST_TIMED_OUT leaves open whether it was made."""
    count: int = 1
    """Equal refusals that the line stands for."""
    request_id: str = ""
    """The same for all lines of a call or stream; empty in sums of refusals."""


class AuditLog:
    """Writes the lines of one process; thread-safe."""

    def __init__(
        self,
        process: str = "",
        write: Callable[[str], None] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """``process`` is for example ``broker/1``; ``write`` takes lines in place of the logger."""
        self._process = process
        self._write_refusal: Callable[[str], None] = write or LOG.warning
        self._write_change: Callable[[str], None] = write or LOG.info
        self._clock_s = clock_s
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, ...], AuditLine] = {}
        """Refusals since the begin of the interval that no line has yet: a refusal that was written counts 0."""
        self._resources: dict[str, int] = {}
        self._begin_s = clock_s()

    def refused(self, line: AuditLine) -> None:
        """Write a refusal, or count it when an equal one was written in the present interval."""
        with self._lock:
            due = self._due(self._clock_s())
            known = self._sums.get(_key(line))
            if known is None:
                line = self._within_limits(line)
                known = self._sums.get(_key(line))
            if known is not None:
                known.count += 1
            elif OTHER in (line.principal, line.resource):
                self._sums[_key(line)] = replace(line, request_id="")
            else:
                self._sums[_key(line)] = replace(line, count=0, request_id="")
                due.append(line)
        self._put(due)

    def changed(self, line: AuditLine) -> None:
        """Write a change."""
        self._put([line])

    def flush(self, all_now: bool = False) -> None:
        """Write the sums of a past interval; with ``all_now``, also those of the present one."""
        with self._lock:
            due = self._due(float("inf") if all_now else self._clock_s())
        self._put(due)

    def _within_limits(self, line: AuditLine) -> AuditLine:
        """Return a new refusal, or one that shares a sum if the interval has too many different ones."""
        resources = self._resources.get(line.principal)
        if resources is None and len(self._resources) >= MAX_PRINCIPALS:
            return replace(line, principal=OTHER, resource=OTHER, uri="", address="", rule="")
        if resources is not None and resources >= MAX_RESOURCES:
            return replace(line, resource=OTHER, rule="")
        self._resources[line.principal] = (resources or 0) + 1
        return line

    def _due(self, now_s: float) -> list[AuditLine]:
        if now_s - self._begin_s < SUM_S:
            return []
        due = [line for line in self._sums.values() if line.count]
        self._sums, self._resources, self._begin_s = {}, {}, min(now_s, self._clock_s())
        return due

    def _put(self, lines: list[AuditLine]) -> None:
        for line in lines:
            seconds = self._wall_s()
            at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"
            fields = {name: getattr(line, name) for name in AuditLine.__slots__}
            # Pass one argument only, so that logging does not take a percent sign in a name as a format.
            write = self._write_change if line.event == CHANGED else self._write_refusal
            write(json.dumps({"time": at, "process": self._process, **fields}, default=str))


def _key(line: AuditLine) -> tuple[str, ...]:
    # The same principal of another cluster has another certificate.
    return line.event, line.principal, line.uri, line.rpc, line.resource, line.operation


def new_request_id() -> str:
    """Return the id of a call, for `AuditLine.request_id`."""
    return secrets.token_hex(8)


def value(found: Any) -> Any:
    """Return a value for the fields ``old`` and ``new``, shortened if it is long."""
    text = json.dumps(found, default=str)
    return found if len(text) <= MAX_VALUE_CHARACTERS else text[:MAX_VALUE_CHARACTERS] + "..."
