"""`RecordPoller`: wait for fetched records and return them to the polling thread."""

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from paceline.model.errors import InvalidRequestError, PacelineError, UnknownServerError
from paceline.model.identifiers import TopicPartition
from paceline_client.fetcher import Fetcher
from paceline_client.groups.group_consumer import ConsumerGroup
from paceline_client.records import ConsumerRecord, FetchedBatches, without_collection
from paceline_client.subscription import Assignment, PartitionState

T = TypeVar("T")
_GROUP_LOOK_S: Final = 0.5
"""Longest wait for records between two checks of the group membership."""


class RecordPoller:
    """Returns fetched records of the assigned partitions, each partition in turn."""

    def __init__(
        self,
        assignment: Assignment,
        fetcher: Fetcher,
        group: ConsumerGroup | None,
        lock: threading.RLock,  # type: ignore[valid-type, unused-ignore]
        news: threading.Condition,
        check_crcs: bool,
        raise_if_closed: Callable[[], None],
    ) -> None:
        """Create the poller of a consumer.

        Args:
            assignment: the partitions, guarded by ``lock``.
            fetcher: fetches the records of the partitions.
            group: the group that assigns the partitions, None for a consumer without a group.
            lock: the lock of the consumer.
            news: notified when records or errors have arrived, or the consumer was closed.
            check_crcs: verify every batch before it is decoded.
            raise_if_closed: raises an error when the consumer was closed.
        """
        self._assignment = assignment
        self._fetcher = fetcher
        self._group = group
        self._lock = lock
        self._news = news
        self._check_crcs = check_crcs
        self._raise_if_closed = raise_if_closed
        self._woken = False

    def wakeup(self) -> None:
        """End the present wait for records, or the next one."""
        with self._lock:
            self._woken = True
            self._news.notify_all()

    def poll(self, limit: int, deadline: float) -> dict[TopicPartition, list[ConsumerRecord]] | None:
        """Return records, an empty dict at the deadline, or None when group work must be done first.

        Raises:
            PacelineError: see `Consumer.poll`.
        """
        return self._wait_for(lambda: self._take_records(limit), deadline)

    def poll_batches(self, deadline: float, max_bytes: int | None) -> list[FetchedBatches] | None:
        """Return raw batches, an empty list at the deadline, or None when group work must be done first.

        Stops adding batches at ``max_bytes``.

        Raises:
            PacelineError: see `Consumer.poll_batches`.
        """
        return self._wait_for(lambda: self._take_batches(max_bytes), deadline)

    def _wait_for(self, take: Callable[[], T], deadline: float) -> T | None:
        with self._lock, self._fetcher.polling():
            while True:
                self._raise_pending()
                with without_collection():
                    found = take()
                left = deadline - time.monotonic()
                if found:
                    self._fetcher.wake()
                if found or left <= 0 or self._woken:
                    self._woken = False
                    return found
                if self._wait(left):
                    return None

    def _take_records(self, room: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        for state in self._assignment.in_turn():
            if room <= 0:
                break
            if state.paused or not state.chunks:
                continue
            records = self._hand_out(state, room, found)
            if records:
                found[state.topic_partition] = records
                room -= len(records)
        return found

    def _take_batches(self, max_bytes: int | None) -> list[FetchedBatches]:
        found: list[FetchedBatches] = []
        size = 0
        for state in self._assignment.in_turn():
            while not state.paused and (max_bytes is None or size < max_bytes):
                batches = state.hand_out_raw()
                if batches is None:
                    break
                found.append(batches)
                size += len(batches.data)
        return found

    def _wait(self, left_s: float) -> bool:
        """Wait for records, an error or `close` unless there is group work; return whether there is group work."""
        group = self._group
        if group is not None and group.wants_poll:
            return True
        self._fetcher.go_on()
        self._news.wait(left_s if group is None else min(left_s, _GROUP_LOOK_S))
        return group is not None and group.wants_poll

    def _hand_out(
        self, state: PartitionState, room: int, found: dict[TopicPartition, list[ConsumerRecord]]
    ) -> list[ConsumerRecord]:
        try:
            return state.hand_out(room, self._check_crcs)
        except PacelineError as error:
            if not found:
                raise
            # Keep the records of other partitions, whose positions have advanced; the next poll raises this error.
            state.error = error
            return []

    def _raise_pending(self) -> None:
        self._raise_if_closed()
        self.raise_if_failed()
        if not self._assignment.states() and (self._group is None or not self._group.is_subscribed):
            raise InvalidRequestError("nothing is assigned; call assign or subscribe first")
        for state in self._assignment.states():
            # Records fetched before the error come first.
            if state.error is not None and not state.chunks:
                error = state.take_error()
                assert error is not None
                self._fetcher.wake()
                raise error

    def raise_if_failed(self) -> None:
        """Raise an error if the fetcher's thread has failed.

        Raises:
            UnknownServerError: the thread ended with an exception.
        """
        if self._fetcher.failed is not None:
            raise UnknownServerError(f"the consumer's fetcher failed: {self._fetcher.failed!r}")
