"""Plan the next batch of an ingest: from the tables' progress to the log's end, within a number of bytes. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from paceline.pipeline.errors import DataLossError
from paceline.pipeline.jobs.lake.table import Source


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Where one partition's log starts (inclusive) and ends (exclusive)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """Offsets of one source, start inclusive, end exclusive."""

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
    """Return what the next batch copies; ranges may be empty where only the progress has to be noted.

    A batch of fewer records than there are takes the same part of every source, and at least one record of each.

    Raises:
        DataLossError: records that were not copied are gone and ``allow_data_loss`` is false.
    """
    wanted: list[PlannedRange] = []
    for source, log in sorted(logs.items()):
        known = progress.get(source)
        start = known if known is not None else (log.end if start_at_latest else log.start)
        if known is not None and not log.start <= known <= log.end:
            gone = f"offsets {known} to {log.start - 1} are gone" if known < log.start else f"the log ends at {log.end}"
            if not allow_data_loss:
                raise DataLossError(
                    f"{source.topic}-{source.partition}: the table has everything before {known}, but {gone}; "
                    "--allow-data-loss copies what is left",
                    log.start,
                    log.end,
                )
            start = min(max(known, log.start), log.end)
        if start < log.end or (known is None and start_at_latest):
            wanted.append(PlannedRange(source, start, log.end))
    total = sum(each.end - each.start for each in wanted)
    if total <= max_records:
        return wanted
    share = max_records / total
    return [
        PlannedRange(each.source, each.start, min(each.end, each.start + ceil((each.end - each.start) * share)))
        for each in wanted
    ]
