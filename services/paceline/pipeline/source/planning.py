"""Turn options into offset ranges: partitions, start and end offsets, checked for lost data. Runs on the driver.

Source: Spark's KafkaOffsetReader and KafkaRelation.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import grpc

from paceline.model.errors import PacelineError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.pipeline.decode.batch_index import FetchedSlice, index_batches
from paceline.pipeline.errors import DataLossError, InvalidOptionError
from paceline.pipeline.source.offset_ranges import OffsetRange, pack
from paceline.pipeline.source.offset_specs import (
    EARLIEST_MARK,
    LATEST_MARK,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Earliest,
    Latest,
    OffsetSpec,
)
from paceline.pipeline.source.options import ReadOptions
from paceline.pipeline.source.pushdown import PushedFilters
from paceline_client import TopicDescription
from paceline_client.cluster_view import EARLIEST, LATEST, TIMESTAMP, ClusterView
from paceline_client.fetch_session import WantedPartition

SAMPLED_TOPICS: Final = 8
SAMPLE_BYTES: Final = 64 * 1024
SAMPLE_TIMEOUT_S: Final = 5.0
DEFAULT_RECORD_BYTES: Final = 1024.0

_Offsets = Mapping[TopicPartition, int]


def plan_tasks(
    options: ReadOptions, cluster: ClusterView, pushed: PushedFilters | None = None
) -> list[list[OffsetRange]]:
    """Return the offset ranges of each Spark task; an empty list when there is nothing to read.

    Raises:
        UnknownTopicOrPartitionError: a named topic or partition does not exist.
        InvalidOptionError: offsets do not name the partitions of the topics, or a partition has no record at or after
            the starting time.
        DataLossError: requested offsets are not in the log and ``failOnDataLoss`` is true.
        PacelineError: the cluster did not answer in time.
    """
    pushed = pushed or PushedFilters()
    topics, partitions = resolve_partitions(options, cluster)
    if not partitions:
        return []
    earliest = all_found(cluster.list_offsets(partitions, EARLIEST))
    latest = all_found(cluster.list_offsets(partitions, LATEST))
    starts = resolve_starts(options, cluster, partitions, earliest, latest)
    ends = _ends(options, cluster, partitions, latest)
    _check_order(options, starts, ends)
    ranges = []
    for tp in partitions:
        start, end = _within_log(options, tp, (starts[tp], ends[tp]), (earliest[tp], latest[tp]))
        start, end = _narrowed(pushed, tp, start, end)
        if start < end:
            topic_id, leader = topics[tp.topic].topic_id, cluster.leader_address(tp) or ""
            ranges.append(OffsetRange(tp.topic, tp.partition, start, end, topic_id, leader))
    ranges = _seek_to_time(cluster, pushed, ranges)
    return pack(
        _with_sizes(cluster, ranges),
        options.max_tasks,
        options.target_task_bytes,
        options.min_partitions,
        options.max_records_per_partition,
    )


def resolve_partitions(
    options: ReadOptions, cluster: ClusterView, must_exist: bool = True
) -> tuple[dict[str, TopicDescription], list[TopicPartition]]:
    """Return the topics and the sorted partitions of the subscription.

    Raises:
        UnknownTopicOrPartitionError: a named topic or partition does not exist and ``must_exist`` is true; otherwise
            it is left out.
        PacelineError: the cluster did not answer in time.
    """
    subscription = options.subscription
    if subscription.pattern is not None:
        pattern = re.compile(subscription.pattern)
        # Internal topics match only a pattern that itself starts with the prefix of internal topics.
        asks_internal = subscription.pattern.lstrip("^(").startswith("__")
        found = {
            name: topic
            for name, topic in cluster.describe_topics().items()
            if pattern.fullmatch(name) and (asks_internal or not name.startswith("__"))
        }
        return found, _partitions_of(found)
    names = subscription.topics or tuple(sorted({tp.topic for tp in subscription.partitions}))
    found = cluster.describe_topics(names)
    missing = [name for name in names if name not in found]
    if missing and must_exist:
        raise UnknownTopicOrPartitionError(f"topic {', '.join(missing)} does not exist")
    if not subscription.partitions:
        return found, _partitions_of(found)
    for tp in subscription.partitions:
        if must_exist and tp.partition >= len(found[tp.topic].partitions):
            raise UnknownTopicOrPartitionError(
                f"assign names {tp}, but {tp.topic} has {len(found[tp.topic].partitions)} partitions"
            )
    counts = {name: len(topic.partitions) for name, topic in found.items()}
    return found, [tp for tp in subscription.partitions if tp.partition < counts.get(tp.topic, 0)]


def _partitions_of(topics: Mapping[str, TopicDescription]) -> list[TopicPartition]:
    return sorted(
        TopicPartition(name, number) for name, topic in topics.items() for number in range(len(topic.partitions))
    )


def all_found(offsets: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
    return {tp: 0 if offset is None else offset for tp, offset in offsets.items()}


def resolve_starts(
    options: ReadOptions,
    cluster: ClusterView,
    partitions: Sequence[TopicPartition],
    earliest: _Offsets,
    latest: _Offsets,
) -> dict[TopicPartition, int]:
    """Return the first offset to read of each partition from the options; it may be outside the log."""
    spec = options.starting
    if isinstance(spec, Earliest):
        return dict(earliest)
    if isinstance(spec, Latest):
        return dict(latest)
    if isinstance(spec, AtOffsets):
        _check_names(spec.option, spec.offsets, partitions)
        marks = {EARLIEST_MARK: earliest, LATEST_MARK: latest}
        return {tp: marks[at][tp] if at in marks else at for tp, at in spec.offsets.items()}
    starts = {}
    for tp, offset in _at_times(cluster, spec, partitions, latest).items():
        if offset is None and not options.timestamp_strategy_latest:
            raise InvalidOptionError(
                f"{tp} has no record at or after the starting time; set startingOffsetsByTimestampStrategy to latest "
                "to read nothing from such partitions"
            )
        starts[tp] = latest[tp] if offset is None else offset
    return starts


def _ends(
    options: ReadOptions, cluster: ClusterView, partitions: Sequence[TopicPartition], latest: _Offsets
) -> dict[TopicPartition, int]:
    spec = options.ending
    if isinstance(spec, AtOffsets):
        _check_names(spec.option, spec.offsets, partitions)
        return {tp: latest[tp] if at == LATEST_MARK else at for tp, at in spec.offsets.items()}
    if isinstance(spec, AtTimestamp | AtTimestamps):
        # None means that every record is older than the ending time: read to the end.
        return {tp: latest[tp] if at is None else at for tp, at in _at_times(cluster, spec, partitions, latest).items()}
    return dict(latest)


def _at_times(
    cluster: ClusterView, spec: OffsetSpec, partitions: Sequence[TopicPartition], latest: _Offsets
) -> dict[TopicPartition, int | None]:
    """Return the offset of the first record at or after each timestamp, None when every record is older.

    An offset after ``latest`` belongs to a record written since ``latest`` was read; it becomes ``latest``: the read
    ends before that record and loses nothing.
    """
    if isinstance(spec, AtTimestamps):
        _check_names(spec.option, spec.timestamps_ms, partitions)
        times = spec.timestamps_ms
    else:
        assert isinstance(spec, AtTimestamp)
        times = dict.fromkeys(partitions, spec.timestamp_ms)
    found = cluster.list_offsets(partitions, TIMESTAMP, times)
    return {tp: None if offset is None else min(offset, latest[tp]) for tp, offset in found.items()}


def _check_names(option: str, named: Mapping[TopicPartition, int], partitions: Sequence[TopicPartition]) -> None:
    missing = [str(tp) for tp in partitions if tp not in named]
    extra = [str(tp) for tp in sorted(set(named) - set(partitions))]
    if missing:
        raise InvalidOptionError(
            f"{option} must name every partition, -2 for earliest and -1 for latest; missing: {', '.join(missing)}"
        )
    if extra:
        raise InvalidOptionError(f"{option} names partitions that are not read: {', '.join(extra)}")


def _check_order(options: ReadOptions, starts: _Offsets, ends: _Offsets) -> None:
    """Refuse an end before the start when the user gave both as numbers.

    When a mark or a timestamp resolves to an end before the start, the partition has nothing to read.
    """
    if not (isinstance(options.starting, AtOffsets) and isinstance(options.ending, AtOffsets)):
        return
    for tp, start in starts.items():
        both_numbers = options.starting.offsets[tp] >= 0 and options.ending.offsets[tp] >= 0
        if both_numbers and start > ends[tp]:
            raise InvalidOptionError(f"{tp}: endingOffsets {ends[tp]} lies before startingOffsets {start}")


def _within_log(
    options: ReadOptions, tp: TopicPartition, asked: tuple[int, int], there: tuple[int, int]
) -> tuple[int, int]:
    """Return the part of the requested range that is in the log.

    Raises:
        DataLossError: a part of the range is not in the log and ``failOnDataLoss`` is true.
    """
    (start, end), (earliest, latest) = asked, there
    lost = ""
    if start < earliest:
        lost = f"offsets {start} to {earliest - 1} were deleted, the log starts at {earliest}"
    elif start > latest:
        lost = f"the read starts at {start}, the log ends at {latest}"
    elif end > latest:
        lost = f"the read ends at {end}, the log ends at {latest}"
    if lost and options.fail_on_data_loss:
        raise DataLossError(
            f"{tp}: {lost}; set failOnDataLoss to false to read the remaining records", earliest, latest
        )
    return min(max(start, earliest), latest), min(end, latest)


def _narrowed(pushed: PushedFilters, tp: TopicPartition, start: int, end: int) -> tuple[int, int]:
    if not pushed.wants(tp.topic, tp.partition):
        return start, start
    low, high = pushed.offsets.low, pushed.offsets.high
    return start if low is None else max(start, low), end if high is None else min(end, high + 1)


def _seek_to_time(cluster: ClusterView, pushed: PushedFilters, ranges: list[OffsetRange]) -> list[OffsetRange]:
    if pushed.since_ms is None or pushed.since_ms < 0 or not ranges:
        return ranges
    since = cluster.list_offsets(
        [each.topic_partition for each in ranges],
        TIMESTAMP,
        {each.topic_partition: pushed.since_ms for each in ranges},
    )
    narrowed = []
    for each in ranges:
        first = since[each.topic_partition]
        start = each.end if first is None else max(each.start, first)
        if start < each.end:
            narrowed.append(_replaced(each, start, each.bytes_per_record))
    return narrowed


def _replaced(each: OffsetRange, start: int, bytes_per_record: float) -> OffsetRange:
    return OffsetRange(each.topic, each.partition, start, each.end, each.topic_id, each.leader, bytes_per_record)


def _with_sizes(cluster: ClusterView, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges with an estimate of their stored size, from a small fetch of each of the largest topics."""
    records: dict[str, int] = {}
    largest: dict[str, OffsetRange] = {}
    for each in ranges:
        records[each.topic] = records.get(each.topic, 0) + each.records
        if each.topic not in largest or each.records > largest[each.topic].records:
            largest[each.topic] = each
    in_order = sorted(records, key=lambda topic: (-records[topic], topic))
    sizes = bytes_per_record(cluster, {topic: largest[topic] for topic in in_order})
    return [_replaced(each, each.start, sizes[each.topic]) for each in ranges]


def bytes_per_record(cluster: ClusterView, ranges: Mapping[str, OffsetRange]) -> dict[str, float]:
    """Return the mean stored size of a record by topic, from a small fetch at the start of each topic's range.

    Only the first `SAMPLED_TOPICS` topics are sampled; the other topics get the mean of the samples.
    """
    sizes = {topic: _sample_record_bytes(cluster, each) for topic, each in list(ranges.items())[:SAMPLED_TOPICS]}
    usual = sum(sizes.values()) / len(sizes) if sizes else DEFAULT_RECORD_BYTES
    return {topic: sizes.get(topic, usual) for topic in ranges}


def _sample_record_bytes(cluster: ClusterView, each: OffsetRange) -> float:
    """Return stored bytes per offset at the start of a range; return a default when the fetch fails."""
    if not each.leader:
        return DEFAULT_RECORD_BYTES
    wanted = {each.topic_partition: WantedPartition("", each.start, SAMPLE_BYTES)}
    try:
        answer = cluster.fetch(each.leader, wanted, SAMPLE_BYTES, SAMPLE_TIMEOUT_S).result()
        for part in answer.partitions:
            piece = FetchedSlice(each.topic, each.partition, part.begin, part.stop, each.start, each.end)
            index = index_batches(answer.data, [piece])
            if len(index):
                offsets = int(index.base_offset[-1] + index.last_offset_delta[-1] - index.base_offset[0]) + 1
                return max(1.0, float(index.size.sum()) / offsets)
    except (grpc.RpcError, PacelineError):
        pass
    return DEFAULT_RECORD_BYTES
