"""`Member`: share the partitions of one group member among the streams and Pull callers of a gateway.

Its driver reports events (a stream joins, records were fetched, an acknowledgement arrived, the group takes partitions
away, time has passed) and carries out the effects that `drain` returns. Rules:

* A record goes to one stream at a time. A partition changes its stream only when every delivered record is acknowledged
  or the time for acknowledgements is over; then the next stream begins at the last acknowledged position.
* Only acknowledged positions are committed.
* A stream that loses a partition gets back the credit of the records that it can no longer acknowledge.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from paceline.gateway.credits import Credits
from paceline.gateway.held_partition import HeldPartition, Holding
from paceline.gateway.spreading import spread
from paceline.gateway.values import (
    Assigned,
    Batch,
    Committed,
    Deliver,
    Effect,
    Pause,
    Positions,
    Refusal,
    Refused,
    Revoked,
    Seek,
    StreamId,
)
from paceline.model.identifiers import TopicPartition

BUFFER_BYTES: Final = 256 * 1024
"""Fetched bytes of a partition that wait for credit; a partition with more is paused."""
BUFFER_BATCHES: Final = 4
PULL: Final[StreamId] = 0
"""Id of the stream that stands for all callers of Pull."""


@dataclass(slots=True)
class _Stream:
    wants: Callable[[str], bool]
    credit: Credits
    is_pull: bool = False
    had: set[TopicPartition] = field(default_factory=set)
    """Partitions that the stream has or had: an acknowledgement of them is late, not wrong."""
    turn: int = 0


class Member:
    """Shares partitions among streams. The caller passes the time in milliseconds."""

    def __init__(self, revocation_ms: int = 5_000) -> None:
        """``revocation_ms`` is the time that a stream has to acknowledge records of a partition that it loses."""
        self._revocation_ms = revocation_ms
        self._streams: dict[StreamId, _Stream] = {}
        self._held: dict[TopicPartition, HeldPartition] = {}
        self._effects: list[Effect] = []

    def drain(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def stream_count(self) -> int:
        """Number of streams."""
        return len(self._streams)

    @property
    def held(self) -> Mapping[TopicPartition, HeldPartition]:
        """The member's partitions."""
        return self._held

    # Streams -----------------------------------------------------------------------------------------------------

    def join(self, stream: StreamId, wants: Callable[[str], bool], credit: Credits, now_ms: int) -> None:
        """Add a stream, which takes over a share of the partitions."""
        self._streams[stream] = _Stream(wants, credit, is_pull=stream == PULL)
        self._spread(now_ms)

    def leave(self, stream: StreamId, now_ms: int) -> None:
        """Remove a stream; other streams continue at the positions that it acknowledged."""
        if self._streams.pop(stream, None) is None:
            return
        for held in self._held.values():
            if held.owner == stream:
                self._release(held)
        self._spread(now_ms)

    def owned_by(self, stream: StreamId) -> list[TopicPartition]:
        """Return the partitions of a stream."""
        return [tp for tp, held in self._held.items() if held.owner == stream]

    # The group ---------------------------------------------------------------------------------------------------

    def assigned(self, committed: Mapping[TopicPartition, int | None], now_ms: int) -> None:
        """Add partitions with their committed positions."""
        for tp, position in committed.items():
            self._held[tp] = HeldPartition(tp, position)
        self._spread(now_ms)

    def revoke(self, partitions: Iterable[TopicPartition], now_ms: int) -> None:
        """Deliver nothing more of these partitions and ask for acknowledgements; call `drop` when `is_settled`."""
        for held in self._known(partitions):
            held.drop_buffer()
            if held.state is Holding.OPEN:
                self._tell_revoked(held, self._revocation_ms)
            held.state = Holding.LEAVING
            held.deadline_ms = now_ms + self._revocation_ms

    def is_settled(self, partitions: Iterable[TopicPartition], now_ms: int) -> bool:
        """Whether no acknowledgement of revoked partitions is missing, or the time for them is over."""
        return all(held.is_settled or now_ms >= held.deadline_ms for held in self._known(partitions))

    def drop(self, partitions: Iterable[TopicPartition], lost: bool = False) -> None:
        """Forget partitions; later acknowledgements of them are refused. ``lost``: the group gave them away already."""
        for held in self._known(partitions):
            if lost and held.state is Holding.OPEN:
                self._tell_revoked(held, 0)
            self._give_back(held)
            del self._held[held.topic_partition]

    # Records -----------------------------------------------------------------------------------------------------

    def fetched(self, topic_partition: TopicPartition, batch: Batch, epoch: int = 0) -> None:
        """Take fetched records and deliver as many as the credit allows."""
        held = self._held.get(topic_partition)
        if held is None or held.epoch != epoch or held.state is Holding.LEAVING or not batch.records:
            return
        held.add(batch)
        self._deliver(held)
        self._set_pause(held)

    def pull(self, max_records: int, max_bytes: int, lease_ms: int, now_ms: int) -> list[tuple[TopicPartition, Batch]]:
        """Lease buffered records of partitions without a lease to a caller of Pull."""
        credit = Credits(max_records, max_bytes)
        found = []
        for tp in self._in_turn(PULL):
            held = self._held[tp]
            if held.state is not Holding.OPEN or held.leased or not held.buffer:
                continue
            count = credit.count_that_fits(held.buffer[0].sizes)
            if not count:
                continue
            batch = held.deliver(count)
            credit.take(count, batch.size)
            held.leased, held.deadline_ms = True, now_ms + lease_ms
            found.append((tp, batch))
            self._set_pause(held)
        return found

    def acknowledge(self, stream: StreamId, topic_partition: TopicPartition, position: int, now_ms: int) -> bool:
        """Record that a caller has processed the records before ``position``; return whether it was accepted."""
        sender = self._streams[stream]
        held = self._held.get(topic_partition)
        if held is None or held.owner != stream:
            if topic_partition in sender.had:
                self._refuse(stream, topic_partition, position, Refusal.REVOKED, "the partition was revoked")
            else:
                self._refuse(
                    stream, topic_partition, position, Refusal.NOT_DELIVERED, "the stream does not have the partition"
                )
            return False
        if not held.was_delivered(position):
            self._refuse(
                stream,
                topic_partition,
                position,
                Refusal.NOT_DELIVERED,
                "the position is above the end of the delivered records" if position >= 0 else "a position is negative",
            )
            return False
        count, size = held.acknowledge(position)
        if sender.is_pull:
            held.leased = held.leased and not held.is_settled
            return True
        sender.credit.give_back(count, size)
        if held.state is Holding.MOVING and held.is_settled:
            self._release(held)
            self._spread(now_ms)
        if count:
            for tp in self._in_turn(stream):
                self._deliver(self._held[tp])
                self._set_pause(self._held[tp])
        return True

    # Commits -----------------------------------------------------------------------------------------------------

    def take_commits(self) -> dict[TopicPartition, int]:
        """Return acknowledged positions to commit; report the outcome with `committed` or `commit_failed`."""
        found = ((tp, held.take_commit()) for tp, held in self._held.items())
        return {tp: position for tp, position in found if position is not None}

    def final_commits(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the acknowledged positions of partitions that the member or a stream gives up."""
        found = ((held.topic_partition, held.final_commit()) for held in self._known(partitions))
        return {tp: position for tp, position in found if position is not None}

    def committed(self, positions: Positions) -> None:
        """Record a commit, and tell the streams."""
        for tp, position in positions.items():
            held = self._held.get(tp)
            if held is None or held.committing != position:
                continue
            held.committed, held.committing = position, None
            if held.owner is not None and not self._streams[held.owner].is_pull:
                self._effects.append(Committed(held.owner, tp, position))

    def commit_failed(self, positions: Positions) -> None:
        """Record that a commit has failed; the next commit includes the positions."""
        for tp in positions:
            held = self._held.get(tp)
            if held is not None:
                held.committing = None

    # Time --------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """End waits for acknowledgements whose time is over, and leases."""
        moved = False
        for held in list(self._held.values()):
            if held.state is Holding.MOVING and now_ms >= held.deadline_ms:
                self._release(held)
                moved = True
            elif held.leased and held.state is Holding.OPEN and now_ms >= held.deadline_ms:
                held.leased = False
                self._restart(held, look_up_committed=True)
        if moved:
            self._spread(now_ms)

    def sought(self, topic_partition: TopicPartition, position: int, epoch: int) -> None:
        """Record where a seek with ``look_up_committed`` began: a higher committed position counts as acknowledged."""
        held = self._held.get(topic_partition)
        if held is not None and held.epoch == epoch and (held.acknowledged or 0) < position:
            held.acknowledged = held.committed = position

    # Helpers -----------------------------------------------------------------------------------------------------

    def _known(self, partitions: Iterable[TopicPartition]) -> list[HeldPartition]:
        return [self._held[tp] for tp in partitions if tp in self._held]

    def _in_turn(self, stream: StreamId) -> list[TopicPartition]:
        """Return the partitions of a stream, starting with a different one each time so that none starves."""
        owned = self.owned_by(stream)
        if not owned:
            return owned
        sender = self._streams[stream]
        sender.turn = (sender.turn + 1) % len(owned)
        return owned[sender.turn :] + owned[: sender.turn]

    def _spread(self, now_ms: int) -> None:
        """Give partitions to streams; a partition with another stream moves when that stream has acknowledged."""
        movable = {tp: held for tp, held in self._held.items() if held.state is not Holding.LEAVING}
        owners = {tp: held.owner for tp, held in movable.items() if held.owner is not None}
        wanted = spread(movable, {one: stream.wants for one, stream in self._streams.items()}, owners)
        for tp, held in movable.items():
            target = wanted.get(tp)
            if held.state is Holding.MOVING or held.owner == target:
                continue
            if held.owner is not None:
                if held.leased:
                    continue  # the next change after the lease moves it
                self._tell_revoked(held, self._revocation_ms)
                if not held.is_settled:
                    held.state, held.deadline_ms = Holding.MOVING, now_ms + self._revocation_ms
                    continue
                self._release(held)
            if target is not None:
                self._give(held, target)
        for held in movable.values():
            self._set_pause(held)

    def _tell_revoked(self, held: HeldPartition, within_ms: int) -> None:
        if held.owner is not None and not self._streams[held.owner].is_pull:
            self._effects.append(Revoked(held.owner, held.topic_partition, held.acknowledged, within_ms))

    def _give(self, held: HeldPartition, stream: StreamId) -> None:
        held.owner, held.state = stream, Holding.OPEN
        receiver = self._streams[stream]
        receiver.had.add(held.topic_partition)
        if not receiver.is_pull:
            self._effects.append(Assigned(stream, held.topic_partition, held.acknowledged))
        self._deliver(held)

    def _release(self, held: HeldPartition) -> None:
        """Take a partition from its stream; records without acknowledgement are delivered again."""
        self._restart(held, look_up_committed=held.leased)
        held.owner, held.leased = None, False
        if held.state is not Holding.LEAVING:
            held.state = Holding.IDLE

    def _restart(self, held: HeldPartition, look_up_committed: bool) -> None:
        self._give_back(held)
        position = held.restart()
        if position is not None and held.state is not Holding.LEAVING:
            self._effects.append(Seek(held.topic_partition, position, held.epoch, look_up_committed))

    def _give_back(self, held: HeldPartition) -> None:
        """Return the credit of unacknowledged records to their stream, if it is still open."""
        stream = self._streams.get(held.owner) if held.owner is not None else None
        if stream is None or stream.is_pull:
            return
        stream.credit.give_back(*held.unacknowledged())
        if held.owner is not None:
            for tp in self._in_turn(held.owner):
                if tp != held.topic_partition:
                    self._deliver(self._held[tp])

    def _deliver(self, held: HeldPartition) -> None:
        if held.state is not Holding.OPEN or held.owner is None:
            return
        stream = self._streams[held.owner]
        while held.buffer and not stream.is_pull:
            count = stream.credit.count_that_fits(held.buffer[0].sizes)
            if not count:
                return
            batch = held.deliver(count)
            stream.credit.take(count, batch.size)
            self._effects.append(Deliver(held.owner, held.topic_partition, batch))

    def _set_pause(self, held: HeldPartition) -> None:
        if held.state is Holding.IDLE:
            full = True
        elif held.paused:
            full = held.buffered_bytes > BUFFER_BYTES // 2 or len(held.buffer) > BUFFER_BATCHES // 2
        else:
            full = held.buffered_bytes >= BUFFER_BYTES or len(held.buffer) >= BUFFER_BATCHES
        if full != held.paused:
            held.paused = full
            self._effects.append(Pause(held.topic_partition, full))

    def _refuse(self, stream: StreamId, tp: TopicPartition, position: int, reason: Refusal, message: str) -> None:
        self._effects.append(Refused(stream, tp, position, reason, message))
