"""Clients, each a separate process on the simulated network, and producers, which record the answers.

Like real clients they know the cluster only from metadata requests to random brokers and from leader hints in errors.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.broker.metadata_cache import MetadataSnapshot
from paceline.log.record_batch import NewRecord, encode_batch, parse_header
from paceline.model import errors
from paceline.model.client_io import (
    LeaderHint,
    PartitionFailure,
    ProduceData,
    ProduceResult,
    RequiredAcks,
)
from paceline.model.errors import ErrorCode, FencedLeaderEpochError, PacelineError
from paceline.model.identifiers import INTERNAL_TOPICS, TopicPartition
from tests.simulation.history import Outcome, Send
from tests.simulation.network import Peer
from tests.simulation.world import NodeScheduler, Skew

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster

_AFTER_APPEND_WITH_ACKS_ALL = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_RETRY_MS = 60
_METADATA_TIMEOUT_MS = 600
_GIVE_UP_MS = 90_000
_LOOK_AROUND_MS = 1_000

ERROR_CLASSES: dict[ErrorCode, type[PacelineError]] = {
    one.code: one
    for one in sorted(PacelineError.__subclasses__(), key=lambda one: one.__name__)
    if one.__module__ == errors.__name__
}


class Client:
    """A client process with its cached metadata."""

    def __init__(self, cluster: "SimulatedCluster", name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.chance = cluster.world.chance(name)
        self.scheduler = NodeScheduler(
            cluster.world, Skew(), lambda error: cluster.checks.unexpected(name, error), name
        )
        self.peer = Peer(name, self.scheduler)
        cluster.network.attach(self.peer)
        self.leaders: dict[TopicPartition, tuple[int, int]] = {}
        """Leader and leader epoch by partition."""
        self.topic_ids: dict[str, str] = {}
        self.partition_counts: dict[str, int] = {}
        """Partitions of each topic, with or without a leader."""
        self.followed: dict[TopicPartition, None] = {}
        """Partitions that this client writes to or reads from."""
        self.stopped = False
        self._asking = False

    def stop(self) -> None:
        """Start no further requests."""
        self.stopped = True

    def look_around(self) -> None:
        """Refresh the metadata periodically, because partitions are created and deleted."""
        if not self.stopped:
            self.refresh()
            self.scheduler.call_later(_LOOK_AROUND_MS * self.chance.uniform(0.8, 1.2), self.look_around)

    def follow(self, topic_partition: TopicPartition) -> None:
        """Start using a new partition."""

    def refresh(self) -> None:
        """Request metadata from a random broker, unless a request is in flight."""
        if self._asking:
            return
        self._asking = True
        broker_id = self.chance.choice(self.cluster.profile.broker_ids)
        name = f"broker-{broker_id}"

        def handle(reply: Callable[[MetadataSnapshot | Exception], None]) -> None:
            life = self.cluster.broker_named(name)
            if life is not None:
                reply(life.node.metadata.snapshot)

        self.cluster.network.call(self.peer, name, handle, _METADATA_TIMEOUT_MS, self._refreshed)

    def _refreshed(self, snapshot: MetadataSnapshot | Exception) -> None:
        self._asking = False
        if isinstance(snapshot, Exception):
            return
        dead = self.cluster.checks.dead_topic_ids
        for topic in [topic for topic in self.topic_ids if topic not in snapshot.topics]:
            if self.topic_ids[topic] in dead:
                self._forget(topic)
        for topic, partitions in snapshot.topics.items():
            topic_id = next((state.topic_id for state in partitions.values()), None)
            if topic_id is None or topic in INTERNAL_TOPICS:
                continue
            if self.topic_ids.get(topic) != topic_id:
                if topic_id in dead:
                    continue
                self._forget(topic)
                self.topic_ids[topic] = topic_id
            self.partition_counts[topic] = len(partitions)
            for index, state in partitions.items():
                topic_partition = TopicPartition(topic, index)
                self.learn(topic_partition, state.leader, state.leader_epoch)
                if topic_partition not in self.followed:
                    self.followed[topic_partition] = None
                    self.follow(topic_partition)

    def _forget(self, topic: str) -> None:
        self.topic_ids.pop(topic, None)
        self.partition_counts.pop(topic, None)
        for topic_partition in [tp for tp in self.leaders if tp.topic == topic]:
            del self.leaders[topic_partition]

    def learn(self, topic_partition: TopicPartition, leader: int, leader_epoch: int) -> None:
        """Store the leader of the latest answer, like a simple client, even if an earlier answer had a newer epoch."""
        if leader >= 0:
            self.leaders[topic_partition] = (leader, leader_epoch)

    def refused(self, topic_partition: TopicPartition, failure: PartitionFailure | None) -> None:
        """Handle an error of a leader: use its hint, and refresh the metadata."""
        if failure is not None and failure.leader is not None and self._concerns(topic_partition, failure.leader):
            self.learn(topic_partition, failure.leader.leader_id, failure.leader.leader_epoch)
        self.refresh()

    def _concerns(self, topic_partition: TopicPartition, hint: LeaderHint) -> bool:
        """Whether a leader hint is about the cached topic id, not another topic with the same name."""
        return hint.topic_id in (None, self.topic_ids.get(topic_partition.topic))


class Producer(Client):
    """Sends batches; with acks=all idempotent, with retries until the outcome is known.

    A partition has one batch in flight, or ``in_flight`` batches of an idempotent producer. Then the rules of
    docs/protocol/clients.md hold: the first batch of a producer id is sent alone, at most ``in_flight`` batches from
    the oldest unanswered one on have a sequence, and only the oldest unanswered batch is repeated.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str, acks: RequiredAcks) -> None:
        super().__init__(cluster, name)
        self._acks = acks
        self._idempotent = acks is RequiredAcks.ALL
        self._fenced = self.chance.random() < 0.5
        """Whether its requests contain the leader epoch in its metadata."""
        self._producer_id: int | None = None if self._idempotent else -1
        self._sequences: dict[tuple[str, int], int] = {}
        self._in_flight = cluster.profile.in_flight if self._idempotent else 1
        self._known_to_leader: set[tuple[str, int]] = set()
        """Topic ids and partitions with an acknowledged batch of the producer id."""
        self._made = 0
        self.open: dict[TopicPartition, list[Send]] = {}
        """Sends from the oldest open one on."""
        self.succeeded: dict[TopicPartition, int] = {}
        """Start of the last successful send, in microseconds."""

    def start(self) -> None:
        """Begin sending."""
        if self._idempotent:
            self._ask_for_id()
        self.look_around()

    def follow(self, topic_partition: TopicPartition) -> None:
        """Start sending to a partition."""
        self._later(topic_partition)

    def _ask_for_id(self) -> None:
        self._producer_id = None
        name = f"broker-{self.chance.choice(self.cluster.profile.broker_ids)}"

        def handle(reply: Callable[[tuple[int, int] | Exception], None]) -> None:
            life = self.cluster.broker_named(name)
            if life is not None:
                life.node.init_producer_id(reply)

        def done(answer: tuple[int, int] | Exception) -> None:
            if isinstance(answer, Exception):
                self.scheduler.call_later(_RETRY_MS, self._ask_for_id)
            else:
                self._producer_id = answer[0]
                self._sequences.clear()
                self._known_to_leader.clear()

        self.cluster.network.call(self.peer, name, handle, 1_000, done)

    def _later(self, topic_partition: TopicPartition) -> None:
        delay_ms = self.chance.uniform(0.2, 1.8) * self.cluster.profile.send_every_ms
        self.scheduler.call_later(delay_ms, lambda: self._send_next(topic_partition))

    def _send_next(self, topic_partition: TopicPartition) -> None:
        if self.stopped:
            return
        topic_id = self.topic_ids.get(topic_partition.topic)
        if topic_id is None or self._producer_id is None or topic_partition not in self.leaders:
            self.refresh()
            self._later(topic_partition)
            return
        if self._in_flight > 1:
            self._later(topic_partition)
            sent = self.open.get(topic_partition)
            alone = (topic_id, topic_partition.partition) not in self._known_to_leader
            if sent and (alone or len(sent) >= self._in_flight):
                return
        send = self._make(topic_partition, topic_id, self._producer_id)
        self.open.setdefault(topic_partition, []).append(send)
        self._try(send)

    def _make(self, topic_partition: TopicPartition, topic_id: str, producer_id: int) -> Send:
        count = self.chance.choice((1, 1, 2, 4))
        self._made += 1
        key = (topic_id, topic_partition.partition)
        sequence = self._sequences.get(key, 0) if producer_id >= 0 else -1
        size = self.chance.choice((1, 1, 8))
        batch = self._encode(topic_partition, count, size, producer_id, sequence, "")
        while parse_header(batch).crc in self.cluster.checks.history.by_crc:
            # The checks know a batch by its checksum; among thousands two may have the same.
            batch = self._encode(topic_partition, count, size, producer_id, sequence, f"{self.chance.random()}/")
        if producer_id >= 0:
            self._sequences[key] = sequence + count
        header = parse_header(batch)
        send = Send(
            client=self.name,
            topic_partition=topic_partition,
            topic_id=topic_id,
            acks=self._acks,
            batch=batch,
            crc=header.crc,
            timestamp_ms=header.max_timestamp,
            count=count,
            producer_id=producer_id,
            sequence=sequence,
            invoked_us=self.cluster.world.now_us,
        )
        self.cluster.checks.sent(send)
        return send

    def _encode(
        self, topic_partition: TopicPartition, count: int, size: int, producer_id: int, sequence: int, salt: str
    ) -> bytes:
        records = [
            NewRecord(
                self.scheduler.wall_ms(),
                None,
                f"{self.name}/{topic_partition.partition}/{self._made}/{i}/{salt}".encode() + b"." * 20 * size,
            )
            for i in range(count)
        ]
        return encode_batch(
            records, producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1, base_sequence=sequence
        )

    def _try(self, send: Send) -> None:
        topic_partition = send.topic_partition
        if send.outcome is not Outcome.OPEN:
            return
        gone = self.topic_ids.get(topic_partition.topic) != send.topic_id
        if gone or self.cluster.world.now_us - send.invoked_us > _GIVE_UP_MS * 1_000:
            self._end(send, Outcome.UNKNOWN if send.in_doubt else Outcome.FAIL, "the topic was deleted")
            return
        known = self.leaders.get(topic_partition)
        if known is None:
            self.refresh()
            self._again(send)
            return
        if send.tries and not self._is_oldest(send):
            self._again(send)
            return
        send.tries += 1
        alone = self._is_oldest(send)
        name = f"broker-{known[0]}"
        timeout_ms = self.cluster.profile.request_timeout_ms
        epoch = known[1] if self._fenced else None
        data = [ProduceData(topic_partition, send.topic_id, send.batch, epoch)]
        copies = refused = 0

        def handle(reply: Callable[[list[ProduceResult] | Exception], None]) -> None:
            nonlocal copies
            life = self.cluster.broker_named(name)
            if life is None or refused:
                return
            copies += 1
            asked = self.cluster.checks.deposed.asked(life)

            def answer(results: list[ProduceResult]) -> None:
                nonlocal refused
                self.cluster.checks.produce_answered(life, send, results[0], asked)
                refused += results[0].failure is not None
                # A connection delivers a request once: an error counts only when both copies of the request failed.
                if results[0].failure is None or refused == copies:
                    reply(results)

            life.node.produce(send.acks, timeout_ms, data, answer, producer=self.peer)

        self.cluster.network.call(
            self.peer, name, handle, timeout_ms + 300, lambda results: self._answered(send, known[0], alone, results)
        )

    def _is_oldest(self, send: Send) -> bool:
        return self.open[send.topic_partition][0] is send

    def _answered(self, send: Send, leader: int, alone: bool, results: list[ProduceResult] | Exception) -> None:
        """Handle the answer; ``alone`` says that the send was the oldest open one when the request was sent."""
        if send.outcome is not Outcome.OPEN:
            return
        if isinstance(results, Exception):
            send.in_doubt = True
            self.refresh()
            self._failed(send, retriable=True, why="no answer")
            return
        result = results[0]
        failure = result.failure
        if failure is None:
            send.offset = result.base_offset if send.acks is not RequiredAcks.NONE else None
            if send.producer_id == self._producer_id:
                self._known_to_leader.add((send.topic_id, send.topic_partition.partition))
            self._end(send, Outcome.OK, f"at {send.offset} by {leader}")
            return
        kind = ERROR_CLASSES.get(failure.code, PacelineError)
        # Without acks=all these errors are returned only before the append: see _AFTER_APPEND_WITH_ACKS_ALL.
        only_before_append = send.acks is not RequiredAcks.ALL and failure.code in _AFTER_APPEND_WITH_ACKS_ALL
        send.in_doubt = send.in_doubt or not (kind.definite or only_before_append)
        self.refused(send.topic_partition, failure)
        if failure.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if not alone:
                self._again(send)  # It overtook an earlier batch.
                return
            self.cluster.checks.out_of_order(send, failure.message)
            self._ask_for_id()
        # FENCED_LEADER_EPOCH only means that the client's metadata are old; the broker wrote no record.
        self._failed(send, kind.retriable or kind is FencedLeaderEpochError, failure.code.name)

    def _failed(self, send: Send, retriable: bool, why: str) -> None:
        if retriable and self._idempotent:
            self._again(send)
            return
        if send.in_doubt and send.producer_id >= 0 and send.producer_id == self._producer_id:
            # An earlier attempt may be in the log, so the next sequence is unknown: continue with a new producer id.
            self._ask_for_id()
        self._end(send, Outcome.UNKNOWN if send.in_doubt else Outcome.FAIL, why)

    def _again(self, send: Send) -> None:
        self.scheduler.call_later(_RETRY_MS * self.chance.uniform(0.5, 2.0), lambda: self._try(send))

    def _end(self, send: Send, outcome: Outcome, why: str) -> None:
        send.outcome = outcome
        send.completed_us = self.cluster.world.now_us
        self.cluster.note(
            self.name, f"send of {send.count} to {send.topic_partition}: {outcome.value} {why}, {send.tries} tries"
        )
        following = self._close(send)
        if outcome is not Outcome.OK and following:
            # Its sequence continues a batch that may be missing; the call also ends the sends after it.
            self._end(following[0], Outcome.UNKNOWN, "an earlier send failed")
            if send.producer_id == self._producer_id:
                self._ask_for_id()
        elif outcome is Outcome.FAIL and send.producer_id >= 0 and send.producer_id == self._producer_id:
            # Definitely not written, and no later batch was sent: the next batch uses its sequence.
            self._sequences[send.topic_id, send.topic_partition.partition] = send.sequence
        if outcome is Outcome.OK:
            self.succeeded[send.topic_partition] = send.invoked_us
        if self._in_flight == 1:
            self._later(send.topic_partition)

    def _close(self, send: Send) -> list[Send]:
        """Forget the oldest sends that have ended; return the open sends that continue the sequence of ``send``."""
        sends = self.open[send.topic_partition]
        following = [
            one
            for one in sends[sends.index(send) + 1 :]
            if one.outcome is Outcome.OPEN and (one.topic_id, one.producer_id) == (send.topic_id, send.producer_id)
        ]
        while sends and sends[0].outcome is not Outcome.OPEN:
            sends.pop(0)
        if not sends:
            del self.open[send.topic_partition]
        return following
