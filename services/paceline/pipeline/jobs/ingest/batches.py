"""Plan the next batch of an ingest: from the tables' offsets to the log's end, limited in bytes. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from paceline.pipeline.errors import DataLossError
from paceline.pipeline.jobs.lake.table import Source


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Log start offset (inclusive) and log end offset (exclusive) of a partition."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """Offsets of a source, start inclusive, end exclusive."""

    source: Source
    start: int
    end: int


def plan_batch(
    logs: Mapping[Source, LogEnds],
    progress: Mapping[Source, int],
    max_records: int,
    start_at_latest: bool,
    allow_data_loss: bool,
) -> list[PlannedRange]:
    """Return the ranges of the next batch; a range may be empty when only the progress must be stored.

    A limited batch takes the same fraction of every source, and at least one record of each.

    Raises:
        DataLossError: records were deleted before they were copied, and ``allow_data_loss`` is false.
    """
    wanted: list[PlannedRange] = []
    for source, log in sorted(logs.items()):
        known = progress.get(source)
        start = known if known is not None else (log.end if start_at_latest else log.start)
        if known is not None and not log.start <= known <= log.end:
            gone = (
                f"offsets {known} to {log.start - 1} were deleted"
                if known < log.start
                else f"the log ends at {log.end}"
            )
            if not allow_data_loss:
                raise DataLossError(
                    f"{source.topic}/{source.partition}: the table has the offsets below {known}, but {gone}; "
                    "--allow-data-loss copies the remaining records",
                    log.start,
                    log.end,
                )
            start = min(max(known, log.start), log.end)
        is_moved = start_at_latest if known is None else start != known
        if start < log.end or is_moved:
            wanted.append(PlannedRange(source, start, log.end))
    total = sum(each.end - each.start for each in wanted)
    if total <= max_records:
        return wanted
    share = max_records / total
    return [
        PlannedRange(each.source, each.start, min(each.end, each.start + ceil((each.end - each.start) * share)))
        for each in wanted
    ]
