"""Check what a gateway promises: nothing lost, order per partition, doubles only where they are allowed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tests.conformance.answers import ScenarioError
from tests.conformance.samples import Read

SLACK_S: Final = 2.0
"""Longest time between a delivery and the moment at which its line was read, on a busy machine."""

Committed = Mapping[int, int]
"""Committed positions by partition."""


def check_log(log: Mapping[tuple[int, int], bytes], sent: Sequence[bytes], most_doubles: int) -> int:
    """Check the values in a log by partition and offset against the values in the order of sending; return the doubles.

    Raises:
        ScenarioError: a value is missing or was not sent, the values of a partition are out of order, or more than
            ``most_doubles`` values are in the log twice.
    """
    number = {value: index for index, value in enumerate(sent)}
    found = set(log.values())
    if found != set(sent):
        raise ScenarioError(f"{len(set(sent) - found)} of {len(sent)} values lost, {len(found - set(sent))} never sent")
    latest: dict[int, int] = {}
    seen: set[bytes] = set()
    for (partition, offset), value in sorted(log.items()):
        if value in seen:
            continue
        seen.add(value)
        if number[value] < latest.get(partition, -1):
            raise ScenarioError(f"partition {partition}, offset {offset}: {value!r} comes after a later value")
        latest[partition] = number[value]
    doubles = len(log) - len(sent)
    if doubles > most_doubles:
        raise ScenarioError(f"{doubles} values twice, at most {most_doubles} were repeated")
    return doubles


def check_deliveries(reads: Iterable[Read], committed: Sequence[tuple[float, Committed]]) -> int:
    """Check the deliveries of a group, with its committed positions and the times at which they were observed.

    A record is delivered in order, or again if it is not below a position that was committed by then. Return the number
    of records that were delivered again.

    Raises:
        ScenarioError: a record was skipped for longer than `SLACK_S`, or delivered again below a committed position.
    """
    next_offset: dict[int, int] = {}
    ahead: dict[int, dict[int, float]] = {}
    """Records by partition that were delivered before an earlier record, with their times."""
    doubles, index = 0, 0
    positions: Committed = {}
    for read in sorted(reads, key=lambda one: one.at_s):
        while index < len(committed) and committed[index][0] < read.at_s - SLACK_S:
            positions = committed[index][1]
            index += 1
        partition, waiting = read.partition, ahead.setdefault(read.partition, {})
        expected = next_offset.setdefault(partition, 0)
        if read.offset < expected or read.offset in waiting:
            doubles += 1
            if read.offset < positions.get(partition, 0):
                raise ScenarioError(f"{read} was delivered again below the committed position {positions[partition]}")
            continue
        waiting[read.offset] = read.at_s
        while expected in waiting:
            del waiting[expected]
            expected += 1
        next_offset[partition] = expected
        late = [offset for offset, at_s in waiting.items() if read.at_s - at_s > SLACK_S]
        if late:
            raise ScenarioError(f"partition {partition}: {late[0]} was delivered, {expected} was not")
    skipped = {partition: next_offset[partition] for partition, waiting in ahead.items() if waiting}
    if skipped:
        raise ScenarioError(f"offsets by partition that were never delivered: {skipped}")
    return doubles
