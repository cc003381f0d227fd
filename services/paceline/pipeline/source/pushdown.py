"""Filters that become seek positions: ``topic``, ``partition``, ``offset`` and the lower bound of ``timestamp``.

The first three are exact, so Spark does not filter by them again. A timestamp only moves the start: all records before
the first record at or after the timestamp are older, but older records may follow that record. Spark therefore filters
by timestamp again, and an upper bound cannot end a read (docs/spark.md#options, ``pushdown``).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL = {"topic", "partition", "offset", "timestamp", "timestampType"}


@dataclass(slots=True)
class Interval:
    """Whole numbers from ``low`` to ``high``, both inclusive, None for no bound."""

    low: int | None = None
    high: int | None = None

    def at_least(self, number: int) -> None:
        self.low = number if self.low is None else max(self.low, number)

    def at_most(self, number: int) -> None:
        self.high = number if self.high is None else min(self.high, number)

    def __contains__(self, number: int) -> bool:
        return (self.low is None or number >= self.low) and (self.high is None or number <= self.high)


@dataclass(slots=True)
class PushedFilters:
    """The records that pass the accepted filters, as bounds on topic, partition, offset and time."""

    topics: set[str] | None = None
    partitions: set[int] | None = None
    partition_range: Interval = field(default_factory=Interval)
    offsets: Interval = field(default_factory=Interval)
    since_ms: int | None = None

    def wants(self, topic: str, partition: int) -> bool:
        """Return whether a record of the partition can pass the filters."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and partition in self.partition_range
        )

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Narrow the bounds by the filters; return the filters that Spark has to apply itself."""
        return [each for each in filters if not self._accept(each)]

    def _accept(self, each: Filter) -> bool:
        column = ".".join(getattr(each, "attribute", ()))
        if isinstance(each, IsNotNull):
            return column in _NEVER_NULL
        value = getattr(each, "value", None)
        if column == "topic":
            return self._accept_topic(each, value)
        if column == "partition" and isinstance(each, In) and all(_is_whole(number) for number in each.value):
            self.partitions = set(each.value) if self.partitions is None else self.partitions & set(each.value)
            return True
        if column == "partition":
            return _narrow(self.partition_range, each, value)
        if column == "offset":
            return _narrow(self.offsets, each, value)
        if column == "timestamp":
            self._seek(each, value)
        return False

    def _accept_topic(self, each: Filter, value: Any) -> bool:
        if isinstance(each, EqualTo | EqualNullSafe) and isinstance(value, str):
            names = {value}
        elif isinstance(each, In) and all(isinstance(name, str) for name in each.value):
            names = set(each.value)
        else:
            return False
        self.topics = names if self.topics is None else self.topics & names
        return True

    def _seek(self, each: Filter, value: Any) -> None:
        is_lower_bound = isinstance(each, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual)
        if not is_lower_bound or not isinstance(value, datetime) or value.tzinfo is None:
            return
        # Round down: a record of that millisecond may be before or after the microsecond in the filter.
        since_ms = (value - _EPOCH) // timedelta(milliseconds=1)
        self.since_ms = since_ms if self.since_ms is None else max(self.since_ms, since_ms)


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _narrow(interval: Interval, each: Filter, value: Any) -> bool:
    if not _is_whole(value):
        return False
    if isinstance(each, EqualTo | EqualNullSafe):
        interval.at_least(value)
        interval.at_most(value)
    elif isinstance(each, GreaterThan | GreaterThanOrEqual):
        interval.at_least(value + isinstance(each, GreaterThan))
    elif isinstance(each, LessThan | LessThanOrEqual):
        interval.at_most(value - isinstance(each, LessThan))
    else:
        return False
    return True
