"""Interface of value parsers: a valid value becomes a typed row, an invalid value a `BadRow` with its reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from paceline.pipeline.jobs.values.columns import ValueColumn


class BadValueError(ValueError):
    """A value cannot be parsed."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """A stable identifier for counting, for example ``invalid-json``."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row whose value cannot be parsed; it becomes a dead letter."""

    row: int
    """Index in the batch."""
    reason: str
    message: str


class ValueParser(Protocol):
    """Parses one value at a time; see `json_values`, `protobuf_values` and `text_values`."""

    @property
    def columns(self) -> tuple[ValueColumn, ...]:
        """The columns that `parse` fills, in order."""

    def parse(self, value: bytes | None) -> Sequence[Any]:
        """Return one entry per column.

        Raises:
            BadValueError: the value does not fit the columns.
        """


@dataclass(frozen=True, slots=True)
class ParsedValues:
    """The parsed values of one batch, and the rows that could not be parsed."""

    arrays: dict[str, pa.Array]
    """Arrays by column name, without the rows in ``bad``."""
    bad: list[BadRow]


def parse_values(parser: ValueParser, values: pa.BinaryArray) -> ParsedValues:
    """Parse every value of a batch; a value that cannot be parsed is added to ``bad``, and parsing continues."""
    rows: list[Sequence[Any]] = []
    bad: list[BadRow] = []
    for number, value in enumerate(values.to_pylist()):
        try:
            rows.append(parser.parse(value))
        except BadValueError as error:
            bad.append(BadRow(number, error.reason, str(error)))
    by_column = list(zip(*rows, strict=True)) if rows else [()] * len(parser.columns)
    arrays = {
        column.name: pa.array(entries, type=column.arrow_type)
        for column, entries in zip(parser.columns, by_column, strict=True)
    }
    return ParsedValues(arrays, bad)
