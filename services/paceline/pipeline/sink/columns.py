"""Check the columns that the sink writes, with the type rules of Spark's Kafka sink.

Columns with other names are ignored, so a DataFrame from the source can be written unchanged.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from paceline.pipeline.errors import InvalidOptionError
from paceline.pipeline.sink.options import WriteOptions

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"

_ALLOWED: Final[Mapping[str, tuple[str, tuple[type[DataType], ...]]]] = {
    "topic": ("string", (StringType,)),
    "key": ("string or binary", (StringType, BinaryType)),
    "value": ("string or binary", (StringType, BinaryType)),
    "headers": (HEADERS_TYPE, (ArrayType,)),
    "partition": ("int", (IntegerType,)),
    "timestamp": ("timestamp", (TimestampType,)),
}


def check_columns(schema: StructType, options: WriteOptions) -> tuple[str, ...]:
    """Return the columns of ``schema`` that the sink writes.

    Raises:
        InvalidOptionError: ``value`` or a topic is missing, or a column has a type that cannot be written.
    """
    types = {field.name: field.dataType for field in schema.fields}
    if options.topic is None and "topic" not in types:
        raise InvalidOptionError("no topic to write to: set the option topic, or add a column topic")
    if "value" not in types:
        raise InvalidOptionError("the DataFrame has no column value")
    for name, (text, allowed) in _ALLOWED.items():
        found = types.get(name)
        if found is None:
            continue
        fits = isinstance(found, allowed) and (name != "headers" or _is_headers(found))
        if not fits:
            raise InvalidOptionError(f"column {name} has type {found.simpleString()}, it must be {text}")
    unwanted = {"topic"} if options.topic is not None else set()
    if not options.include_headers:
        unwanted.add("headers")
    return tuple(name for name in _ALLOWED if name in types and name not in unwanted)


def _is_headers(found: DataType) -> bool:
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    fields = found.elementType.fields
    return [(each.name, type(each.dataType)) for each in fields] == [("key", StringType), ("value", BinaryType)]
