"""Read records of a topic within limits of records, bytes and seconds."""

import heapq
import time
from collections.abc import Sequence
from typing import Any, Final

from paceline.console.pages.messages import MOST_PARTITIONS, Found, Wish, bytes_of, matches
from paceline.model.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.operations.times import parse_moment
from paceline_client import Consumer

_POLL_MS: Final = 100
_AT_ONCE: Final = 200
"""Records of one poll."""


def chosen_partitions(topic: str, known: Sequence[int], wish: Wish) -> list[TopicPartition]:
    """Return the partitions to read, at most 200.

    Raises:
        UnknownTopicOrPartitionError: the wanted partition does not exist.
    """
    wanted = list(wish.positions) or (known if wish.partition is None else [wish.partition])
    if missing := sorted(set(wanted) - set(known)):
        raise UnknownTopicOrPartitionError(f"topic {topic} has {len(known)} partitions, no partition {missing[0]}")
    return [TopicPartition(topic, one) for one in wanted[:MOST_PARTITIONS]]


def read(consumer: Consumer, topic: str, known: Sequence[int], wish: Wish) -> Found:
    """Read the wanted records up to the present end of the log.

    Raises:
        UnknownTopicOrPartitionError: the wanted partition does not exist.
        ValueError: the wanted time is not a time.
        PacelineError: a leader did not answer in time.
    """
    partitions = chosen_partitions(topic, known, wish)
    deadline = time.monotonic() + wish.seconds
    ends = consumer.end_offsets(partitions)
    starts = _starts(consumer, partitions, ends, wish)
    left_out = len(known) - len(partitions) if wish.partition is None and not wish.positions else 0
    open_ = [tp for tp in partitions if starts[tp] < ends[tp]]
    if open_:
        consumer.assign(open_)
        for tp in open_:
            consumer.seek(tp, starts[tp])
    positions = dict(starts)
    is_newest = wish.start == "newest" and not wish.positions
    newest: list[tuple[tuple[int, int, int], Any]] = []
    records: list[Any] = []
    scanned = scanned_bytes = 0
    reason = "the end of the log is reached"
    while any(positions[tp] < ends[tp] for tp in open_):
        if time.monotonic() > deadline:
            reason = f"{wish.seconds} s have passed"
            break
        if scanned_bytes >= wish.mebibytes << 20:
            reason = f"{wish.mebibytes} MiB were read"
            break
        if not is_newest and len(records) >= wish.records:
            reason = f"{wish.records:,} records were found"
            break
        polled = consumer.poll(_POLL_MS, _AT_ONCE if is_newest or wish.text else wish.records - len(records))
        for tp, batch in polled.items():
            for record in batch:
                if record.offset >= ends[tp]:
                    positions[tp] = ends[tp]
                    break
                if not is_newest and len(records) >= wish.records:
                    break
                scanned += 1
                scanned_bytes += bytes_of(record)
                positions[tp] = record.offset + 1
                if not matches(wish, record):
                    continue
                if not is_newest:
                    records.append(record)
                    continue
                age = (record.timestamp_ms or 0, record.partition, record.offset)
                heapq.heappush(newest, (age, record))
                if len(newest) > wish.records:
                    heapq.heappop(newest)
            else:
                # The last offsets of a compacted log, and transaction markers, are no records.
                positions[tp] = max(positions[tp], consumer.position(tp))
    if is_newest:
        records = [record for _, record in sorted(newest, key=lambda one: one[0], reverse=True)]
    return Found(
        records=list(reversed(records)) if wish.start == "tail" else records,
        scanned=scanned,
        scanned_bytes=scanned_bytes,
        reason=reason,
        positions={tp.partition: offset for tp, offset in positions.items()},
        left_out=left_out,
    )


def _starts(
    consumer: Consumer, partitions: Sequence[TopicPartition], ends: dict[TopicPartition, int], wish: Wish
) -> dict[TopicPartition, int]:
    """Return the offset where the reading of each partition begins, within the log."""
    if wish.start == "tail" and not wish.positions:
        return dict(ends)
    firsts = consumer.beginning_offsets(partitions)
    if wish.positions:
        wanted = {tp: wish.positions[tp.partition] for tp in partitions}
    elif wish.start == "newest":
        wanted = {tp: ends[tp] - wish.records for tp in partitions}
    elif wish.start == "offset":
        wanted = dict.fromkeys(partitions, int(wish.place))
    elif wish.start == "time":
        plain = wish.place.removeprefix("@")
        moment_ms = int(plain) if plain != wish.place and plain.isdecimal() else parse_moment(wish.place)
        if moment_ms is None:
            raise ValueError("place must be a time such as 10m (ago), 2026-11-21T17:00 or @MS, as from is time")
        found = consumer.offsets_for_times(dict.fromkeys(partitions, moment_ms))
        wanted = {tp: ends[tp] if place is None else place.offset for tp, place in found.items()}
    else:
        wanted = firsts
    return {tp: min(max(wanted[tp], firsts[tp]), ends[tp]) for tp in partitions}


def read_one(consumer: Consumer, where: TopicPartition, offset: int, seconds: float) -> Any:
    """Return the record at an offset.

    Raises:
        OffsetOutOfRangeError: there is no such record.
    """
    first, end = consumer.beginning_offsets([where])[where], consumer.end_offsets([where])[where]
    if not first <= offset < end:
        raise OffsetOutOfRangeError(f"{where} has no record at {offset}: its log is from {first} to {end}")
    consumer.assign([where])
    consumer.seek(where, offset)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for record in consumer.poll(_POLL_MS, 1).get(where, ()):
            if record.offset == offset:
                return record
            raise OffsetOutOfRangeError(f"{where} has no record at {offset}: the next one is at {record.offset}")
    raise OffsetOutOfRangeError(f"{where}: no record at {offset} was read within {seconds:.0f} s")
