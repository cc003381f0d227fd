"""The Spark data source ``paceline``: ``spark.read.format("paceline")``. Start here.

`PacelineDataSource` checks the options and builds the readers of `paceline.pipeline.source`. It opens no connection and
imports neither gRPC nor numpy: Spark creates it in separate processes, and every Python process of Spark that looks for
data sources imports this module.
"""

from typing import NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from paceline.pipeline.errors import InvalidOptionError, UnsupportedOperationError
from paceline.pipeline.given_options import warn_of_ignored
from paceline.pipeline.sink import options as write_options
from paceline.pipeline.sink.columns import check_columns
from paceline.pipeline.sink.options import WriteOptions, parse_write_options
from paceline.pipeline.sink.writer import PacelineStreamWriter, PacelineWriter
from paceline.pipeline.source import options as read_options
from paceline.pipeline.source.options import (
    ReadOptions,
    Subscription,
    parse_batch_options,
    parse_schema_options,
    parse_stream_options,
)
from paceline.pipeline.source.reader import PacelineReader, PushdownReader
from paceline.pipeline.source.stream_reader import PacelineStreamReader, RefusedStreamReader

FORMAT = "paceline"

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_SPARK_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def spark_schema(columns: tuple[str, ...]) -> StructType:
    """Return the Spark schema of these columns, all nullable: Spark refuses an Arrow field declared ``not null``."""
    return StructType([StructField(name, _SPARK_TYPES[name]) for name in columns])


class PacelineDataSource(DataSource):  # type: ignore[misc]
    """Reads and writes topics, in batches and as a stream."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns chosen by the options; every option is checked here, before a job starts."""
        options = parse_schema_options(self.options)
        warn_of_ignored(self.options, read_options.KNOWN, read_options.REFUSED)
        return spark_schema(options.columns)

    def reader(self, schema: StructType) -> "PacelineReader":
        """Return the reader, with push-down only if the option enables it, because Spark may have disabled it."""
        options = parse_batch_options(self.options)
        _check_schema(schema, options)
        return PushdownReader(options) if options.pushdown else PacelineReader(options)

    def streamReader(self, schema: StructType) -> PacelineStreamReader:  # noqa: N802
        """Return the reader of a streaming query, which raises the error of an option."""
        try:
            options = parse_stream_options(self.options)
            _check_schema(schema, options)
        except InvalidOptionError as error:
            return RefusedStreamReader(ReadOptions((), Subscription()), error)
        return PacelineStreamReader(options)

    def simpleStreamReader(self, schema: StructType) -> NoReturn:  # noqa: N802
        """Refuse a simple stream reader: it would read all records on the driver (SPARK-55416)."""
        raise UnsupportedOperationError("the driver does not read records itself; Spark uses streamReader")

    def writer(self, schema: StructType, overwrite: bool) -> PacelineWriter:
        """Return the writer of a batch query."""
        if overwrite:
            raise UnsupportedOperationError(
                "mode('overwrite') would delete the topic's records first; use mode('append'), or delete records with "
                "paceline topic"
            )
        return PacelineWriter(*self._write_options(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> PacelineStreamWriter:  # noqa: N802
        """Return the writer of a streaming query."""
        if overwrite:
            raise UnsupportedOperationError("outputMode('complete') would repeat all rows; use outputMode('append')")
        options, columns = self._write_options(schema)
        if options.txn is not None:
            raise InvalidOptionError(
                "txnAppId is for batch writes, as in foreachBatch; a streaming query has its own id"
            )
        return PacelineStreamWriter(options, columns)

    def _write_options(self, schema: StructType) -> tuple[WriteOptions, tuple[str, ...]]:
        options = parse_write_options(self.options)
        warn_of_ignored(self.options, write_options.KNOWN, write_options.REFUSED)
        return options, check_columns(schema, options)


def _check_schema(schema: StructType, options: ReadOptions) -> None:
    own = spark_schema(options.columns)
    if schema != own:
        raise InvalidOptionError(
            f"the schema is fixed ({own.simpleString()}) and cannot be set; choose columns with the option columns"
        )
