"""Where a consumer stands in each partition: position, what is fetched ahead, what went wrong. Pure."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from paceline.log.record_batch import iterate_headers
from paceline.model.errors import CorruptMessageError, InvalidRequestError, PacelineError, RequestTimedOutError
from paceline.model.identifiers import TopicPartition
from paceline_client.errors import LogTruncatedError
from paceline_client.records import ConsumerRecord, FetchedBatches, decode_batch

MAX_OFFSET: Final = 2**63 - 1


class OffsetReset(Enum):
    """Where to go when there is no position, or one that is out of range."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ERROR = "error"


@dataclass(slots=True)
class _Chunk:
    """Whole batches that were fetched and not handed out yet."""

    data: bytes
    next_offset: int
    last_epoch: int
    high_watermark: int
    at: int = 0
    """Byte of the first batch that is not decoded yet."""
    decoded: list[ConsumerRecord] = field(default_factory=list)
    """Records of the batch before ``at`` that did not fit into the last poll."""
    decoded_end: int = 0
    """Where the position is once those are handed out."""


class PartitionState:
    """One assigned partition. The consumer holds its lock around every call."""

    __slots__ = (
        "absent",
        "awaits_committed",
        "chunks",
        "error",
        "fetch_epoch",
        "fetch_offset",
        "generation",
        "high_watermark",
        "hindered_since_ms",
        "hindrance",
        "leader_only_until_ms",
        "log_start_offset",
        "paused",
        "position",
        "position_epoch",
        "read_replica",
        "read_replica_until_ms",
        "read_replica_version",
        "reset",
        "retry_at_ms",
        "topic_id",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, reset: OffsetReset | None) -> None:
        self.topic_partition = topic_partition
        self.position: int | None = None
        """Offset of the next record to hand out; None until it is looked up."""
        self.position_epoch: int | None = None
        """Leader epoch of the last record handed out, None after a seek."""
        self.reset = reset
        """Which end to look up while there is no position."""
        self.topic_id = ""
        """Topic that the position is one of, as a broker has confirmed it since the last jump; empty before."""
        self.fetch_offset = 0
        self.fetch_epoch: int | None = None
        self.generation = 0
        """Grows with every jump; answers to requests from before it are dropped."""
        self.chunks: deque[_Chunk] = deque()
        self.high_watermark: int | None = None
        self.log_start_offset: int | None = None
        self.paused = False
        self.absent = False
        """Whether the topic has no such partition at present: nobody is told that it cannot be read."""
        self.awaits_committed = False
        """Whether the group's committed offset has to be looked up before anything else."""
        self.error: PacelineError | None = None
        """To be raised by the next poll, once."""
        self.retry_at_ms = 0
        self.hindered_since_ms: int | None = None
        """When the attempts to read it began to fail, None while they do not."""
        self.hindrance: PacelineError | None = None
        """Why they fail; that time ran out says less than what came before it."""
        self.read_replica: int | None = None
        """Follower the leader has sent us to (KIP-392), None while the leader is read."""
        self.read_replica_until_ms = 0
        self.read_replica_version: int | None = None
        """Version of the metadata that did not show the follower in sync when the leader named it."""
        self.leader_only_until_ms = 0
        """Until when the leader is not asked for a follower again, after one that could not be read."""

    def read_from(self, replica: int, until_ms: int, metadata_version: int | None = None) -> None:
        """Read from this follower until then; metadata of this version is not to be believed about it."""
        self.read_replica, self.read_replica_until_ms = replica, until_ms
        self.read_replica_version = metadata_version

    def back_to_leader(self, leader_only_until_ms: int = 0) -> None:
        """Read from the leader again."""
        self.read_replica = None
        self.leader_only_until_ms = leader_only_until_ms

    def buffered_bytes(self) -> int:
        """Return the bytes fetched ahead."""
        return sum(len(chunk.data) for chunk in self.chunks)

    def seek(self, offset: int, epoch: int | None = None) -> None:
        """Go to ``offset`` and drop what was fetched ahead.

        Raises:
            InvalidRequestError: there is no such offset.
        """
        if not 0 <= offset <= MAX_OFFSET:
            raise InvalidRequestError(f"{self.topic_partition}: an offset is from 0 to {MAX_OFFSET}, not {offset}")
        self._jump()
        self.position = self.fetch_offset = offset
        self.position_epoch = self.fetch_epoch = epoch
        self.reset = None

    def seek_to(self, reset: OffsetReset) -> None:
        """Forget the position; it will be looked up."""
        self._jump()
        self.position = self.position_epoch = self.fetch_epoch = None
        self.reset = reset

    def _jump(self) -> None:
        self.generation += 1
        self.awaits_committed = False
        self.chunks.clear()
        self.topic_id = ""
        self.error = None
        self.retry_at_ms = 0
        self.reached()

    def reached(self) -> None:
        """An attempt to read it has not failed."""
        self.hindered_since_ms = self.hindrance = None

    def hindered(self, cause: PacelineError, now_ms: int, limit_ms: int) -> None:
        """An attempt to read failed in a way that waiting may cure; after ``limit_ms`` of nothing else poll tells."""
        if self.hindrance is None or not isinstance(cause, RequestTimedOutError):
            self.hindrance = cause
        if self.hindered_since_ms is None:
            self.hindered_since_ms = now_ms
        elif now_ms - self.hindered_since_ms >= limit_ms and self.error is None:
            self.hindered_since_ms = None
            error = RequestTimedOutError(
                f"{self.topic_partition} could not be read for {limit_ms} ms: {self.hindrance}"
            )
            error.__cause__ = self.hindrance
            self.error = error

    def take_fetched(self, data: bytes, high_watermark: int, log_start_offset: int) -> None:
        """Keep what a fetch at ``fetch_offset`` brought; a cut batch at the end is dropped and fetched again."""
        self.high_watermark = high_watermark
        self.log_start_offset = log_start_offset
        if not data:
            return
        end, next_offset, epoch = 0, self.fetch_offset, self.fetch_epoch
        for at, header in iterate_headers(data):
            end = at + header.size
            next_offset = header.last_offset + 1
            epoch = header.leader_epoch
        if not end:
            raise CorruptMessageError(f"{self.topic_partition}: {len(data)} bytes at {self.fetch_offset} hold no batch")
        if next_offset <= self.fetch_offset:
            raise CorruptMessageError(
                f"{self.topic_partition}: a fetch at {self.fetch_offset} brought batches that end at {next_offset}"
            )
        whole = data if end == len(data) else data[:end]
        self.chunks.append(_Chunk(whole, next_offset, -1 if epoch is None else epoch, high_watermark))
        self.fetch_offset = next_offset
        self.fetch_epoch = epoch if epoch is not None and epoch >= 0 else None

    def truncated(self, epoch: int, end_offset: int) -> None:
        """The log no longer agrees with what was fetched: it does only below ``end_offset`` (KIP-320, KIP-595).

        Records fetched ahead are fetched again. Only when records that were handed out are gone does the next poll
        raise `LogTruncatedError`: they reach beyond that end, or were of a later epoch, which this log lacks. How many
        of the latter lay before the end nobody knows, so reading goes on behind them.
        """
        position = self.position
        assert position is not None
        known_epoch = self.position_epoch
        if end_offset >= position and (known_epoch is None or epoch >= known_epoch):
            self.seek(position, known_epoch)
            return
        agreed = max(0, min(end_offset, position))
        self.seek(agreed, epoch if epoch >= 0 else None)
        self.error = LogTruncatedError(self.topic_partition, position, agreed)

    def hand_out(self, max_records: int, verify: bool) -> list[ConsumerRecord]:
        """Return up to ``max_records`` records and move the position behind them.

        Raises:
            CorruptMessageError: a batch is malformed; the position stays before it, and it is fetched again.
        """
        out: list[ConsumerRecord] = []
        while self.chunks and len(out) < max_records:
            chunk = self.chunks[0]
            if not chunk.decoded and chunk.at < len(chunk.data):
                try:
                    self._decode_next(chunk, verify)
                except PacelineError:
                    if out:
                        return out
                    assert self.position is not None
                    self.seek(self.position, self.position_epoch)
                    raise
            self._move(chunk, out, max_records - len(out))
            if not chunk.decoded and chunk.at >= len(chunk.data):
                self.chunks.popleft()
                self.position = chunk.next_offset
        return out

    def _decode_next(self, chunk: _Chunk, verify: bool) -> None:
        assert self.position is not None
        at, header = next(iterate_headers(chunk.data, chunk.at))
        chunk.decoded = decode_batch(self.topic_partition, chunk.data, at, header, self.position, verify)
        chunk.at = at + header.size
        chunk.decoded_end = header.last_offset + 1
        if header.leader_epoch >= 0:
            self.position_epoch = header.leader_epoch

    def _move(self, chunk: _Chunk, out: list[ConsumerRecord], room: int) -> None:
        if len(chunk.decoded) <= room:
            out.extend(chunk.decoded)
            chunk.decoded = []
            self.position = chunk.decoded_end
        else:
            out.extend(chunk.decoded[:room])
            chunk.decoded = chunk.decoded[room:]
            self.position = chunk.decoded[0].offset

    def hand_out_raw(self) -> FetchedBatches | None:
        """Return the oldest fetched bytes, undecoded, and move the position behind them."""
        if not self.chunks:
            return None
        position = self.position
        assert position is not None
        chunk = self.chunks.popleft()
        self.position = chunk.next_offset
        self.position_epoch = chunk.last_epoch if chunk.last_epoch >= 0 else None
        return FetchedBatches(self.topic_partition, chunk.data, position, chunk.next_offset, chunk.high_watermark)

    def take_error(self) -> PacelineError | None:
        """Return what the next poll shall raise, once."""
        error, self.error = self.error, None
        return error


class Assignment:
    """The partitions a consumer reads, served in turn."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, PartitionState] = {}
        self._turn = 0

    def assign(self, partitions: Iterable[TopicPartition], reset: OffsetReset | None) -> None:
        """Read exactly these partitions; those that stay keep their position."""
        wanted = list(dict.fromkeys(partitions))
        self._states = {tp: self._states.get(tp) or PartitionState(tp, reset) for tp in wanted}
        for state in self._states.values():
            state.absent = False

    def assign_from_group(self, partitions: Iterable[TopicPartition], reset: OffsetReset) -> None:
        """Read exactly these partitions; new ones wait for the offset that their group has committed."""
        before = self._states
        self.assign(partitions, reset)
        for topic_partition, state in self._states.items():
            if topic_partition not in before:
                state.awaits_committed = True

    def add(self, topic_partition: TopicPartition, reset: OffsetReset | None) -> None:
        """Read one more."""
        self._states.setdefault(topic_partition, PartitionState(topic_partition, reset))

    def has_grown_to(self, counts: Mapping[str, int]) -> None:
        """Read so many partitions of these topics, new ones from their beginning; what a topic lacks rests.

        Fewer than before are those of a topic that was made anew, or of the earlier one in the answer of a broker that
        lags behind. So the place in them is kept.
        """
        for topic, count in counts.items():
            for index in range(count):
                self.add(TopicPartition(topic, index), OffsetReset.EARLIEST)
        for (topic, index), state in self._states.items():
            state.absent = index >= counts.get(topic, index + 1)

    def state(self, topic_partition: TopicPartition) -> PartitionState:
        """Return one partition's state.

        Raises:
            InvalidRequestError: it is not assigned.
        """
        state = self._states.get(topic_partition)
        if state is None:
            raise InvalidRequestError(f"{topic_partition} is not assigned to this consumer")
        return state

    def find(self, topic_partition: TopicPartition) -> PartitionState | None:
        """Return one partition's state, None when it is not assigned."""
        return self._states.get(topic_partition)

    def states(self) -> list[PartitionState]:
        """Return all states in the order of assignment, of partitions that are absent, too."""
        return list(self._states.values())

    def in_turn(self) -> list[PartitionState]:
        """Return the states to serve, beginning with another one every time so that none starves."""
        states = self.states()
        if not states:
            return []
        self._turn = (self._turn + 1) % len(states)
        return states[self._turn :] + states[: self._turn]

    def buffered_bytes(self) -> int:
        """Return the bytes fetched ahead for partitions that are not paused: those will be handed out."""
        return sum(state.buffered_bytes() for state in self._states.values() if not state.paused)
