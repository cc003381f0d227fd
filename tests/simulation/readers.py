"""Readers, each a separate process on the simulated network; they record the answers."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.log.record_batch import iterate_headers
from paceline.model.client_io import (
    EpochAnswer,
    EpochQuery,
    FetchRequest,
    FetchResponse,
    FetchResult,
    OffsetAnswer,
    OffsetKind,
    OffsetQuery,
)
from paceline.model.errors import ErrorCode
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition
from tests.simulation.clients import Client
from tests.simulation.history import Poll, Reading

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster


class Reader(Client):
    """Reads partitions from the start and sometimes requests end offsets; with a rack it reads from followers there."""

    def __init__(self, cluster: "SimulatedCluster", name: str, rack: str = "") -> None:
        super().__init__(cluster, name)
        self._rack = rack
        self._nearest: dict[TopicPartition, tuple[int, int]] = {}
        """Follower to read from, and the leader epoch of the response that named it."""
        self._fenced = self.chance.random() < 0.5
        """Whether its requests contain the leader epoch in its metadata."""
        self._readings: dict[TopicPartition, Reading] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._starts: dict[str, dict[TopicPartition, int]] = {}
        """Start of the next reading by topic id, from the log start in an OFFSET_OUT_OF_RANGE response."""

    def start(self) -> None:
        """Begin reading."""
        self.look_around()

    def follow(self, topic_partition: TopicPartition) -> None:
        """Start reading a partition."""
        self._later(topic_partition)

    def _later(self, topic_partition: TopicPartition) -> None:
        if not self.stopped:
            delay_ms = self.chance.uniform(20, 150)
            step = self._ask_end if self.chance.random() < 0.1 else self._poll
            self.scheduler.call_later(delay_ms, lambda: step(topic_partition))

    def _reading(self, topic_partition: TopicPartition) -> Reading | None:
        topic_id = self.topic_ids.get(topic_partition.topic)
        if topic_id is None or topic_partition not in self.leaders:
            self.refresh()
            return None
        reading = self._readings.get(topic_partition)
        if reading is None or reading.topic_id != topic_id:
            reading = self._readings[topic_partition] = Reading(self.name, topic_partition, topic_id)
            self._positions[topic_partition] = self._starts.get(topic_id, {}).get(topic_partition, 0)
            self.cluster.checks.history.readings.append(reading)
        return reading

    def _poll(self, topic_partition: TopicPartition) -> None:
        reading = self._reading(topic_partition)
        if reading is None:
            self._later(topic_partition)
            return
        leader, leader_epoch = self.leaders[topic_partition]
        nearest, said_in = self._nearest.get(topic_partition, (leader, leader_epoch))
        name = f"broker-{nearest if said_in == leader_epoch else leader}"
        position = self._positions[topic_partition]
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=4_000,
            partitions=[
                FetchPosition(
                    topic_partition, reading.topic_id, position, 2_000, leader_epoch if self._fenced else None
                )
            ],
            rack=self._rack,
        )

        def handle(reply: Callable[[FetchResponse | Exception], None]) -> None:
            life = self.cluster.broker_named(name)
            if life is None:
                return
            asked = self.cluster.checks.deposed.asked(life)

            def answer(response: FetchResponse) -> None:
                for result in response.results:
                    self.cluster.checks.fetch_answered(life, reading, position, result, asked)
                reply(response)

            life.node.fetch(request, answer)

        def done(response: FetchResponse | Exception) -> None:
            if isinstance(response, Exception) or not response.results:
                self._nearest.pop(topic_partition, None)
                self.refresh()
            elif response.results[0].preferred_read_replica is not None:
                self._nearest[topic_partition] = (response.results[0].preferred_read_replica, leader_epoch)
            else:
                self._polled(reading, position, response.results[0])
            self._later(topic_partition)

        self.cluster.network.call(self.peer, name, handle, 1_200, done)

    def _polled(self, reading: Reading, position: int, result: FetchResult) -> None:
        topic_partition = reading.topic_partition
        if self._readings.get(topic_partition) is not reading:
            return
        if result.failure is not None:
            self.refused(topic_partition, result.failure)
            if self._nearest.pop(topic_partition, None) is not None:
                return  # After any error of a follower, ask the leader.
            if result.failure.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                self.cluster.checks.out_of_range(reading, position, result.failure.message)
                self._readings.pop(topic_partition)
                start = max(0, result.failure.log_start_offset or 0)
                self._starts.setdefault(reading.topic_id, {})[topic_partition] = start
            return
        if not self._rack:  # A follower may answer a reader with a rack, with an earlier high watermark.
            self.cluster.checks.end_told(reading, result.high_watermark, reading.told_by_deposed)
        for _, header in iterate_headers(result.batches):
            poll = Poll(self.cluster.world.now_us, header.base_offset, header.last_offset + 1, header.crc)
            self.cluster.checks.polled(reading, self._positions[topic_partition], poll)
            reading.polls.append(poll)
            reading.latest_epoch = header.leader_epoch
            self._positions[topic_partition] = poll.end

    def _ask_end(self, topic_partition: TopicPartition) -> None:
        reading = self._reading(topic_partition)
        if reading is None:
            self._later(topic_partition)
            return
        leader_id, leader_epoch = self.leaders[topic_partition][:2]
        name, epoch = f"broker-{leader_id}", leader_epoch if self._fenced else None

        def handle(reply: Callable[[list[OffsetAnswer] | Exception], None]) -> None:
            life = self.cluster.broker_named(name)
            if life is None:
                return
            query = OffsetQuery(topic_partition, OffsetKind.LATEST, current_leader_epoch=epoch)
            asked = self.cluster.checks.deposed.asked(life)

            def answer(answers: list[OffsetAnswer]) -> None:
                self.cluster.checks.end_answered(life, reading, answers[0], asked)
                reply(answers)

            life.node.proved_calls.list_offsets([query], 1_000, answer)

        def done(answers: list[OffsetAnswer] | Exception) -> None:
            if isinstance(answers, Exception) or answers[0].failure is not None:
                self.refresh()
            elif answers[0].offset is not None and self._readings.get(topic_partition) is reading:
                self.cluster.checks.end_told(reading, answers[0].offset, reading.end_by_deposed)
            self._later(topic_partition)

        self.cluster.network.call(self.peer, name, handle, 1_200, done)


class EpochReader(Reader):
    """A reader that also asks where the leader epoch of its last record ends, and so finds truncations (KIP-320)."""

    def follow(self, topic_partition: TopicPartition) -> None:
        """Start reading a partition."""
        super().follow(topic_partition)
        self._look_up_later(topic_partition)

    def _look_up_later(self, topic_partition: TopicPartition) -> None:
        if not self.stopped:
            self.scheduler.call_later(100, lambda: self._look_up(topic_partition))

    def _look_up(self, topic_partition: TopicPartition) -> None:
        self._look_up_later(topic_partition)
        reading, known = self._readings.get(topic_partition), self.leaders.get(topic_partition)
        if reading is None or known is None or not reading.polls:
            return
        checks, position, epoch = self.cluster.checks, reading.polls[-1].end, reading.latest_epoch
        name = f"broker-{known[0]}"
        # Shorter than the time for which a fetch of a follower proves a leadership, and longer.
        timeout_ms = self.chance.choice((50, 300, 1_000))

        def handle(reply: Callable[[list[EpochAnswer] | Exception], None]) -> None:
            life = self.cluster.broker_named(name)
            if life is None:
                return
            asked = checks.deposed.asked(life)

            def answer(answers: list[EpochAnswer]) -> None:
                checks.epoch_end_answered(life, reading, position, epoch, answers[0], asked)
                reply(answers)

            life.node.proved_calls.offsets_for_leader_epoch([EpochQuery(topic_partition, epoch)], timeout_ms, answer)

        self.cluster.network.call(self.peer, name, handle, 1_200, lambda _answer: None)
