"""Keep fetches that wait, and answer them when they can be. Source: docs/protocol/replication.md#waiting-fetch."""

from collections.abc import Callable
from typing import Protocol

from paceline.broker.requests.fetch_types import FetchLimits, PartitionRead, Reader
from paceline.model.identifiers import TopicPartition
from paceline.replication.fetch_session import FetchPosition, FetchSession, News
from paceline.replication.purgatory import DelayedOperation

FetchAnswer = Callable[[int, list[PartitionRead]], None]
"""Takes the session id (0 for none) and the partitions to answer."""


class FetchAnswering(Protocol):
    """What a waiting fetch asks of the handler it came to."""

    def would_answer(self, run: "FetchRun", position: FetchPosition) -> bool | int:
        """Return True when a waiting fetch must be answered because of this position, else the bytes it offers."""

    def hold(self, run: "FetchRun") -> bool:
        """Let a follower's fetch that has bytes wait for expected appends; return whether it has to wait."""

    def finish(self, run: "FetchRun", positions: list[FetchPosition]) -> None:
        """Read again for a fetch that has waited, and answer it."""


class FetchRun:
    """One fetch under way."""

    __slots__ = ("answer", "incremental", "limits", "reader", "session")

    def __init__(
        self,
        reader: Reader,
        limits: FetchLimits,
        session: FetchSession | None,
        incremental: bool,
        answer: FetchAnswer,
    ) -> None:
        self.reader = reader
        self.limits = limits
        self.session = session
        self.incremental = incremental
        self.answer = answer


class DelayedFetch(DelayedOperation):
    """A fetch without a session that waits for any of its partitions."""

    def __init__(self, handler: FetchAnswering, run: FetchRun, positions: list[FetchPosition]) -> None:
        super().__init__()
        self._handler = handler
        self._run = run
        self._positions = positions

    def ready(self) -> bool:
        """Whether enough has come, or something must be said."""
        byte_count = 0
        for position in self._positions:
            offer = self._handler.would_answer(self._run, position)
            if offer is True:
                return True
            byte_count += offer
        return byte_count >= max(1, self._run.limits.min_bytes)

    def on_complete(self) -> None:
        """Read again and answer."""
        self._handler.finish(self._run, self._positions)


class DelayedSessionFetch(DelayedOperation):
    """A session's fetch that waits; it looks only at partitions that were marked since it last looked."""

    def __init__(self, handler: FetchAnswering, run: FetchRun, offers: dict[TopicPartition, int]) -> None:
        super().__init__()
        self._handler = handler
        self._run = run
        self._offers = offers
        self._byte_count = sum(offers.values())

    def look(self) -> None:
        """Look at the news and answer if they suffice."""
        self.try_complete()

    def ready(self) -> bool:
        """Whether enough has come since the fetch arrived, or something must be said."""
        session = self._run.session
        assert session is not None
        reader = self._run.reader
        wanted = News.ROLE | (News.HIGH_WATERMARK if reader.replica_id is None else News.APPENDED)
        for topic_partition, news in session.take_fresh().items():
            position = session.partitions.get(topic_partition)
            if position is not None and reader.wants_high_watermark and news & News.HIGH_WATERMARK:
                return True
            if position is not None and reader.replica_id is not None and news & News.LOG_START:
                return True
            if position is None or not news & wanted:
                continue
            offer = self._handler.would_answer(self._run, position)
            if offer is True:
                return True
            self._byte_count += offer - self._offers.get(topic_partition, 0)
            self._offers[topic_partition] = offer
        return self._byte_count >= max(1, self._run.limits.min_bytes) and not self._handler.hold(self._run)

    def on_complete(self) -> None:
        """Read what is marked and answer."""
        self._handler.finish(self._run, [])

    def on_cancel(self) -> None:
        """What is marked stays so, for the next fetch of the session."""
        session = self._run.session
        assert session is not None
        session.waiting = None
