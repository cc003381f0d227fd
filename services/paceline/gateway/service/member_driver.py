"""`MemberDriver`: run the consumer of one group member, and carry out the effects of its `Member`.

`Member` belongs to the event loop. The consumer belongs to the driver's thread, which hands fetched records to the loop
and takes commands from it. A revocation runs on the thread inside `Consumer.poll`: it waits there, while the loop
continues to take acknowledgements.
"""

import asyncio
import logging
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from paceline.gateway.assignor import GatewayAssignor
from paceline.gateway.credits import Credits
from paceline.gateway.member import PULL, Member
from paceline.gateway.service.convert import batch_of, merged, notice_of
from paceline.gateway.values import Batch, Pause, Positions, Seek, StreamId
from paceline.model.errors import PacelineError, ShuttingDownError, UnknownServerError
from paceline.model.identifiers import TopicPartition
from paceline.v1.gateway_service_pb2 import START_AT_LATEST, SubscribeResponse, Subscription
from paceline_client import Connections, Consumer, LogTruncatedError, OffsetAndMetadata, RebalanceListener

LOG = logging.getLogger("paceline.gateway")
T = TypeVar("T")
_Outcome = asyncio.Future[PacelineError | None]

_POLL_MS: Final = 1_000
_POLL_BYTES: Final = 512 * 1024
_COMMIT_MS: Final = 4_000
_LOOKUP_MS: Final = 20_000
_SETTLE_CHECK_S: Final = 0.02
_THREAD_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """Settings of members, in milliseconds."""

    session_timeout_ms: int = 10_000
    revocation_ms: int = 5_000
    commit_interval_ms: int = 1_000


class Outbox:
    """Messages to one stream, in order; the member's credits bound the records in it."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        """Why the stream ends, None while it is open."""
        self._messages: deque[SubscribeResponse] = deque()
        self._changed = asyncio.Event()

    def put(self, message: SubscribeResponse) -> None:
        """Add a message; a notice is added to the last notice when both are of one kind."""
        if not self._messages or not merged(self._messages[-1], message):
            self._messages.append(message)
        self._changed.set()

    def end(self, error: Exception) -> None:
        """End the stream with this error after its messages."""
        self.error = self.error or error
        self._changed.set()

    async def get(self) -> SubscribeResponse:
        """Wait for the next message.

        Raises:
            Exception: the stream has ended.
        """
        while not self._messages:
            if self.error is not None:
                raise self.error
            self._changed.clear()
            await self._changed.wait()
        return self._messages.popleft()


class MemberDriver(RebalanceListener):
    """One member of a group, or one reader without a group, with the streams that share its partitions."""

    def __init__(
        self,
        connections: Connections,
        first: Subscription,
        settings: DriverSettings,
        on_end: Callable[[], object],
        on_finished: Callable[[], object],
    ) -> None:
        """Create the driver on the event loop and start its thread; ``first`` has the start of new partitions.

        ``on_end`` is called when no stream may join any more; ``on_finished``, maybe twice, after the consumer's end.
        """
        self.group = first.group
        self.member = Member(settings.revocation_ms)
        self.failure: PacelineError | None = None
        """Why the member has ended; None while it runs."""
        self.last_pull_s = 0.0
        self._connections = connections
        self._first = first
        self._settings = settings
        self._on_end = on_end
        self._on_finished = on_finished
        self._loop = asyncio.get_running_loop()
        self._outboxes: dict[StreamId, Outbox] = {}
        self._subscriptions: dict[StreamId, Subscription] = {}
        self._next_id = PULL + 1
        self._arrived = asyncio.Event()
        """Set when records for callers of Pull may have arrived."""
        self._commands: queue.SimpleQueue[Callable[[Consumer], None] | None] = queue.SimpleQueue()
        self._consumer: Consumer | None = None
        self._subscribed: object = None
        self._epochs: dict[TopicPartition, int] = {}
        """Seeks that the thread has carried out; only the thread uses it."""
        self._may_poll = False
        self._is_broken = False
        """Whether assigned partitions could not be handed to the member, which must then leave the group."""
        self._ended = asyncio.Event()
        self._timer = self._loop.create_task(self._tick())
        self._thread = threading.Thread(target=self._run, name=f"gateway-{self.group or 'reader'}", daemon=True)

    # Streams, on the event loop ----------------------------------------------------------------------------------

    def join(self, subscription: Subscription, credit: Credits, is_pull: bool = False) -> tuple[StreamId, Outbox]:
        """Add a stream, or the stream of all Pull callers."""
        stream = PULL if is_pull else self._next_id
        self._next_id += not is_pull
        self._subscriptions[stream] = subscription
        topics, pattern = frozenset(_topics_of(subscription)), re.compile(subscription.topic_pattern)
        outbox = self._outboxes[stream] = Outbox()
        if self.failure is not None:
            outbox.end(self.failure)
        self.member.join(
            stream, lambda topic: topic in topics or pattern.fullmatch(topic) is not None, credit, _now_ms()
        )
        self._apply()
        self._subscribe()
        if not self._thread.is_alive() and self.failure is None:
            self._thread.start()
        return stream, outbox

    def widen_pull(self, subscription: Subscription) -> None:
        """Add the topics of a caller of Pull to those of the stream of all Pull callers."""
        known = self._subscriptions.get(PULL, Subscription())
        topics = {*known.topics, *subscription.topics}
        if (
            PULL not in self._subscriptions
            or topics != {*known.topics}
            or (subscription.topic_pattern and subscription.topic_pattern != known.topic_pattern)
        ):
            pattern = subscription.topic_pattern or known.topic_pattern
            self.join(Subscription(topics=sorted(topics), topic_pattern=pattern), Credits(), is_pull=True)

    def leave(self, stream: StreamId) -> None:
        """Remove a stream."""
        self._outboxes.pop(stream, None)
        self._subscriptions.pop(stream, None)
        self.member.leave(stream, _now_ms())
        self._apply()
        if self._outboxes:
            self._subscribe()

    def acknowledge(self, stream: StreamId, positions: Iterable[tuple[TopicPartition, int]]) -> None:
        """Pass acknowledgements of a stream on."""
        now_ms = _now_ms()
        for tp, offset in positions:
            self.member.acknowledge(stream, tp, offset, now_ms)
        self._apply()

    async def commit_now(self, partitions: Sequence[TopicPartition]) -> Positions:
        """Commit the acknowledged positions of partitions and return those that are committed now."""
        positions = self.member.final_commits(partitions) if self.group else {}
        if not positions or self.failure is not None:
            return {}
        done: asyncio.Future[PacelineError | None] = self._loop.create_future()
        self._command(lambda consumer: self._commit(consumer, positions, done))
        try:
            error = await asyncio.wait_for(done, 2 * _COMMIT_MS / 1000)
        except TimeoutError:
            return {}
        return positions if error is None else {}

    async def pull(
        self, max_records: int, max_bytes: int, lease_ms: int, wait_s: float
    ) -> list[tuple[TopicPartition, Batch]]:
        """Lease records to a caller of Pull, waiting for the first ones.

        Raises:
            PacelineError: the member has ended.
        """
        deadline = time.monotonic() + wait_s
        while True:
            if self.failure is not None:
                raise self.failure
            self.last_pull_s = time.monotonic()
            found = self.member.pull(max_records, max_bytes, lease_ms, _now_ms())
            self._apply()
            self._arrived.clear()
            left = deadline - time.monotonic()
            if found or (left <= 0 and self.generation >= 0):
                return found
            if left <= -_LOOKUP_MS / 1000:
                return []
            try:
                await asyncio.wait_for(self._arrived.wait(), max(0.05, min(left, 1.0)))
            except TimeoutError:
                continue

    def leases_committed(self, positions: Positions) -> None:
        """Record that leased batches are committed."""
        for tp, position in positions.items():
            held = self.member.held.get(tp)
            if held is not None and self.member.acknowledge(PULL, tp, position, _now_ms()):
                held.committed = position
        self._apply()

    @property
    def has_lease(self) -> bool:
        """Whether a caller of Pull holds records."""
        return any(held.leased for held in self.member.held.values())

    @property
    def generation(self) -> int:
        """Generation of the member, -1 while it is not in the group."""
        return -1 if self._consumer is None else self._consumer.generation

    @property
    def member_id(self) -> str:
        """Id of the member."""
        return "" if self._consumer is None else self._consumer.member_id

    async def stop(self, error: PacelineError | None = None) -> None:
        """Give the partitions back, commit, leave the group, and end the remaining streams with ``error``."""
        if self.failure is None:
            self.failure = error or ShuttingDownError("the subscription has ended")
            self._on_end()
        self._commands.put(None)
        if self._consumer is not None:
            self._consumer.wakeup()
        if self._thread.is_alive():
            await asyncio.wait_for(self._ended.wait(), _THREAD_WAIT_S)
        self._finish()

    def _finish(self) -> None:
        self._timer.cancel()
        for outbox in self._outboxes.values():
            outbox.end(self.failure or ShuttingDownError("the subscription has ended"))
        self._arrived.set()
        self._on_finished()

    # Effects, on the event loop ----------------------------------------------------------------------------------

    def _apply(self) -> None:
        for effect in self.member.drain():
            found = notice_of(effect)
            if found is not None:
                if found[0] in self._outboxes:
                    self._outboxes[found[0]].put(found[1])
            elif isinstance(effect, Pause):
                self._command(lambda consumer, one=effect: self._pause(consumer, one))  # type: ignore[misc]
            elif isinstance(effect, Seek):
                self._command(lambda consumer, one=effect: self._seek(consumer, one))  # type: ignore[misc]
        self._arrived.set()

    def _command(self, run: Callable[[Consumer], None]) -> None:
        self._commands.put(run)
        if self._consumer is not None:
            self._consumer.wakeup()

    def _subscribe(self) -> None:
        """Subscribe the consumer to the topics of all streams, if they have changed."""
        subscriptions = self._subscriptions.values()
        topics = sorted({topic for one in subscriptions for topic in _topics_of(one)})
        patterns = sorted({one.topic_pattern for one in subscriptions if one.topic_pattern})
        positions = None
        if not self.group and self._first.WhichOneof("start") == "start_positions":
            positions = [TopicPartition(one.topic, one.partition) for one in self._first.start_positions.positions]
        wanted = (topics, patterns, positions)
        if wanted == self._subscribed:
            return
        self._subscribed = wanted
        self._command(lambda consumer: self._subscribe_consumer(consumer, topics, patterns, positions))

    async def _tick(self) -> None:
        """End waits of the member, and commit."""
        next_commit = 0.0
        while True:
            await asyncio.sleep(0.5)
            self.member.tick(_now_ms())
            self._apply()
            now = time.monotonic()
            if self.group and now >= next_commit and self._consumer is not None:
                next_commit = now + self._settings.commit_interval_ms / 1000
                positions = self.member.take_commits()
                if positions:
                    self._command(lambda consumer, one=positions: self._commit(consumer, one))  # type: ignore[misc]

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failure: PacelineError = ShuttingDownError("the subscription has ended")
        consumer: Consumer | None = None
        try:
            consumer = self._open_consumer()
            self._consumer = consumer
            while self._carry_out(consumer):
                self._poll(consumer)
        except PacelineError as error:
            failure = error
            LOG.warning("member ended: group=%s error=%s", self.group, error)
        except Exception as error:
            failure = UnknownServerError("the gateway's member failed, see its log")
            LOG.exception("member failed: group=%s error=%r", self.group, error)
        finally:
            if consumer is not None:
                try:
                    consumer.close()
                except PacelineError as error:
                    LOG.info("closing failed: group=%s error=%s", self.group, error)
            self._loop.call_soon_threadsafe(self._thread_ended, failure)

    def _thread_ended(self, failure: PacelineError) -> None:
        if self.failure is None:
            self.failure = failure
            self._on_end()
        self._ended.set()
        self._finish()

    def _open_consumer(self) -> Consumer:
        latest = self._first.start_at == START_AT_LATEST and self._first.WhichOneof("start") == "start_at"
        settings = self._settings
        return Consumer(
            self._connections,
            auto_offset_reset="latest" if latest else "earliest",
            fetch_max_wait_ms=1_000,
            max_partition_fetch_bytes=256 * 1024,
            max_buffered_bytes=8 * 1024 * 1024,
            group_id=self.group or None,
            enable_auto_commit=False,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=max(1, settings.session_timeout_ms // 10),
            partition_assignment_strategy=[GatewayAssignor(lambda: self.member.stream_count)],
            client_id="paceline-gateway",
        )

    def _carry_out(self, consumer: Consumer) -> bool:
        """Run the waiting commands; return False when the driver stops."""
        while True:
            try:
                # Before the first subscription there is nothing to poll for.
                command = self._commands.get(block=not self._may_poll)
            except queue.Empty:
                return True
            if command is None:
                return False
            command(consumer)

    def _poll(self, consumer: Consumer) -> None:
        try:
            fetched = consumer.poll_batches(_POLL_MS, _POLL_BYTES)
        except LogTruncatedError as error:
            LOG.warning("log truncated: group=%s error=%s", self.group, error)
            return
        except PacelineError as error:
            if not error.retriable or self._is_broken:
                raise
            LOG.warning("reading failed, trying again: group=%s error=%s", self.group, error)
            time.sleep(0.1)
            return
        if fetched:
            batches = [
                (one.topic_partition, batch_of(one), self._epochs.get(one.topic_partition, 0)) for one in fetched
            ]
            self._call(self._take(batches))

    async def _take(self, batches: list[tuple[TopicPartition, Batch, int]]) -> None:
        for tp, batch, epoch in batches:
            if not self.group and tp not in self.member.held:
                self.member.assigned({tp: None}, _now_ms())  # a partition that was added to the topic
            self.member.fetched(tp, batch, epoch)
        self._apply()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_THREAD_WAIT_S)

    def _subscribe_consumer(
        self, consumer: Consumer, topics: list[str], patterns: list[str], positions: list[TopicPartition] | None
    ) -> None:
        self._may_poll = True
        if self.group:
            if patterns:
                alternatives = [f"(?:{one})" for one in patterns] + [re.escape(one) for one in topics]
                consumer.subscribe(pattern="|".join(alternatives), listener=self)
            else:
                consumer.subscribe(topics, listener=self)
            return
        if positions is None:
            positions = [
                TopicPartition(topic, index) for topic in topics for index in range(consumer.partitions_for(topic))
            ]
            consumer.subscribe(topics)
        else:
            consumer.assign(positions)
        self._start(consumer, positions)
        self._call(self._assigned(dict.fromkeys(positions)))

    def _start(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Seek to the start of the subscription where it is a time or a list of positions."""
        kind = self._first.WhichOneof("start")
        if kind == "start_positions":
            wanted = {
                TopicPartition(one.topic, one.partition): one.offset for one in self._first.start_positions.positions
            }
            for tp in partitions:
                if tp in wanted:
                    consumer.seek(tp, wanted[tp])
        elif kind == "start_time_ms" and partitions:
            found = consumer.offsets_for_times(dict.fromkeys(partitions, self._first.start_time_ms))
            ends = consumer.end_offsets([tp for tp, place in found.items() if place is None])
            for tp, place in found.items():
                consumer.seek(tp, ends[tp] if place is None else place.offset)

    async def _assigned(self, committed: dict[TopicPartition, int | None]) -> None:
        self.member.assigned(committed, _now_ms())
        self._apply()

    def _pause(self, consumer: Consumer, effect: Pause) -> None:
        if effect.topic_partition in consumer.assignment():
            (consumer.pause if effect.paused else consumer.resume)([effect.topic_partition])

    def _seek(self, consumer: Consumer, effect: Seek) -> None:
        tp, position = effect.topic_partition, effect.position
        if tp not in consumer.assignment():
            return
        if effect.look_up_committed:
            found = consumer.committed([tp], _LOOKUP_MS)[tp]
            if found is not None and found.offset > position:
                position = found.offset
                self._loop.call_soon_threadsafe(self.member.sought, tp, position, effect.epoch)
        consumer.seek(tp, position)
        self._epochs[tp] = effect.epoch

    def _commit(self, consumer: Consumer, positions: Positions, done: "_Outcome | None" = None) -> None:
        def ended(_offsets: object, error: PacelineError | None) -> None:
            self._loop.call_soon_threadsafe(self._committed, positions, error, done)

        try:
            consumer.commit_async({tp: OffsetAndMetadata(offset) for tp, offset in positions.items()}, ended)
        except PacelineError as error:
            ended(None, error)

    def _committed(
        self,
        positions: Positions,
        error: PacelineError | None,
        done: "_Outcome | None" = None,
    ) -> None:
        if error is None:
            self.member.committed(positions)
        else:
            LOG.info("commit failed: group=%s error=%s", self.group, error)
            self.member.commit_failed(positions)
        self._apply()
        if done is not None and not done.done():
            done.set_result(error)

    # The group's listener, called on the thread in `Consumer.poll` -------------------------------------------------

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Begin at the committed positions, or at the start of the subscription."""
        if not partitions:
            return
        consumer = self._consumer
        assert consumer is not None
        try:
            found = consumer.committed(partitions, _LOOKUP_MS)
            self._start(consumer, [tp for tp, one in found.items() if one is None])
        except PacelineError:
            self._is_broken = True
            raise
        for tp in partitions:
            self._epochs.pop(tp, None)
        self._call(self._assigned({tp: None if one is None else one.offset for tp, one in found.items()}))

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Wait for acknowledgements of delivered records, commit, and forget the partitions."""
        consumer = self._consumer
        assert consumer is not None
        positions = self._call(self._settled(partitions))
        error: PacelineError | None = None
        if positions:
            try:
                consumer.commit({tp: OffsetAndMetadata(offset) for tp, offset in positions.items()}, _COMMIT_MS)
            except PacelineError as failure:
                error = failure
        self._call(self._dropped(partitions, positions, error))

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget partitions that other members may own."""
        self._call(self._dropped(partitions, {}, None, lost=True))

    async def _settled(self, partitions: Sequence[TopicPartition]) -> Positions:
        self.member.revoke(partitions, _now_ms())
        self._apply()
        while not self.member.is_settled(partitions, _now_ms()):
            await asyncio.sleep(_SETTLE_CHECK_S)
        return self.member.final_commits(partitions)

    async def _dropped(
        self,
        partitions: Sequence[TopicPartition],
        positions: Positions,
        error: PacelineError | None,
        lost: bool = False,
    ) -> None:
        if positions:
            self._committed(positions, error)
        self.member.drop(partitions, lost)
        self._apply()


def _topics_of(subscription: Subscription) -> list[str]:
    """Return the topics of a subscription, or those of its positions."""
    return list(subscription.topics) or [one.topic for one in subscription.start_positions.positions]


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
