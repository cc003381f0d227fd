"""Logs: structlog in front, one stream behind, and the state-change log beside it.

Everything, `logging` calls of libraries included, ends in the same form: lines for people (console) or one JSON object
per line (json). The state-change log is always JSON, in the words of `model.state_change`.
"""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, Final, TextIO

import structlog

from paceline.model.state_change import StateChange

STATE_CHANGE_LOGGER: Final = "paceline.state_change"

_NOISY = ("kazoo", "kazoo.client", "asyncio", "grpc", "grpc._cython.cygrpc")


def configure_logging(
    form: str = "console",
    level: str = "info",
    state_change_path: str | None = None,
    stream: TextIO | None = None,
    **bound: object,
) -> None:
    """Set up logging for the whole process; called once, before anything logs.

    Args:
        form: "console" or "json".
        level: least severity of our own loggers; libraries are heard from "warning" on.
        state_change_path: file of the state-change log; None writes it to the same stream.
        stream: default is standard error.
        bound: fields on every line, for example ``broker=1``.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _Bound(bound),
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
        last.append(structlog.dev.ConsoleRenderer(colors=out.isatty(), pad_event_to=0))
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("paceline").setLevel(level.upper())
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    _configure_state_changes(state_change_path)


class _Bound:
    """Adds the process's own fields to every line."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = dict(values)

    def __call__(self, logger: Any, name: str, event: dict[str, Any]) -> dict[str, Any]:
        for key, value in self._values.items():
            event.setdefault(key, value)
        return event


def _configure_state_changes(path: str | None) -> None:
    logger = logging.getLogger(STATE_CHANGE_LOGGER)
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


def state_change_logger() -> Callable[[StateChange], None]:
    """Return what writes one state change as one JSON object on one line."""
    logger = logging.getLogger(STATE_CHANGE_LOGGER)

    def write(change: StateChange) -> None:
        logger.info(json.dumps(state_change_fields(change), separators=(",", ":")))

    return write


def state_change_fields(change: StateChange) -> dict[str, Any]:
    """Return the fields of a state change that are known, as JSON values; a partition becomes topic and partition."""
    found: dict[str, Any] = {}
    for field in fields(change):
        value = getattr(change, field.name)
        if value is None or value == ():
            continue
        if field.name == "topic_partition":
            found["topic"], found["partition"] = value
        elif isinstance(value, Enum):
            found[field.name] = value.value
        elif field.name == "replicas":
            found["replicas"] = [
                {
                    one.name: getattr(replica, one.name)
                    for one in fields(replica)
                    if getattr(replica, one.name) is not None
                }
                for replica in value
            ]
        else:
            found[field.name] = list(value) if isinstance(value, tuple) else value
    return found


def _known_fields(value: Any) -> dict[str, Any]:
    return {one.name: getattr(value, one.name) for one in fields(value) if getattr(value, one.name) is not None}
