"""Logging with structlog to one stream, and the state-change log.

All log records, including those of libraries, have the same form: lines for people (console) or one JSON object per
line (json). The state-change log is always JSON, with the terms of `model.state_change`.
"""

import json
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TextIO

import structlog

from paceline.model.state_change import StateChange, state_change_fields
from paceline.rpc.security.audit_log import LOGGER as AUDIT_LOGGER

STATE_CHANGE_LOGGER: Final = "paceline.state_change"
_STATE_CHANGE_FLUSH_S: Final = 5.0
_STATE_CHANGE_GATHER_S: Final = 0.02
_STATE_CHANGES_AT_ONCE: Final = 500
"""Lines per write; few enough that the event loop never waits long for the interpreter lock."""

_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode

_NOISY = ("kazoo", "kazoo.client", "asyncio", "grpc", "grpc._cython.cygrpc")


def configure_logging(
    form: str = "console",
    level: str = "info",
    state_change_path: str | None = None,
    stream: TextIO | None = None,
    bound: Mapping[str, object] = MappingProxyType({}),
    audit_path: str | None = None,
) -> None:
    """Set up logging for the whole process; called once, before anything logs.

    Args:
        form: "console" or "json".
        level: minimum severity of Paceline's loggers; libraries log from "warning" upwards.
        state_change_path: file of the state-change log; None writes it to the same stream.
        stream: default is standard error.
        bound: fields of every JSON line, for example ``{"broker": 1}``.
        audit_path: file of the audit log; None writes it to the same stream.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _Bound(bound if form == "json" else {}),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    last: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if form == "json":
        last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        out = stream or sys.stderr
        # Tracebacks with the values of all variables take half a second each, during which the process is blocked.
        plain = structlog.dev.plain_traceback
        last.append(structlog.dev.ConsoleRenderer(colors=out.isatty(), pad_event_to=0, exception_formatter=plain))
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("paceline").setLevel(level.upper())
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    _configure_json_log(STATE_CHANGE_LOGGER, state_change_path)
    _configure_json_log(AUDIT_LOGGER, audit_path)


class _Bound:
    """Adds the process's own fields to every line."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = dict(values)

    def __call__(self, logger: Any, name: str, event: dict[str, Any]) -> dict[str, Any]:
        for key, value in self._values.items():
            event.setdefault(key, value)
        return event


def _configure_json_log(name: str, path: str | None) -> None:
    logger = logging.getLogger(name)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(logging.INFO)
    logger.propagate = path is None
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        own = logging.FileHandler(path, encoding="utf-8", delay=False)
        own.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(own)


def write_state_changes(changes: Sequence[StateChange]) -> None:
    """Write state changes, one per line; into a separate file they are written together."""
    logger = logging.getLogger(STATE_CHANGE_LOGGER)
    lines = [_to_json(state_change_fields(change)) for change in changes]
    for text in lines if logger.propagate else ["\n".join(lines)]:
        logger.info(text)


class StateChangeWriter:
    """Writes the state-change log on a separate thread, many lines at a time.

    A failover of ten thousand partitions creates tens of thousands of lines, which must not delay the failover: lines
    are collected briefly, so that most lines are written after the failover.
    """

    def __init__(self) -> None:
        self._changes: queue.SimpleQueue[StateChange | None] = queue.SimpleQueue()
        self.put: Callable[[StateChange], None] = self._changes.put
        self._thread = threading.Thread(target=self._run, name="state-change-log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the remaining lines, within a time limit; blocks."""
        self._changes.put(None)
        self._thread.join(_STATE_CHANGE_FLUSH_S)

    def _run(self) -> None:
        over = False
        while not over:
            changes = [self._changes.get()]
            if changes[0] is not None and self._changes.empty():
                time.sleep(_STATE_CHANGE_GATHER_S)
            while len(changes) < _STATE_CHANGES_AT_ONCE and not self._changes.empty():
                changes.append(self._changes.get())
            over = None in changes
            known = [change for change in changes if change is not None]
            try:
                if known:
                    write_state_changes(known)
            except Exception:  # a line that cannot be written must not end the log
                logging.getLogger(__name__).exception("writing state changes failed: count=%d", len(known))
