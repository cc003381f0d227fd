"""`Consumer`: read partitions from a position on; fetching ahead happens behind it."""

import itertools
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Literal, Self

from paceline.log.record_batch import MAX_INT32
from paceline.model.errors import (
    InvalidRequestError,
    PacelineError,
    RequestTimedOutError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.tls import TlsFiles
from paceline.rpc.channels import ChannelCache
from paceline.rpc.security.client_tls import client_credentials
from paceline_client.addresses import parse_bootstrap
from paceline_client.assignors import Assignor, assignors_of
from paceline_client.errors import ClientClosedError, sendable
from paceline_client.fetch_request import FetchConfig
from paceline_client.fetcher import Fetcher
from paceline_client.groups.group_consumer import ConsumerGroup
from paceline_client.groups.partitions import GroupPartitions
from paceline_client.groups.values import GroupSettings, RebalanceListener
from paceline_client.metadata_refresher import MetadataRefresher
from paceline_client.offsets import OffsetAndTimestamp, OffsetLookup, plain_offsets, query_end, query_time
from paceline_client.records import ConsumerRecord, FetchedBatches
from paceline_client.subscription import Assignment, OffsetReset, PartitionState

DEFAULT_MAX_POLL_RECORDS: Final = 10_000
_GROUP_LOOK_S: Final = 0.5
"""Longest wait for records before the group is looked after again."""
_names = itertools.count(1)


class Consumer(GroupPartitions):
    """Reads records. For one thread at a time; close it, or use it with ``with``.

    `assign` names partitions, `subscribe` whole topics. There are no committed offsets here: a partition begins where
    `seek` says, else at ``auto_offset_reset``. A background thread keeps one long-polling fetch per leader under way
    and follows leaders when they move. After a fork the child must make its own consumer.

        with Consumer("localhost:9092") as consumer:
            consumer.subscribe(["flights"])
            for record in consumer:
                print(record.offset, record.value)
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
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
        """Make a consumer; it does not wait for the cluster.

        Args:
            bootstrap: ``"host:port,host:port"`` or a list; dead ones are skipped.
            auto_offset_reset: "earliest", "latest" or "error": where to begin without a position, and where to go when
                the position is out of range or the topic was deleted and made anew.
            fetch_min_bytes: a broker answers when it has this much, or after ``fetch_max_wait_ms``.
            fetch_max_wait_ms: longest wait of a fetch at the broker.
            fetch_max_bytes: limit of one answer.
            max_partition_fetch_bytes: limit per partition of one answer; a larger batch comes alone.
            max_poll_records: limit of one `poll`.
            max_buffered_bytes: limit of what is fetched ahead, all partitions together that are not paused.
            check_crcs: verify every batch before it is decoded.
            client_rack: where this consumer is. It reads from a replica in the same rack where the brokers'
                ``replica.selector.class`` is ``rack-aware``, and from the leader when that is not possible.
            group_id: name of the consumer group. `subscribe` then shares the partitions with the group's other members,
                and reading begins at the group's committed offsets.
            group_instance_id: makes this a static member: it keeps its partitions when its process restarts within the
                session time-out (KIP-345). Unique in the group.
            enable_auto_commit: commit by itself, in `poll`, before a rebalance and in `close`; only records that an
                earlier `poll` handed out are committed.
            auto_commit_interval_ms: pause between automatic commits.
            session_timeout_ms: the group goes on without this member when its heartbeats stay away for so long.
            heartbeat_interval_ms: pause between heartbeats; a third of the session time-out at most.
            max_poll_interval_ms: the member leaves when `poll` is not called for so long.
            partition_assignment_strategy: "range", "roundrobin", "sticky", "cooperative-sticky" or own assignors, the
                best first; all members need one in common.
            metadata_max_age_ms: how often new topics are looked for that match the pattern of `subscribe`.
            request_timeout_ms: longest wait for an answer beyond the broker's own wait.
            default_api_timeout_ms: longest wait of calls without a timeout of their own; also how long a partition may
                be out of reach before `poll` says so.
            client_id: name of the threads.
            tls: certificate files; by default those that ``PACELINE_SSL_CA_FILE`` and the like name, else plaintext.

        Raises:
            InvalidRequestError: a setting is not valid.
        """
        try:
            self._reset = OffsetReset(auto_offset_reset)
        except ValueError:
            raise InvalidRequestError(
                f'auto_offset_reset is "earliest", "latest" or "error", not {auto_offset_reset!r}'
            ) from None
        if min(fetch_max_bytes, max_partition_fetch_bytes, max_poll_records, max_buffered_bytes) < 1:
            raise InvalidRequestError("limits must be positive")
        sent = (fetch_min_bytes, fetch_max_wait_ms, fetch_max_bytes, max_partition_fetch_bytes, request_timeout_ms)
        if min(sent) < 0 or max(sent) > MAX_INT32:
            raise InvalidRequestError(f"sizes and times of a fetch are from 0 to {MAX_INT32}, not {sent}")
        with sendable("client_rack"):
            client_rack.encode()
        name = client_id or f"paceline-consumer-{next(_names)}"
        addresses = parse_bootstrap(bootstrap)
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
        self._check_crcs = check_crcs
        self._api_timeout_ms = default_api_timeout_ms
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._polling = threading.RLock()
        self._assignment = Assignment()
        self._topics: tuple[str, ...] = ()
        self._closed = False
        self._unread: dict[TopicPartition, deque[ConsumerRecord]] = {}
        self._pid = os.getpid()
        self._channels = ChannelCache(tls=client_credentials(tls))
        self._metadata = MetadataRefresher(
            addresses,
            self._channels,
            on_change=self._metadata_changed,
            max_age_ms=metadata_max_age_ms,
            name=f"{name}-metadata",
        )
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
            self._tell_news,
            f"{name}-fetcher",
        )
        self._fetcher.start()

    # What to read ------------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions; those that were assigned before keep their position.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
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

        With a group, the partitions are assigned in `poll`. ``pattern`` names all topics, present and future, whose
        whole name matches the regular expression; it takes the place of ``topics`` and needs a group. ``listener`` is
        called in `poll` when partitions come and go.

        Partitions that are added to a topic later are read too, from their beginning; those that it lacks when it was
        made anew are not waited for.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
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
        """Return how many partitions a topic has."""
        return self._metadata.wait_for_topic(topic, self._api_timeout_ms / 1000)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop handing out and fetching these partitions; they keep their position."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Go on with paused partitions."""
        self._set_paused(partitions, False)

    # Where to read -----------------------------------------------------------------------------------------------

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Read on from ``offset``; what was fetched ahead is dropped.

        Raises:
            InvalidRequestError: not assigned, or there is no such offset.
        """
        with self._lock:
            self._raise_if_closed()
            self._assignment.state(topic_partition).seek(offset)
        self._fetcher.interrupt()

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read on from the first offset still in the log, of these or of all assigned partitions."""
        self._seek_to(partitions, OffsetReset.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read on from the high watermark as it is when the leader is asked."""
        self._seek_to(partitions, OffsetReset.LATEST)

    def position(self, topic_partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """Return the offset of the next record that will be handed out; waits until it is looked up.

        Raises:
            RequestTimedOutError: no leader said where the log begins or ends in time.
            NoOffsetError: there is none, and ``auto_offset_reset`` is "error".
        """
        self._raise_if_closed()
        deadline = time.monotonic() + (self._api_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        with self._lock:
            while True:
                self._raise_if_closed()
                state = self._assignment.state(topic_partition)
                if state.position is not None:
                    return state.position
                if state.awaits_committed and self._group is not None:
                    self._group.begin_at_committed(deadline)
                    if not state.awaits_committed:
                        continue
                if state.error is not None:
                    raise state.take_error() or state.error
                self._raise_if_failed()
                left = deadline - time.monotonic()
                if left <= 0:
                    cause = state.hindrance or self._metadata.last_error
                    raise RequestTimedOutError(
                        f"no position of {topic_partition} in time: {cause or 'no answer'}"
                    ) from cause
                self._news.wait(left)

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset still in each log."""
        return self._ends(partitions, OffsetReset.EARLIEST, timeout_ms)

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition, an exclusive end."""
        return self._ends(partitions, OffsetReset.LATEST, timeout_ms)

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after a time, per partition; None when no record is that young.

        Raises:
            InvalidRequestError: a partition or a time does not fit its field.
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

        Positions are behind what was returned.

        Raises:
            LogTruncatedError: records that were handed out are gone; the next poll goes on where the logs agree.
            NoOffsetError: the position is out of range, or one in an earlier topic of the name, and
                ``auto_offset_reset`` is "error".
            CorruptMessageError: a batch cannot be read.
            RequestTimedOutError: a partition could not be read for ``default_api_timeout_ms``; the message has the last
                cause. The next poll goes on trying.
            InvalidRequestError: another thread is in `poll`.
            PacelineError: what a leader said that waiting does not cure.
        """
        if not self._polling.acquire(blocking=False):
            raise InvalidRequestError("another thread is in poll; one thread at a time may poll a consumer")
        try:
            return self._poll(timeout_ms, max_records)
        finally:
            self._polling.release()

    def _poll(self, timeout_ms: int, max_records: int | None) -> dict[TopicPartition, list[ConsumerRecord]]:
        self._raise_if_closed()
        limit = self._max_poll_records if max_records is None else max_records
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            if self._group is not None:
                self._group.poll(deadline)
            found = self._poll_once(limit, deadline)
            if found is not None:
                return found

    def _poll_once(self, limit: int, deadline: float) -> dict[TopicPartition, list[ConsumerRecord]] | None:
        """Return records, an empty dict at the deadline, or None when the group wants attention first."""
        with self._lock, self._fetcher.polling():
            while True:
                self._raise_pending()
                found: dict[TopicPartition, list[ConsumerRecord]] = {}
                room = limit
                for state in self._assignment.in_turn():
                    if room <= 0:
                        break
                    if state.paused or not state.chunks:
                        continue
                    records = self._hand_out(state, room, found)
                    if records:
                        found[state.topic_partition] = records
                        room -= len(records)
                if found:
                    self._fetcher.wake()
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    return {}
                if self._group is not None and self._group.wants_poll:
                    return None
                self._fetcher.go_on()
                self._news.wait(left if self._group is None else min(left, _GROUP_LOOK_S))
                if self._group is not None and self._group.wants_poll:
                    return None

    def poll_batches(self, timeout_ms: int = 1_000, max_bytes: int | None = None) -> list[FetchedBatches]:
        """Return raw batches as soon as there are any: the fast way for those who decode in bulk.

        Args:
            timeout_ms: longest wait for the first byte.
            max_bytes: stop adding fetched pieces at this size; at least one is returned.

        Raises:
            PacelineError: as `poll`, apart from what only decoding would show.
        """
        self._raise_if_closed()
        deadline = time.monotonic() + timeout_ms / 1000
        with self._lock, self._fetcher.polling():
            while True:
                self._raise_pending()
                found: list[FetchedBatches] = []
                size = 0
                for state in self._assignment.in_turn():
                    while not state.paused and (max_bytes is None or size < max_bytes):
                        batches = state.hand_out_raw()
                        if batches is None:
                            break
                        found.append(batches)
                        size += len(batches.data)
                if found:
                    self._fetcher.wake()
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    return []
                self._fetcher.go_on()
                self._news.wait(left)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield records for ever; break when done.

        Positions are behind the last poll, not the last record yielded. With a group they are behind the last record
        yielded, so that leaving the loop early does not commit records that were never seen.
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
        """Commit when that is automatic, leave the group, stop and join the threads.

        Later calls do nothing, nor do calls in a forked child.
        """
        if os.getpid() != self._pid:
            return  # whoever holds the lock there will not let it go
        group = self._group
        if group is not None and not self._closed:
            group.close(timeout_ms)
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._news.notify_all()
        self._fetcher.close()
        self._metadata.stop()
        self._channels.close()
        self._metadata.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # Helpers -----------------------------------------------------------------------------------------------------

    def _hand_out(
        self, state: PartitionState, room: int, found: dict[TopicPartition, list[ConsumerRecord]]
    ) -> list[ConsumerRecord]:
        try:
            return state.hand_out(room, self._check_crcs)
        except PacelineError as error:
            if not found:
                raise
            # What other partitions gave must not be lost: they have moved on. This partition tells next time.
            state.error = error
            return []

    def _raise_pending(self) -> None:
        self._raise_if_closed()
        self._raise_if_failed()
        if not self._assignment.states() and (self._group is None or not self._group.is_subscribed):
            raise InvalidRequestError("nothing is assigned; call assign or subscribe first")
        for state in self._assignment.states():
            # Records fetched before the error come first.
            if state.error is not None and not state.chunks:
                error = state.take_error()
                assert error is not None
                self._fetcher.wake()
                raise error

    def _raise_if_failed(self) -> None:
        if self._fetcher.failed is not None:
            raise UnknownServerError(f"the consumer's fetcher failed: {self._fetcher.failed!r}")

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise ClientClosedError("the consumer is closed")
        if os.getpid() != self._pid:
            raise ClientClosedError("the consumer was made before a fork; make a new one in this process")

    def _check_partitions(self, topic: str, indexes: list[int], deadline: float) -> None:
        count = self._metadata.wait_for_partition(topic, max(indexes), _seconds_until(deadline))
        wrong = [index for index in indexes if not 0 <= index < count]
        if wrong:
            raise UnknownTopicOrPartitionError(f"topic {topic} has {count} partitions, none is {wrong[0]}")

    def _seek_to(self, partitions: Iterable[TopicPartition] | None, reset: OffsetReset) -> None:
        with self._lock:
            self._raise_if_closed()
            wanted = self.assignment() if partitions is None else list(partitions)
            for state in [self._assignment.state(tp) for tp in wanted]:
                state.seek_to(reset)
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

    def _tell_news(self) -> None:
        self._news.notify_all()

    def _metadata_changed(self) -> None:
        """Take in new partitions of subscribed topics and let the fetcher look at new leaders."""
        with self._lock:
            counts = {topic: self._metadata.partition_count(topic) for topic in self._topics}
            self._assignment.has_grown_to({topic: count for topic, count in counts.items() if count})
            self._news.notify_all()
        self._fetcher.wake()


def _seconds_until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
