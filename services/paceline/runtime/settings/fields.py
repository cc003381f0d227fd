"""Definition of a key in the table of settings."""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1
DAY_MS: Final = 86_400_000


def blank_is_none(value: Any) -> Any:
    """Return None for a text of spaces, any other value unchanged."""
    return None if isinstance(value, str) and not value.strip() else value


OptionalText = Annotated[str | None, BeforeValidator(blank_is_none)]
OptionalInt = Annotated[int | None, BeforeValidator(blank_is_none)]


def key(
    default: Any,
    unit: str,
    note: str,
    *,
    topic: str | None = None,
    secret: bool = False,
    **bounds: Any,
) -> Any:
    """Return the field of a key.

    Args:
        default: value when it is not set; ``...`` makes the key required.
        unit: ms, bytes, count, and so on; "" without a unit.
        note: one line of help.
        topic: the topic key whose broker-wide default this is.
        secret: the value is never shown, and is read from a file that only its owner can read.
        bounds: ``ge`` and ``le``.
    """
    extra: dict[str, Any] = {"unit": unit, "topic_key": topic, "secret": secret}
    return Field(default, description=note, json_schema_extra=extra, **bounds)


def key_name(field: str) -> str:
    """Return the key of a field: ``replica_lag_time_max_ms`` is ``replica.lag.time.max.ms``."""
    return field.replace("_", ".")
