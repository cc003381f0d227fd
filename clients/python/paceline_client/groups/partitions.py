"""The group methods of `Consumer`: commits, committed offsets, and partitions assigned by the group."""

import math
import threading
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence

from paceline.model.errors import InvalidRequestError
from paceline.model.identifiers import TopicPartition
from paceline_client.errors import ClientClosedError
from paceline_client.fetcher import Fetcher
from paceline_client.groups.group_consumer import ConsumerGroup
from paceline_client.groups.held_records import HeldRecords
from paceline_client.groups.values import CommitCallback, OffsetAndMetadata, Offsets
from paceline_client.metadata_refresher import MetadataRefresher
from paceline_client.records import ConsumerRecord
from paceline_client.subscription import Assignment, OffsetReset

CommittableOffsets = Mapping[TopicPartition, OffsetAndMetadata | int]


class GroupPartitions:
    """Commits of a consumer, and assignment of its partitions by the group."""

    _group: ConsumerGroup | None
    _lock: threading.RLock  # type: ignore[valid-type, unused-ignore]
    _news: threading.Condition
    _assignment: Assignment
    _fetcher: Fetcher
    _metadata: MetadataRefresher
    _reset: OffsetReset
    _api_timeout_ms: int
    _held: HeldRecords
    """Records of the last `poll_held`."""
    _closed: bool

    # For the application -----------------------------------------------------------------------------------------

    def commit(self, offsets: CommittableOffsets | None = None, timeout_ms: int | None = None) -> None:
        """Commit these offsets, or the positions after all records returned by `poll`, and wait.

        An offset is the next offset to read: the offset of the last processed record plus 1.

        Raises:
            CommitFailedError: the group has rebalanced without this member; another member may own the partitions.
            InvalidRequestError: the consumer has no ``group_id``.
            PacelineError: the coordinator refused, or did not answer in time.
        """
        self._with_group().commit_sync(_checked(offsets), self._timeout(timeout_ms))

    def commit_async(self, offsets: CommittableOffsets | None = None, callback: CommitCallback | None = None) -> None:
        """Commit without waiting; a later `poll` or `close` calls ``callback(offsets, error)``.

        A failed commit is not retried, because a later commit supersedes it.

        Raises:
            InvalidRequestError: the consumer has no ``group_id``.
        """
        self._with_group().commit_async(_checked(offsets), callback or _ignore)

    def committed(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of the group for partitions, None for a partition without a committed offset.

        Raises:
            InvalidRequestError: the consumer has no ``group_id``.
            PacelineError: the coordinator did not answer in time.
        """
        wanted = [TopicPartition(*one) for one in partitions]
        return self._with_group().committed(wanted, self._timeout(timeout_ms))

    def unsubscribe(self) -> None:
        """Leave the group and stop reading."""
        if self._group is not None:
            self._group.unsubscribe(self._api_timeout_ms)
        self.take_assignment([])

    @property
    def member_id(self) -> str:
        """Member id of this consumer; empty before the first join."""
        return "" if self._group is None else self._group.membership.member_id

    @property
    def generation(self) -> int:
        """Current generation of the group, -1 while this consumer is not a member."""
        return -1 if self._group is None else self._group.membership.generation

    def _with_group(self) -> ConsumerGroup:
        if self._closed:
            raise ClientClosedError("the consumer is closed")
        if self._group is None:
            raise InvalidRequestError("commits need a consumer with a group_id")
        return self._group

    def _timeout(self, timeout_ms: int | None) -> int:
        return self._api_timeout_ms if timeout_ms is None else timeout_ms

    # One record at a time -----------------------------------------------------------------------------------------

    @abstractmethod
    def position(self, topic_partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """Return the offset of the next record that `poll` will return."""

    @abstractmethod
    def poll(
        self, timeout_ms: int = 1_000, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return records by partition."""

    def records(self, timeout_ms: float = math.inf) -> Iterator[ConsumerRecord]:
        """Yield records until no record has arrived for ``timeout_ms``; commits include only yielded records."""
        quiet_since = time.monotonic()
        while True:
            left_ms = timeout_ms - (time.monotonic() - quiet_since) * 1000
            if left_ms <= 0:
                return
            polled = self.poll_held(int(min(1_000, max(1, left_ms))))
            try:
                yield from self.held_records()
            finally:
                self.give_back()
            if polled:
                quiet_since = time.monotonic()

    def poll_held(self, timeout_ms: int, max_records: int | None = None) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Poll for records that a commit includes only after `held_records` has returned them."""
        polled = self.poll(timeout_ms, max_records)
        self._held = HeldRecords(polled)
        return polled

    def held_records(self) -> Iterator[ConsumerRecord]:
        """Return the remaining records of the last `poll_held`; the iterator ends when they are given back."""
        return self._held.rest

    def take_all_held(self) -> None:
        """Count every record of the last `poll_held` as returned."""
        self._held.remove_all()

    def next_offset(self, topic_partition: TopicPartition) -> int:
        """Return the offset of the next record of `held_records` or of the next poll; raises as `position`."""
        offset = self._held.next_offset(topic_partition)
        return self.position(topic_partition) if offset is None else offset

    def give_back(self) -> None:
        """Seek back to the first held record of each partition, so that the next poll returns the records again."""
        with self._lock:
            held, self._held = self._held, HeldRecords({})
            offsets = held.remove_all()
            for tp, offset in offsets.items():
                state = self._assignment.find(tp)
                if state is not None:
                    state.seek(offset)
        if offsets:
            self._fetcher.interrupt()

    # For the group -----------------------------------------------------------------------------------------------

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions."""
        with self._lock:
            return [state.topic_partition for state in self._assignment.states() if not state.absent]

    def take_assignment(self, partitions: Sequence[TopicPartition]) -> None:
        """Read exactly these partitions; new partitions wait for their committed offsets."""
        self._metadata.want({one.topic for one in partitions})
        with self._lock:
            self._assignment.assign_from_group(partitions, self._reset)
        self._fetcher.interrupt()

    def consumed(self) -> Offsets:
        """Return the offsets to commit: the positions after the records of `poll`, or the first held offsets."""
        with self._lock:
            return {
                state.topic_partition: self._committable(state.topic_partition, state.position, state.position_epoch)
                for state in self._assignment.states()
                if state.position is not None
            }

    def _committable(self, tp: TopicPartition, position: int, epoch: int | None) -> OffsetAndMetadata:
        held = self._held.next_offset(tp)
        return OffsetAndMetadata(position if held is None else held, "", epoch)

    def awaiting_committed(self) -> list[TopicPartition]:
        """Return partitions whose committed offset has not been fetched yet."""
        with self._lock:
            return [state.topic_partition for state in self._assignment.states() if state.awaits_committed]

    def begin_at(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Start at the committed offsets; without a committed offset, apply ``auto_offset_reset``."""
        with self._lock:
            for topic_partition, committed in offsets.items():
                state = self._assignment.find(topic_partition)
                if state is None or not state.awaits_committed:
                    continue
                if committed is None:
                    state.awaits_committed = False
                else:
                    state.seek(committed.offset, committed.leader_epoch)
                    state.reset = self._reset
            self._news.notify_all()
        self._fetcher.interrupt()


def _checked(offsets: CommittableOffsets | None) -> Offsets | None:
    if offsets is None:
        return None
    return {
        TopicPartition(*tp): value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
        for tp, value in offsets.items()
    }


def _ignore(_offsets: Offsets, _error: Exception | None) -> None:
    """Do nothing."""
