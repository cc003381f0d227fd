"""Fetches that wait for data. Source: docs/protocol/replication.md#waiting-fetch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from paceline.broker.requests.fetch_types import FetchLimits, PartitionRead, Reader
from paceline.log.read_place import ReadPlace
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition
from paceline.replication.fetch_session import FetchSession, PartitionChange
from paceline.replication.purgatory import DelayedOperation

FetchAnswer = Callable[[int, list[PartitionRead]], None]
"""Callback that receives the session id (0 without a session) and the results of the partitions."""


@dataclass(slots=True, eq=False)
class FetchRun:
    """A fetch in progress."""

    reader: Reader
    limits: FetchLimits
    session: FetchSession | None
    incremental: bool
    answer: FetchAnswer
    places: dict[TopicPartition, ReadPlace] = field(default_factory=dict)
    """Places in the logs whose bytes were counted while the fetch waited."""


class FetchReader(Protocol):
    """Reads for delayed fetches; `FetchHandler` does."""

    def would_answer(self, run: FetchRun, position: FetchPosition) -> bool | int:
        """Return True when this position requires an immediate response, otherwise its available bytes."""

    def hold_if_expected(self, run: FetchRun) -> bool:
        """Return whether a follower's fetch with data must wait for expected appends."""

    def finish(self, run: FetchRun, positions: list[FetchPosition]) -> None:
        """Read again and answer."""


class DelayedFetch(DelayedOperation):
    """A fetch without a session that waits for data of its partitions."""

    def __init__(self, handler: FetchReader, run: FetchRun, positions: list[FetchPosition]) -> None:
        super().__init__()
        self._handler = handler
        self._run = run
        self._positions = {position.topic_partition: position for position in positions}
        self._unchecked = positions
        self._offers: dict[TopicPartition, int] = {}
        self._byte_count = 0

    def check(self, key: TopicPartition) -> bool:  # type: ignore[override]
        """Check this partition only: a fetch may wait for thousands of partitions."""
        self._unchecked = [self._positions[key]]
        return self.try_complete()

    def advance(self) -> bool:
        """Whether enough bytes are available, or a response is required."""
        unchecked, self._unchecked = self._unchecked, []
        for position in unchecked:
            offer = self._handler.would_answer(self._run, position)
            if offer is True:
                return True
            self._byte_count += offer - self._offers.get(position.topic_partition, 0)
            self._offers[position.topic_partition] = offer
        return self._byte_count >= max(1, self._run.limits.min_bytes)

    def on_complete(self) -> None:
        """Read again and answer."""
        self._handler.finish(self._run, list(self._positions.values()))


class DelayedSessionFetch(DelayedOperation):
    """A fetch of a session that waits for data; it checks only partitions that changed since its last check."""

    def __init__(self, handler: FetchReader, run: FetchRun, offers: dict[TopicPartition, int]) -> None:
        super().__init__()
        self._handler = handler
        self._run = run
        self._offers = offers
        self._byte_count = sum(offers.values())

    def advance(self) -> bool:
        """Whether the checked partitions have enough bytes, or a response is required."""
        session = self._run.session
        assert session is not None
        reader = self._run.reader
        wanted = PartitionChange.ROLE | (
            PartitionChange.HIGH_WATERMARK if reader.replica_id is None else PartitionChange.APPENDED
        )
        for topic_partition, changes in session.take_unchecked_changes().items():
            position = session.partitions.get(topic_partition)
            if position is not None and reader.wants_high_watermark and changes & PartitionChange.HIGH_WATERMARK:
                return True
            if position is not None and reader.replica_id is not None and changes & PartitionChange.LOG_START:
                return True
            if position is None or not changes & wanted:
                continue
            offer = self._handler.would_answer(self._run, position)
            if offer is True:
                return True
            self._byte_count += offer - self._offers.get(topic_partition, 0)
            self._offers[topic_partition] = offer
        return self._byte_count >= max(1, self._run.limits.min_bytes) and not self._handler.hold_if_expected(self._run)

    def on_complete(self) -> None:
        """Read the marked partitions and answer."""
        self._handler.finish(self._run, [])

    def on_cancel(self) -> None:
        """Detach from the session; the marks stay for the next fetch of the session."""
        session = self._run.session
        assert session is not None
        session.waiting = None
