"""How one key of the table of settings is written down."""

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1
DAY_MS: Final = 86_400_000

Scope = Literal["static", "broker"]
"""``static``: needs a restart; ``broker``: may also be set in ``/config/brokers/<id>`` while running."""


def blank_is_none(value: Any) -> Any:
    """Return None for a text of spaces, anything else as it is."""
    return None if isinstance(value, str) and not value.strip() else value


OptionalText = Annotated[str | None, BeforeValidator(blank_is_none)]
OptionalInt = Annotated[int | None, BeforeValidator(blank_is_none)]


def key(
    default: Any,
    unit: str,
    note: str,
    *,
    topic: str | None = None,
    scope: Scope = "static",
    secret: bool = False,
    **bounds: Any,
) -> Any:
    """Return the field of one key.

    Args:
        default: value when it is not set; ``...`` makes the key required.
        unit: ms, bytes, count, and so on; "" where there is none.
        note: one line for a person.
        topic: the topic key this is the broker-wide default of.
        scope: how it may be changed.
        secret: the value is never shown, and comes from a file that only its owner reads.
        bounds: ``ge`` and ``le``.
    """
    extra: dict[str, Any] = {"unit": unit, "topic_key": topic, "scope": scope, "secret": secret}
    return Field(default, description=note, json_schema_extra=extra, **bounds)


def key_name(field: str) -> str:
    """Return the key of a field: ``replica_lag_time_max_ms`` is ``replica.lag.time.max.ms``."""
    return field.replace("_", ".")
