"""State of a consumer's partitions: position, prefetched data, errors. Pure."""

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
    """Start offset of a partition without a position, or with a position out of range."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ERROR = "error"


@dataclass(slots=True)
class _Chunk:
    """Whole fetched batches whose records have not been returned yet."""

    data: bytes
    next_offset: int
    last_epoch: int
    high_watermark: int
    at: int = 0
    """Byte of the first batch that has not been decoded."""
    decoded: list[ConsumerRecord] = field(default_factory=list)
    """Records of the batch before ``at`` that exceeded the limit of the last poll."""
    decoded_end: int = 0
    """Position after these records are returned."""


class PartitionState:
    """One assigned partition. The caller holds the consumer's lock."""

    def __init__(self, topic_partition: TopicPartition, reset: OffsetReset | None) -> None:
        self.topic_partition = topic_partition
        self.position: int | None = None
        """Offset of the next record to return; None until it is looked up."""
        self.position_epoch: int | None = None
        """Leader epoch of the last returned record, None after a seek."""
        self.reset = reset
        """End of the log to look up when there is no position."""
        self.topic_id = ""
        """Topic id of the position, from a fetch or a lookup since the last seek; empty before."""
        self.looked_up: OffsetReset | None = None
        """End of the log that was looked up for the position; None after a fetch from the position."""
        self.fetch_offset = 0
        self.fetch_epoch: int | None = None
        self.generation = 0
        """Increases with every seek; responses to older requests are dropped."""
        self.chunks: deque[_Chunk] = deque()
        self.paused = False
        self.absent = False
        """Whether the topic currently lacks the partition; `poll` does not report this as an error."""
        self.awaits_committed = False
        """Whether to fetch the group's committed offset first."""
        self.error: PacelineError | None = None
        """Error that the next poll raises, once."""
        self.retry_at_ms = 0
        self.failing_since_ms: int | None = None
        """Time of the first failed attempt to read it, None after a success."""
        self.failure: PacelineError | None = None
        """Cause of the failures; a timeout does not replace a more specific cause."""
        self.read_replica: int | None = None
        """Follower that the leader named as read replica (KIP-392), None while the leader is read."""
        self.read_replica_until_ms = 0
        self.read_replica_version: int | None = None
        """Version of the metadata that did not list the follower in the ISR when the leader named it."""
        self.leader_only_until_ms = 0
        """Time until which only the leader is read, after a fetch from a follower failed."""

    def read_from(self, replica: int, until_ms: int, metadata_version: int | None = None) -> None:
        """Read from this follower until then; ignore its ISR state in metadata of this version."""
        self.read_replica, self.read_replica_until_ms = replica, until_ms
        self.read_replica_version = metadata_version

    def back_to_leader(self, leader_only_until_ms: int = 0) -> None:
        """Return to reading from the leader."""
        self.read_replica = None
        self.leader_only_until_ms = leader_only_until_ms

    def buffered_bytes(self) -> int:
        """Return the prefetched bytes."""
        return sum(len(chunk.data) for chunk in self.chunks)

    def seek(self, offset: int, epoch: int | None = None) -> None:
        """Set the position to ``offset`` and discard prefetched data.

        Raises:
            InvalidRequestError: the offset is not valid.
        """
        if not 0 <= offset <= MAX_OFFSET:
            raise InvalidRequestError(f"{self.topic_partition}: an offset must be from 0 to {MAX_OFFSET}, not {offset}")
        self._discard_fetched()
        self.position = self.fetch_offset = offset
        self.position_epoch = self.fetch_epoch = epoch
        self.reset = None

    def seek_found(self, offset: int, topic_id: str) -> None:
        """Set the position to the end of the log that was looked up in the topic with this id."""
        found = self.reset
        self.seek(offset)
        self.topic_id, self.looked_up = topic_id, found

    def seek_to(self, reset: OffsetReset) -> None:
        """Forget the position and look up an end of the log."""
        self._discard_fetched()
        self.position = self.position_epoch = self.fetch_epoch = None
        self.reset = reset

    def _discard_fetched(self) -> None:
        self.generation += 1
        self.awaits_committed = False
        self.chunks.clear()
        self.topic_id = ""
        self.looked_up = None
        self.error = None
        self.retry_at_ms = 0
        self.read_succeeded()

    def read_succeeded(self) -> None:
        """Record a successful attempt to read."""
        self.failing_since_ms = self.failure = None

    def read_failed(self, cause: PacelineError, now_ms: int, limit_ms: int) -> None:
        """Record a retriable failure to read; after ``limit_ms`` without success poll raises the cause."""
        if self.failure is None or not isinstance(cause, RequestTimedOutError):
            self.failure = cause
        if self.failing_since_ms is None:
            self.failing_since_ms = now_ms
        elif now_ms - self.failing_since_ms >= limit_ms and self.error is None:
            self.failing_since_ms = None
            error = RequestTimedOutError(f"{self.topic_partition} could not be read for {limit_ms} ms: {self.failure}")
            error.__cause__ = self.failure
            self.error = error

    def take_fetched(self, data: bytes, high_watermark: int) -> None:
        """Store the data of a fetch at ``fetch_offset``; drops an incomplete last batch, which is fetched again."""
        if not data:
            return
        end, next_offset, epoch = 0, self.fetch_offset, self.fetch_epoch
        for at, header in iterate_headers(data):
            end = at + header.size
            next_offset = header.last_offset + 1
            epoch = header.leader_epoch
        if not end:
            raise CorruptMessageError(f"{self.topic_partition}: {len(data)} bytes at {self.fetch_offset} have no batch")
        if next_offset <= self.fetch_offset:
            raise CorruptMessageError(
                f"{self.topic_partition}: a fetch at {self.fetch_offset} returned batches that end at {next_offset}"
            )
        whole = data if end == len(data) else data[:end]
        self.chunks.append(_Chunk(whole, next_offset, -1 if epoch is None else epoch, high_watermark))
        self.fetch_offset = next_offset
        self.fetch_epoch = epoch if epoch is not None and epoch >= 0 else None

    def truncated(self, epoch: int, end_offset: int) -> None:
        """Handle a log that is the same as the fetched data only below ``end_offset`` (KIP-320, KIP-595).

        Prefetched records are fetched again. The next poll raises `LogTruncatedError` only when returned records were
        truncated: they are at or above that end, or have a later epoch, which this log lacks. In the second case the
        number of truncated records below the end is unknown, so reading continues after them.
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
        """Return up to ``max_records`` records and advance the position past them.

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
        """Return the oldest fetched bytes without decoding, and advance the position past them."""
        if not self.chunks:
            return None
        position = self.position
        assert position is not None
        chunk = self.chunks.popleft()
        self.position = chunk.next_offset
        self.position_epoch = chunk.last_epoch if chunk.last_epoch >= 0 else None
        return FetchedBatches(self.topic_partition, chunk.data, position, chunk.next_offset, chunk.high_watermark)

    def take_error(self) -> PacelineError | None:
        """Return the error that the next poll must raise, once."""
        error, self.error = self.error, None
        return error


class Assignment:
    """The partitions of a consumer, from which records are returned in turn."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, PartitionState] = {}
        self._turn = 0

    def assign(self, partitions: Iterable[TopicPartition], reset: OffsetReset | None) -> None:
        """Read exactly these partitions; partitions assigned before keep their position."""
        wanted = list(dict.fromkeys(partitions))
        self._states = {tp: self._states.get(tp) or PartitionState(tp, reset) for tp in wanted}
        for state in self._states.values():
            state.absent = False

    def assign_from_group(self, partitions: Iterable[TopicPartition], reset: OffsetReset) -> None:
        """Read exactly these partitions; new partitions wait for the group's committed offset."""
        before = self._states
        self.assign(partitions, reset)
        for topic_partition, state in self._states.items():
            if topic_partition not in before:
                state.awaits_committed = True

    def add(self, topic_partition: TopicPartition, reset: OffsetReset | None) -> None:
        """Add a partition."""
        self._states.setdefault(topic_partition, PartitionState(topic_partition, reset))

    def set_partition_counts(self, counts: Mapping[str, int]) -> None:
        """Set the partition counts of topics: read new partitions from their beginning, suspend missing partitions.

        The number can decrease when a topic was re-created, or in the response of a broker with outdated metadata.
        Therefore suspended partitions keep their position.
        """
        for topic, count in counts.items():
            for index in range(count):
                self.add(TopicPartition(topic, index), OffsetReset.EARLIEST)
        for (topic, index), state in self._states.items():
            state.absent = index >= counts.get(topic, index + 1)

    def state(self, topic_partition: TopicPartition) -> PartitionState:
        """Return one partition's state.

        Raises:
            InvalidRequestError: the partition is not assigned.
        """
        state = self._states.get(topic_partition)
        if state is None:
            raise InvalidRequestError(f"{topic_partition} is not assigned to this consumer")
        return state

    def find(self, topic_partition: TopicPartition) -> PartitionState | None:
        """Return one partition's state, None when it is not assigned."""
        return self._states.get(topic_partition)

    def states(self) -> list[PartitionState]:
        """Return all states in the order of assignment, including those of missing partitions."""
        return list(self._states.values())

    def in_turn(self) -> list[PartitionState]:
        """Return the states to serve, starting with a different partition each time so that none starves."""
        states = self.states()
        if not states:
            return []
        self._turn = (self._turn + 1) % len(states)
        return states[self._turn :] + states[: self._turn]

    def buffered_bytes(self) -> int:
        """Return the prefetched bytes of partitions that are not paused."""
        return sum(state.buffered_bytes() for state in self._states.values() if not state.paused)
