"""`Consumer`: read partitions from a position onwards; a background thread prefetches."""

import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Literal, Self, TypedDict, TypeVar

from paceline.log.record_batch import MAX_INT32
from paceline.model.errors import (
    InvalidRequestError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.tls import TlsFiles
from paceline.rpc.memory import keep_freed_memory
from paceline_client.assignors import Assignor, assignors_of
from paceline_client.connections import ClientConnections, Connections
from paceline_client.errors import ClientClosedError, sendable
from paceline_client.fetch_request import FetchConfig
from paceline_client.fetcher import Fetcher
from paceline_client.groups.group_consumer import ConsumerGroup
from paceline_client.groups.held_records import HeldRecords
from paceline_client.groups.partitions import GroupPartitions
from paceline_client.groups.values import GroupSettings, RebalanceListener
from paceline_client.offsets import OffsetAndTimestamp, OffsetLookup, plain_offsets, query_end, query_time
from paceline_client.record_poller import RecordPoller
from paceline_client.records import ConsumerRecord, FetchedBatches, let_records_start_no_collection
from paceline_client.subscription import Assignment, OffsetReset

DEFAULT_MAX_POLL_RECORDS: Final = 10_000
T = TypeVar("T")
_names = itertools.count(1)


class ConsumerSettings(TypedDict, total=False):
    """The settings of `Consumer`, by name, for functions that pass them on."""

    auto_offset_reset: Literal["earliest", "latest", "error"] | OffsetReset
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    max_buffered_bytes: int
    check_crcs: bool
    client_rack: str
    group_id: str | None
    group_instance_id: str
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    partition_assignment_strategy: Sequence[str | Assignor]
    metadata_max_age_ms: int
    request_timeout_ms: int
    default_api_timeout_ms: int
    client_id: str | None
    tls: TlsFiles | None


class Consumer(GroupPartitions):
    """Reads records. Not thread-safe; close it, or use it with ``with``.

    `assign` reads partitions, `subscribe` whole topics. Without a group there are no committed offsets: a partition
    starts at the offset of `seek`, otherwise at ``auto_offset_reset``. A background thread keeps one long-polling fetch
    per leader in flight and follows leader changes. After a fork the child must create its own consumer.

    The first consumer of a process makes glibc keep up to 256 MiB of freed memory unless ``PACELINE_KEEP_FREED_MEMORY``
    is 0, and Python collect garbage after twice ``max_poll_records`` new objects instead of 700, unless the program has
    called ``gc.set_threshold`` (docs/decisions/0021).

        with Consumer("localhost:9092") as consumer:
            consumer.subscribe(["flights"])
            for record in consumer:
                print(record.offset, record.value)
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] | Connections,
        *,
        auto_offset_reset: Literal["earliest", "latest", "error"] | OffsetReset = "earliest",
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 8 * 1024 * 1024,
        max_partition_fetch_bytes: int = 1024 * 1024,
        max_poll_records: int = DEFAULT_MAX_POLL_RECORDS,
        max_buffered_bytes: int = 64 * 1024 * 1024,
        check_crcs: bool = True,
        client_rack: str = "",
        group_id: str | None = None,
        group_instance_id: str = "",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        partition_assignment_strategy: Sequence[str | Assignor] = ("range",),
        metadata_max_age_ms: int = 300_000,
        request_timeout_ms: int = 30_000,
        default_api_timeout_ms: int = 60_000,
        client_id: str | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        """Create a consumer; does not wait for the cluster.

        Args:
            bootstrap: ``"host:port,host:port"`` or a list, whose addresses without an answer are skipped, or shared
                `Connections`.
            auto_offset_reset: "earliest", "latest" or "error": where to read a partition that has no position, whose
                position is out of range, or whose topic was deleted and re-created.
            fetch_min_bytes: a broker responds when it has this many bytes, or after ``fetch_max_wait_ms``.
            fetch_max_wait_ms: longest wait of a fetch at the broker.
            fetch_max_bytes: maximum bytes of a response.
            max_partition_fetch_bytes: maximum bytes per partition of a response; a larger batch is returned alone.
            max_poll_records: maximum records of a `poll`.
            max_buffered_bytes: maximum prefetched bytes of all partitions that are not paused.
            check_crcs: verify the checksum of every batch before decoding.
            client_rack: rack of this consumer. It reads from a replica in the same rack where the brokers'
                ``replica.selector.class`` is ``rack-aware``, otherwise from the leader.
            group_id: name of the consumer group. `subscribe` then shares the partitions with the group's other members,
                and reading begins at the group's committed offsets.
            group_instance_id: makes this a static member, unique in the group: it keeps its partitions when its process
                restarts within the session timeout (KIP-345).
            enable_auto_commit: commit automatically in `poll`, before a rebalance and in `close`; includes only records
                returned by an earlier `poll`.
            auto_commit_interval_ms: pause between automatic commits.
            session_timeout_ms: the group removes this member when it sends no heartbeat for this long.
            heartbeat_interval_ms: pause between heartbeats; at most a third of the session timeout.
            max_poll_interval_ms: the member leaves the group when `poll` is not called for this long.
            partition_assignment_strategy: "range", "roundrobin", "sticky", "cooperative-sticky" or own assignors, in
                order of preference; all members must have an assignor in common.
            metadata_max_age_ms: interval between searches for new topics that match the pattern of `subscribe`.
            request_timeout_ms: longest wait for a response, in addition to the broker's own wait.
            default_api_timeout_ms: longest wait of calls without a timeout argument; also the time for which a
                partition may be unreachable before `poll` raises an error.
            client_id: prefix of thread names, and the name that brokers see (default ``paceline``).
            tls: certificate files; default: the files in ``PACELINE_SSL_CA_FILE`` etc., otherwise plaintext.

        Raises:
            InvalidRequestError: a setting is not valid.
        """
        try:
            self._reset = OffsetReset(auto_offset_reset)
        except ValueError:
            raise InvalidRequestError(
                f'auto_offset_reset must be "earliest", "latest" or "error", not {auto_offset_reset!r}'
            ) from None
        if min(fetch_max_bytes, max_partition_fetch_bytes, max_poll_records, max_buffered_bytes) < 1:
            raise InvalidRequestError("limits must be positive")
        sent = (fetch_min_bytes, fetch_max_wait_ms, fetch_max_bytes, max_partition_fetch_bytes, request_timeout_ms)
        if min(sent) < 0 or max(sent) > MAX_INT32:
            raise InvalidRequestError(f"sizes and times of a fetch must be from 0 to {MAX_INT32}, not {sent}")
        with sendable("client_rack"):
            client_rack.encode()
        keep_freed_memory()
        let_records_start_no_collection(max_poll_records)
        name = client_id or f"paceline-consumer-{next(_names)}"
        settings = None
        if group_id is not None:
            settings = GroupSettings(
                group_id,
                group_instance_id,
                name,
                client_rack,
                session_timeout_ms,
                heartbeat_interval_ms,
                max_poll_interval_ms,
                enable_auto_commit,
                auto_commit_interval_ms,
                assignors_of(partition_assignment_strategy),
            )
            settings.check()
        self._max_poll_records = max_poll_records
        self._api_timeout_ms = default_api_timeout_ms
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._polling = threading.RLock()
        self._assignment = Assignment()
        self._topics: tuple[str, ...] = ()
        self._closed = False
        self._held = HeldRecords({})
        self._pid = os.getpid()
        self._connections = ClientConnections(
            bootstrap, tls=tls, metadata_max_age_ms=metadata_max_age_ms, user_agent=client_id or "", name=name
        )
        self._channels = self._connections.channels
        self._metadata = self._connections.metadata
        self._group: ConsumerGroup | None = None
        if settings is not None:
            self._group = ConsumerGroup(
                settings, self._metadata, self._channels, self, self._wake_poll, metadata_max_age_ms
            )
        self._offsets = OffsetLookup(self._metadata, self._channels)
        self._fetcher = Fetcher(
            FetchConfig(
                fetch_min_bytes,
                fetch_max_bytes,
                fetch_max_wait_ms,
                max_partition_fetch_bytes,
                max_buffered_bytes,
                request_timeout_ms,
                default_api_timeout_ms,
                self._reset,
                client_rack,
            ),
            self._assignment,
            self._metadata,
            self._channels,
            self._lock,
            self._wake_poll,
            f"{name}-fetcher",
        )
        self._poller = RecordPoller(
            self._assignment, self._fetcher, self._group, self._lock, self._news, check_crcs, self._raise_if_closed
        )
        self._connections.listen(self._metadata_changed)
        self._fetcher.start()

    @property
    def throttle_time_ms(self) -> int:
        """Time for which brokers have asked this consumer to wait, because it was above a quota."""
        return self._fetcher.throttles.total_ms

    # Assignment ---------------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions; partitions that were assigned before keep their position.

        Raises:
            UnknownTopicOrPartitionError: the topic or partition does not exist.
        """
        wanted = [TopicPartition(*tp) for tp in partitions]
        if self._group is not None and self._group.is_subscribed:
            raise InvalidRequestError("the group assigns the partitions; unsubscribe first")
        deadline = time.monotonic() + self._api_timeout_ms / 1000
        for topic in sorted({tp.topic for tp in wanted}):
            self._check_partitions(topic, [tp.partition for tp in wanted if tp.topic == topic], deadline)
        with self._lock:
            self._raise_if_closed()
            self._topics = ()
            if self._group is None:
                self._assignment.assign(wanted, self._reset)
            else:
                self._assignment.assign_from_group(wanted, self._reset)
        self._fetcher.interrupt()

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read every partition of these topics; with a ``group_id``, share them with the other members of the group.

        With a group, `poll` takes part in rebalances. ``pattern`` subscribes to all existing and future topics whose
        whole name matches the regular expression; it replaces ``topics`` and needs a group. ``listener`` is called in
        `poll` when partitions are assigned or revoked.

        The consumer also reads partitions that are added to a topic later, from their beginning. It does not wait for
        partitions that a re-created topic lacks.

        Raises:
            UnknownTopicOrPartitionError: the topic does not exist.
        """
        names = [topics] if isinstance(topics, str) else list(dict.fromkeys(topics))
        if bool(names) == (pattern is not None):
            raise InvalidRequestError("subscribe takes topics or a pattern")
        if self._group is None and (pattern is not None or listener is not None):
            raise InvalidRequestError("a pattern and a listener need a consumer with a group_id")
        deadline = time.monotonic() + self._api_timeout_ms / 1000
        counts = {topic: self._metadata.wait_for_topic(topic, _seconds_until(deadline)) for topic in names}
        if self._group is not None:
            self._raise_if_closed()
            if not self._group.is_subscribed:
                self.take_assignment([])
            self._group.subscribe(names, pattern, listener or RebalanceListener())
            return
        with self._lock:
            self._raise_if_closed()
            self._topics = tuple(names)
            self._assignment.assign(
                (TopicPartition(topic, index) for topic, count in counts.items() for index in range(count)),
                self._reset,
            )
        self._fetcher.interrupt()

    def partitions_for(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        return self._metadata.wait_for_topic(topic, self._api_timeout_ms / 1000)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop returning and fetching records of these partitions; they keep their position."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Resume paused partitions."""
        self._set_paused(partitions, False)

    # Positions -----------------------------------------------------------------------------------------------

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Continue reading at ``offset``; discards prefetched records.

        Raises:
            InvalidRequestError: the partition is not assigned, or the offset is not valid.
        """
        with self._lock:
            self._raise_if_closed()
            self._assignment.state(topic_partition).seek(offset)
            self._held.remove(topic_partition)  # Otherwise a loop that ends would seek back to these records.
        self._fetcher.interrupt()

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue reading at the log start offset of these or of all assigned partitions."""
        self._seek_to(partitions, OffsetReset.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue reading at the high watermark, which is looked up at the leader."""
        self._seek_to(partitions, OffsetReset.LATEST)

    def position(self, topic_partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """Return the offset of the next record that `poll` will return; waits for the lookup of a missing position.

        Raises:
            RequestTimedOutError: no leader answered the lookup in time.
            NoOffsetError: the partition has no position, and ``auto_offset_reset`` is "error".
        """
        self._raise_if_closed()
        deadline = time.monotonic() + (self._api_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        while True:
            with self._lock:
                self._raise_if_closed()
                state = self._assignment.state(topic_partition)
                if state.position is not None:
                    return state.position
                if state.error is not None:
                    raise state.take_error() or state.error
                self._poller.raise_if_failed()
                left = deadline - time.monotonic()
                if left <= 0:
                    cause = state.failure or self._metadata.last_error
                    raise RequestTimedOutError(
                        f"position of {topic_partition} not found in time: {cause or 'no answer'}"
                    ) from cause
                group = self._group if state.awaits_committed else None
                if group is None:
                    self._news.wait(left)
            if group is not None:
                # Call this without the lock: the heartbeat and fetch threads need the lock.
                group.begin_at_committed(deadline)

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        return self._ends(partitions, OffsetReset.EARLIEST, timeout_ms)

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition, an exclusive end."""
        return self._ends(partitions, OffsetReset.LATEST, timeout_ms)

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after a time, per partition; None when every record is older.

        Raises:
            InvalidRequestError: a partition or a time is out of range.
        """
        self._raise_if_closed()
        with sendable():
            queries = [query_time(TopicPartition(*tp), timestamp_ms) for tp, timestamp_ms in times_ms.items()]
        return self._offsets.look_up(queries, self._api_timeout_ms if timeout_ms is None else timeout_ms)

    # Reading -----------------------------------------------------------------------------------------------------

    def poll(
        self, timeout_ms: int = 1_000, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return records as soon as there are any, at most ``max_records``; an empty dict after ``timeout_ms``.

        Returning records advances the positions past them.

        Raises:
            LogTruncatedError: records that were returned earlier have been truncated; the next poll continues at the
                end of the common log.
            NoOffsetError: the position is out of range, or belongs to a deleted topic of the same name, and
                ``auto_offset_reset`` is "error".
            CorruptMessageError: a batch cannot be read.
            RequestTimedOutError: a partition could not be read for ``default_api_timeout_ms``; the message has the last
                cause. The next poll tries again.
            InvalidRequestError: another thread is in `poll`.
            PacelineError: a leader returned an error that a retry does not resolve.
        """
        limit = self._max_poll_records if max_records is None else max_records
        return self._poll(timeout_ms, lambda deadline: self._poller.poll(limit, deadline))

    def _poll(self, timeout_ms: int, take: Callable[[float], T | None]) -> T:
        """Alternate between group work and ``take``, which returns None when there is group work."""
        if not self._polling.acquire(blocking=False):
            raise InvalidRequestError("another thread is in poll; a consumer is not thread-safe")
        try:
            self._raise_if_closed()
            deadline = time.monotonic() + timeout_ms / 1000
            while True:
                if self._group is not None:
                    self._group.poll(deadline)
                found = take(deadline)
                if found is not None:
                    return found
        finally:
            self._polling.release()

    def poll_batches(self, timeout_ms: int = 1_000, max_bytes: int | None = None) -> list[FetchedBatches]:
        """Return raw batches as soon as there are any: the fast path for applications that decode in bulk.

        Args:
            timeout_ms: longest wait for the first byte.
            max_bytes: stop adding fetched chunks at this size; at least one chunk is returned.

        Raises:
            PacelineError: as `poll`, except errors that only decoding detects.
        """
        return self._poll(timeout_ms, lambda deadline: self._poller.poll_batches(deadline, max_bytes))

    def wakeup(self) -> None:
        """Make the present `poll` return without waiting for records, or the next one; may be called on any thread."""
        self._poller.wakeup()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield records endlessly; leave the loop with break.

        Without a group, leaving the loop keeps the positions after the last `poll`, which may have returned records
        that the loop has not yielded. With a group, leaving the loop moves the positions back to the first record that
        the loop has not yielded, so that a commit does not include unyielded records.
        """
        if self._group is not None:
            return self.records()
        return self._iterate()

    def _iterate(self) -> Iterator[ConsumerRecord]:
        while True:
            for records in self.poll(timeout_ms=1_000).values():
                yield from records

    # Closing -----------------------------------------------------------------------------------------------------

    def close(self, timeout_ms: int = 10_000) -> None:
        """Commit if auto-commit is on, leave the group, stop and join the threads.

        Later calls, and calls in a forked child, do nothing.
        """
        if os.getpid() != self._pid:
            return  # the thread that holds the lock does not exist in the forked child
        group = self._group
        try:
            if group is not None and not self._closed:
                group.close(timeout_ms)
        finally:  # the application's listener or callback may have failed
            self._end()

    def _end(self) -> None:
        """Stop and join the threads."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._news.notify_all()
        self._fetcher.close()
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # Helpers -----------------------------------------------------------------------------------------------------

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise ClientClosedError("the consumer is closed")
        if os.getpid() != self._pid:
            raise ClientClosedError("the consumer was created before a fork; create a new consumer in this process")

    def _check_partitions(self, topic: str, indexes: list[int], deadline: float) -> None:
        count = self._metadata.wait_for_partition(topic, max(indexes), _seconds_until(deadline))
        wrong = [index for index in indexes if not 0 <= index < count]
        if wrong:
            raise UnknownTopicOrPartitionError(f"topic {topic} has {count} partitions, no partition {wrong[0]}")

    def _seek_to(self, partitions: Iterable[TopicPartition] | None, reset: OffsetReset) -> None:
        with self._lock:
            self._raise_if_closed()
            wanted = self.assignment() if partitions is None else list(partitions)
            for state in [self._assignment.state(tp) for tp in wanted]:
                state.seek_to(reset)
                self._held.remove(state.topic_partition)
        self._fetcher.interrupt()

    def _set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        with self._lock:
            for state in [self._assignment.state(tp) for tp in partitions]:
                state.paused = paused
        self._fetcher.wake()

    def _ends(
        self, partitions: Iterable[TopicPartition], reset: OffsetReset, timeout_ms: int | None
    ) -> dict[TopicPartition, int]:
        self._raise_if_closed()
        with sendable():
            queries = [query_end(TopicPartition(*tp), reset) for tp in partitions]
        return plain_offsets(self._offsets.look_up(queries, self._api_timeout_ms if timeout_ms is None else timeout_ms))

    def _wake_poll(self) -> None:
        with self._lock:
            self._news.notify_all()

    def _metadata_changed(self) -> None:
        """Add new partitions of subscribed topics and wake the fetcher for new leaders."""
        with self._lock:
            counts = {topic: self._metadata.cluster.partition_count(topic) for topic in self._topics}
            self._assignment.set_partition_counts({topic: count for topic, count in counts.items() if count})
            self._news.notify_all()
        self._fetcher.wake()


def _seconds_until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
