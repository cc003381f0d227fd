"""Plan a streaming query on the driver: start offsets, end offsets of the next batch, and the ranges of its tasks.

A planner lives as long as the query and keeps topics, record sizes and the latest offsets. The offsets in Spark's
checkpoint hold all state that a restarted query needs, see `stream_offset`.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from paceline.model.errors import UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.pipeline.errors import DataLossError
from paceline.pipeline.source.admission import MinimumHold, Offsets, limit_ends
from paceline.pipeline.source.offset_ranges import OffsetRange, pack
from paceline.pipeline.source.options import ReadOptions
from paceline.pipeline.source.planning import (
    DEFAULT_RECORD_BYTES,
    all_found,
    bytes_per_record,
    resolve_partitions,
    resolve_starts,
)
from paceline.pipeline.source.stream_offset import StreamOffset
from paceline_client import TopicDescription
from paceline_client.cluster_view import EARLIEST, LATEST, ClusterView

IDLE_POLL_MS: Final = 100
"""Pause between two ListOffsets calls of an idle query, which without a trigger interval would send 30 a second."""
SIZES_VALID_MS: Final = 30_000
REFRESH_MS: Final = 1_000
DESCRIBE_INTERVAL: Final = 10
"""Without the option ``metadataRefreshMs``, the planner waits this many times the duration of the last description
before it describes the topics again: describing thousands of partitions takes too long for every batch."""


class StreamPlanner:
    """Plans the batches of one streaming query."""

    def __init__(
        self,
        options: ReadOptions,
        cluster: ClusterView,
        now_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._now_ms = now_ms
        self._sleep = sleep
        self._topics: dict[str, TopicDescription] = {}
        self._partitions: tuple[TopicPartition, ...] = ()
        self._describe_ms = 0
        self._described_ms: int | None = None
        self._asked_ms: int | None = None
        self._was_idle = False
        self._latest: StreamOffset | None = None
        self._released: StreamOffset | None = None
        self._target: StreamOffset | None = None
        self._first_offsets: dict[tuple[str, TopicPartition], int] = {}
        self._sizes: dict[str, tuple[int, float]] = {}
        minimum = options.min_offsets_per_trigger
        self._hold = None if minimum is None else MinimumHold(minimum, options.max_trigger_delay_ms)

    def initial(self) -> StreamOffset:
        """Return the start offsets of a new query.

        Raises:
            UnknownTopicOrPartitionError: a named topic or partition does not exist.
            InvalidOptionError: the starting offsets do not name the partitions of the topics.
            DataLossError: a starting offset is outside the log and ``failOnDataLoss`` is true.
            PacelineError: the cluster did not answer in time.
        """
        self._describe(must_exist=True)
        earliest = all_found(self._cluster.list_offsets(self._partitions, EARLIEST))
        latest = all_found(self._cluster.list_offsets(self._partitions, LATEST))
        starts = resolve_starts(self._options, self._cluster, self._partitions, earliest, latest)
        for tp, start in starts.items():
            if not earliest[tp] <= start <= latest[tp]:
                self._lose(
                    f"{tp}: the query starts at {start}, the log has {earliest[tp]} to {latest[tp]}",
                    earliest[tp],
                    latest[tp],
                )
        bounded = {tp: min(max(start, earliest[tp]), latest[tp]) for tp, start in starts.items()}
        if self._target is not None:
            # Spark has called `prepare_available_now` before: the fixed end may lack partitions, and the fixed end of a
            # partition may be below its start offset.
            target = {tp: max(self._target.offsets.get(tp, 0), start) for tp, start in bounded.items()}
            self._target = StreamOffset({**self._target.offsets, **target}, {**self._target.topic_ids, **self._ids()})
        return StreamOffset(bounded, self._ids())

    def latest(
        self, start: StreamOffset, max_records: int | None, max_bytes: int | None, min_records: int | None
    ) -> StreamOffset:
        """Return the end offsets of the next batch; ``start`` itself when there is nothing to read yet.

        Args:
            start: end offsets of the previous batch.
            max_records: limit of the batch, None for no limit.
            max_bytes: limit of the batch in bytes, computed from the mean record size of each topic.
            min_records: hold the batch back while fewer records are available, for at most ``maxTriggerDelay``.

        Raises:
            DataLossError: a partition was deleted, or its log ends before ``start``, and ``failOnDataLoss`` is true.
            PacelineError: the cluster did not answer in time.
        """
        ends = self._keep_missing(start, self._ask_latest(start))
        begins = self._begins(start, ends)
        offsets = ends.offsets
        moved = [(tp, begin) for tp, begin in begins.items() if offsets[tp] != begin]
        for tp, begin in moved:
            if offsets[tp] < begin:
                self._lose(f"{tp}: read up to {begin}, the log ends at {offsets[tp]}", 0, offsets[tp])
        new_records = sum(max(0, offsets[tp] - begin) for tp, begin in moved)
        self._was_idle = new_records == 0
        if min_records is not None and self._hold is not None and self._target is None:
            self._hold.min_records = min_records
            now_ms = self._now_ms()
            if new_records and self._hold.should_hold(new_records, now_ms):
                self._was_idle = True
                return start
            if new_records:
                self._hold.release(now_ms)
        limited = offsets
        if max_records is not None:
            limited = limit_ends(begins, limited, max_records)
        if max_bytes is not None:
            weights = self._bytes_per_record(begins, limited)
            limited = limit_ends(begins, limited, max_bytes, weights)
        # Without a limit return the latest offsets themselves: the reader then converts one object to JSON, not two.
        found = ends if limited is offsets else StreamOffset(limited, ends.topic_ids)
        self._released = start if found == start else found
        return self._released

    def prepare_available_now(self) -> None:
        """Fix the end of the query at the current end offsets."""
        self._target = None
        self._target = self._ask_latest(None)

    def report_latest(self) -> StreamOffset | None:
        """Return the end offsets of the topics when the planner last listed them; None before that."""
        return self._latest

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[list[OffsetRange]]:
        """Return the ranges of each task of the batch from ``start`` to ``end``.

        Raises:
            DataLossError: a partition that is new to the query starts after offset 0, or the log ends before ``end``,
                and ``failOnDataLoss`` is true.
            PacelineError: the cluster did not answer in time.
        """
        if any(self._cluster.topic(topic) is None for topic in {tp.topic for tp in end.offsets}):
            self._cluster.describe_topics(sorted({tp.topic for tp in end.offsets}))
        begins = self._begins(start, end)
        ends = dict(end.offsets)
        if end is not self._released and end != self._released:
            # The batch was planned before the query restarted: the log may have become shorter since then.
            self._clip_to_log(begins, ends, end.topic_ids)
        changed = [tp for tp, begin in begins.items() if begin < ends[tp]]
        sizes = self._bytes_per_record({tp: begins[tp] for tp in changed}, ends)
        ranges = [
            OffsetRange(
                tp.topic,
                tp.partition,
                begins[tp],
                ends[tp],
                end.topic_ids.get(tp.topic, ""),
                self._cluster.leader_address(tp) or "",
                sizes[tp.topic],
            )
            for tp in changed
        ]
        return pack(
            ranges,
            self._options.max_tasks,
            self._options.target_task_bytes,
            self._options.min_partitions,
            self._options.max_records_per_partition,
        )

    def fallback_servers(self) -> tuple[str, ...]:
        """Return broker addresses that tasks may use in addition to the bootstrap servers."""
        return self._cluster.fallback_servers()

    def _ask_latest(self, start: StreamOffset | None) -> StreamOffset:
        """Return the end offset of every partition, or the end that `prepare_available_now` has fixed."""
        if self._target is not None:
            return self._target
        now_ms = self._now_ms()
        if self._was_idle and self._asked_ms is not None and now_ms - self._asked_ms < IDLE_POLL_MS:
            self._sleep((self._asked_ms + IDLE_POLL_MS - now_ms) / 1000)
        refresh_ms = self._options.metadata_refresh_ms or max(REFRESH_MS, DESCRIBE_INTERVAL * self._describe_ms)
        if self._described_ms is None or self._now_ms() - self._described_ms >= refresh_ms:
            self._describe(must_exist=False)
        try:
            offsets = all_found(self._cluster.list_offsets(self._partitions, LATEST))
        except UnknownTopicOrPartitionError:
            # A topic was deleted after the last description.
            self._describe(must_exist=False)
            offsets = all_found(self._cluster.list_offsets(self._partitions, LATEST))
        if start is not None and any(offsets.get(tp, 0) < offset for tp, offset in start.offsets.items()):
            # The log ends before the query's position: the topic may have been re-created after the last description.
            self._describe(must_exist=False)
            offsets = all_found(self._cluster.list_offsets(self._partitions, LATEST))
        self._asked_ms = self._now_ms()
        self._latest = StreamOffset(offsets, self._ids())
        return self._latest

    def _keep_missing(self, start: StreamOffset, end: StreamOffset) -> StreamOffset:
        """Add the previous offsets of partitions that are missing from the metadata to the end offsets.

        A broker that has just started may not know a topic for a moment; without the added offsets the query would read
        the topic from its beginning again.

        Raises:
            DataLossError: a partition is missing and ``failOnDataLoss`` is true.
        """
        gone = sorted(
            tp
            for tp in start.offsets.keys() - end.offsets.keys()
            if end.topic_ids.get(tp.topic) in (None, start.topic_ids.get(tp.topic), "")
        )
        if not gone:
            return end
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        there = self._cluster.describe_topics([gone[0].topic]).get(gone[0].topic)
        is_left = there is not None and gone[0].partition < len(there.partitions)
        self._lose(f"{gone[0]}{more} {'is not subscribed any more' if is_left else 'no longer exists'}")
        ids = {tp.topic: start.topic_ids.get(tp.topic, "") for tp in gone}
        return StreamOffset({**end.offsets, **{tp: start.offsets[tp] for tp in gone}}, {**ids, **end.topic_ids})

    def _describe(self, must_exist: bool) -> None:
        began_ms = self._now_ms()
        self._topics, found = resolve_partitions(self._options, self._cluster, must_exist)
        self._described_ms = self._now_ms()
        self._describe_ms = self._described_ms - began_ms
        if tuple(found) != self._partitions:
            self._partitions = tuple(found)

    def _ids(self) -> dict[str, str]:
        return {name: topic.topic_id for name, topic in self._topics.items()}

    def _begins(self, start: StreamOffset, end: StreamOffset) -> Offsets:
        """Return the first offset to read of every partition in ``end``.

        A partition that is not in ``start``, or that belongs to a re-created topic, is read from its beginning.
        """
        recreated = {
            topic
            for topic, topic_id in end.topic_ids.items()
            if topic_id and start.topic_ids.get(topic, topic_id) not in ("", topic_id)
        }
        for topic in sorted(recreated):
            self._lose(f"topic {topic} was deleted and re-created while the query ran")
        if not recreated and start.offsets.keys() == end.offsets.keys():
            return start.offsets
        begins: dict[TopicPartition, int] = {}
        new: list[TopicPartition] = []
        for tp in end.offsets:
            if tp in start.offsets and tp.topic not in recreated:
                begins[tp] = start.offsets[tp]
            else:
                new.append(tp)
        begins.update(self._first_offsets_of(new, end.topic_ids))
        return begins

    def _first_offsets_of(self, new: Iterable[TopicPartition], topic_ids: Mapping[str, str]) -> Offsets:
        """Return the log start offsets of new partitions; a log start offset above 0 is a data loss."""
        keys = {tp: (topic_ids.get(tp.topic, ""), tp) for tp in new}
        unknown = [tp for tp, key in keys.items() if key not in self._first_offsets]
        if unknown:
            for tp, first in all_found(self._cluster.list_offsets(unknown, EARLIEST)).items():
                if first > 0:
                    self._lose(f"{tp} is new to the query and starts at offset {first} instead of 0", first)
                self._first_offsets[keys[tp]] = first
        return {tp: self._first_offsets[key] for tp, key in keys.items()}

    def _clip_to_log(
        self, begins: Mapping[TopicPartition, int], ends: dict[TopicPartition, int], topic_ids: Mapping[str, str]
    ) -> None:
        """Lower ends to the end of the log; keep the ends of a deleted topic, because the tasks report its loss."""
        there = [
            tp
            for tp in begins
            if begins[tp] < ends[tp]
            and (topic := self._cluster.topic(tp.topic)) is not None
            and topic.topic_id == topic_ids.get(tp.topic, topic.topic_id)
            and tp.partition < len(topic.partitions)
        ]
        for tp, last in all_found(self._cluster.list_offsets(there, LATEST)).items():
            if last < ends[tp]:
                self._lose(f"{tp}: the batch ends at {ends[tp]}, the log ends at {last}", 0, last)
                ends[tp] = last

    def _bytes_per_record(self, begins: Offsets, ends: Offsets) -> dict[str, float]:
        """Return the mean stored size of a record by topic, sampled from its largest range every `SIZES_VALID_MS`."""
        now_ms = self._now_ms()
        topics = {tp.topic for tp, begin in begins.items() if ends[tp] > begin}
        stale = {each for each in topics if each not in self._sizes or now_ms - self._sizes[each][0] >= SIZES_VALID_MS}
        if stale and self._target is not None:
            # With a fixed end nothing else describes topics, and leaders may have moved.
            self._cluster.describe_topics(sorted(stale))
        largest: dict[str, OffsetRange] = {}
        for tp, begin in begins.items():
            topic, size = tp.topic, ends[tp] - begin
            more = topic in stale and size > (largest[topic].records if topic in largest else 0)
            if more and (leader := self._cluster.leader_address(tp)):
                largest[topic] = OffsetRange(topic, tp.partition, begin, ends[tp], "", leader)
        self._sizes |= {topic: (now_ms, size) for topic, size in bytes_per_record(self._cluster, largest).items()}
        return {topic: self._sizes.get(topic, (0, DEFAULT_RECORD_BYTES))[1] for topic in topics}

    def _lose(self, lost: str, first: int = 0, last: int = 0) -> None:
        """Raise DataLossError if ``failOnDataLoss`` is true."""
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{lost}; set failOnDataLoss to false to read the remaining records", first, last)
