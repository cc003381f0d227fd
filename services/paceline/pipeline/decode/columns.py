"""The columns of the data source and their Arrow types, which Spark compares strictly.

Every field is nullable and timestamps are ``timestamp[us, UTC]``: Spark refuses a ``not null`` field, a large or view
type, or another order (docs/spark.md#columns).
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

HEADER_TYPE: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(pa.field("element", HEADER_TYPE))

ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    # Not a column of the data source: for jobs that handle timestamps outside Spark's range, as 64-bit milliseconds.
    "timestampMs": pa.int64(),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of record batches with ``columns``, in that order."""
    return pa.schema([(name, ARROW_TYPES[name]) for name in columns])
