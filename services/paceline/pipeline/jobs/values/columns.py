"""Typed columns of a value, and their text form as written by a user: ``"id:long, name:string?"``."""

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from paceline.model.errors import InvalidConfigError

SCALARS: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "json": pa.string(),
}
"""Type names; ``json`` stores any JSON value as text, ``binary`` is base64 in JSON."""

RESERVED: Final = frozenset(
    {"topic", "partition", "offset", "timestamp", "timestamptype", "date", "key", "value", "headers"}
)
"""Columns of every table; a field with such a name becomes ``value_NAME``. Spark compares names case-insensitively."""

_FIELD = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*:\s*(list<\s*(\w+)\s*>|\w+)\s*(\??)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """A typed column."""

    field: str
    """Name in the value."""
    type: str
    """A key of `SCALARS`."""
    optional: bool = False
    """Whether the field may be missing or null; a value without a required field is a dead letter."""
    is_list: bool = False

    @property
    def name(self) -> str:
        """Name in the table."""
        return f"value_{self.field}" if self.field.lower() in RESERVED else self.field

    @property
    def arrow_type(self) -> pa.DataType:
        """Type in the table."""
        return pa.list_(pa.field("element", SCALARS[self.type])) if self.is_list else SCALARS[self.type]


def parse_columns(text: str) -> tuple[ValueColumn, ...]:
    """Return the columns of a text such as ``"id:long, name:string?, tags:list<string>"``; ``?`` marks optional fields.

    Raises:
        InvalidConfigError: the text is empty, a type is unknown, or a name occurs twice.
    """
    columns = []
    for part in text.split(","):
        found = _FIELD.fullmatch(part)
        type_name = found and (found[3] or found[2])
        if not found or type_name not in SCALARS:
            raise InvalidConfigError(
                f"columns: {part.strip()!r} is not NAME:TYPE or NAME:TYPE?; types are {', '.join(SCALARS)} "
                "and list<TYPE>"
            )
        columns.append(ValueColumn(found[1], type_name, bool(found[4]), bool(found[3])))
    names = [column.name.lower() for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidConfigError(f"columns: {', '.join(twice)} occurs twice; names are compared without case")
    return tuple(columns)
