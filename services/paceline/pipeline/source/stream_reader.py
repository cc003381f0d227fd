"""The streaming reader that Spark calls: an instance on the driver for the life of the query, and copies in the tasks.

Spark calls `initialOffset` twice before the first batch, so the reader keeps the result. Spark has no read limit that
combines a minimum with a maximum or with a delay, so Spark receives one limit and the planner applies the others.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from paceline.pipeline.errors import InvalidOptionError
from paceline.pipeline.source.options import ReadOptions
from paceline.pipeline.source.reader import OffsetRangesPartition, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.pipeline.source.stream_offset import StreamOffset
    from paceline.pipeline.source.stream_planner import StreamPlanner

KEPT_FORMS: Final = 4
"""Number of offsets kept: start and end of a batch, the end of the topics, and the previous end."""


class PacelineStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads the subscribed topics in micro-batches."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._planner: StreamPlanner | None = None
        self._initial: dict[str, Any] | None = None
        self._forms: list[tuple[dict[str, Any], StreamOffset]] = []

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start offsets of a new query, the same on every call."""
        if self._initial is None:
            self._initial = self._driver().initial().to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that Spark passes to `latestOffset` unless the trigger asks for all available records."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end offsets of the next batch."""
        options = self._options
        limits: tuple[int | None, int | None, int | None] = (None, None, None)
        if not isinstance(limit, ReadAllAvailable):
            limits = (
                limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_offsets_per_trigger,
                limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes_per_trigger,
                limit.min_rows if isinstance(limit, ReadMinRows) else options.min_offsets_per_trigger,
            )
        begin = self._offset_of(start)
        end = self._driver().latest(begin, *limits)
        return start if end is begin else self._form_of(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the end offsets of the topics, which Spark shows in the query's progress."""
        latest = self._driver().report_latest()
        return None if latest is None else self._form_of(latest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at the current end offsets."""
        self._driver().prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one input partition per task of the batch."""
        planner = self._driver()
        tasks = planner.tasks(self._offset_of(start), self._offset_of(end))
        return [OffsetRangesPartition(ranges, planner.fallback_servers()) for ranges in tasks]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the task's records as Arrow record batches."""
        return read_ranges(self._options, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: Spark's checkpoint keeps the offsets."""

    def stop(self) -> None:
        """Close the connections of the driver's process for this query."""
        if self._planner is not None:
            from paceline_client.process_channels import close_channels

            self._planner = None
            close_channels()

    def _offset_of(self, form: dict[str, Any]) -> "StreamOffset":
        """Return the offsets of a JSON form; the offsets of the last forms are kept, because Spark passes them back."""
        from paceline.pipeline.source.stream_offset import StreamOffset

        known = next((offset for kept, offset in self._forms if kept == form), None)
        return known or self._keep(form, StreamOffset.from_json(form))

    def _form_of(self, offset: "StreamOffset") -> dict[str, Any]:
        known = next((form for form, kept in self._forms if kept is offset), None)
        if known is None:
            known = offset.to_json()
            self._keep(known, offset)
        return known

    def _keep(self, form: dict[str, Any], offset: "StreamOffset") -> "StreamOffset":
        self._forms = [(form, offset), *self._forms[: KEPT_FORMS - 1]]
        return offset

    def _driver(self) -> "StreamPlanner":
        if self._planner is None:
            from paceline.pipeline.source.stream_planner import StreamPlanner

            self._planner = StreamPlanner(self._options, self._options.view())
        return self._planner

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the driver's state: tasks get only the options."""
        return {"_options": self._options, "_planner": None, "_initial": None, "_forms": []}


class RefusedStreamReader(PacelineStreamReader):
    """Raises the error of an option in the first call that plans a batch.

    If `PacelineDataSource.streamReader` raised it, PySpark would hide it, because it stops the missing reader.
    """

    def __init__(self, options: ReadOptions, error: InvalidOptionError) -> None:
        super().__init__(options)
        self._error = error

    def _driver(self) -> NoReturn:
        raise self._error
