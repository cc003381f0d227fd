"""Accumulators over simulated networks that lose, delay and reorder requests."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from paceline.model.errors import (
    BrokerNotAvailableError,
    FencedLeaderEpochError,
    MessageTooLargeError,
    NotLeaderOrFollowerError,
    PacelineError,
)
from paceline.model.identifiers import TopicPartition
from paceline_client.accumulator import Accumulator
from paceline_client.batch import ProducerBatch
from paceline_client.record_buffer import AccumulatorConfig
from tests.unit.client.accumulators import TP, encode
from tests.unit.client.model_broker import ModelPartition


@dataclass
class Attempt:
    batch: ProducerBatch
    data: bytes
    leader_epoch: int | None


@dataclass
class Simulation:
    """A producer's accumulator, a network that reorders, loses and delays, and model brokers."""

    seed: int
    partitions: int = 3
    losses: float = 0.1
    refusals: float = 0.1
    hard_failures: float = 0.0
    elections: float = 0.0
    """Chance in each step that a leader without the latest batches is elected."""
    delivery_timeout_ms: int = 1_000_000
    max_in_flight: int = 5
    now_ms: int = 0
    sent: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    futures: dict[bytes, tuple[ProducerBatch, int]] = field(default_factory=dict)
    network: list[Attempt] = field(default_factory=list)
    stragglers: list[Attempt] = field(default_factory=list)
    answers: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.accumulator = Accumulator(
            AccumulatorConfig(
                batch_size=120,
                linger_ms=3,
                delivery_timeout_ms=self.delivery_timeout_ms,
                max_in_flight=self.max_in_flight,
                retry_backoff_ms=5,
                retry_backoff_max_ms=20,
            )
        )
        self.logs = {TopicPartition("t", index): ModelPartition() for index in range(self.partitions)}
        self.leader_epochs = dict.fromkeys(self.logs, 0)
        """Leader epochs in the metadata of the client."""
        self.next_id = 100

    def send(self) -> None:
        tp = TopicPartition("t", self.rng.randrange(self.partitions))
        value = b"%06d" % len(self.futures)
        batch, index, _ = self.accumulator.append(self.accumulator.queue(tp), 1, None, value, [], self.now_ms)
        self.futures[value] = (batch, index)
        self.sent.setdefault(tp, []).append(value)

    def step(self) -> None:
        self.now_ms += self.rng.randrange(4)
        self.accumulator.expire(self.now_ms)
        if self.accumulator.needs_producer_id() and self.rng.random() < 0.5:
            self.next_id += 1
            self.accumulator.set_producer_id(self.next_id, 0)
        tp, log = self.rng.choice(list(self.logs.items()))
        if self.rng.random() < self.elections:
            log.elect_unclean(self.rng.choice([1, 2, 4, 1_000]))
        if self.rng.random() < 0.3:
            self.leader_epochs[tp] = log.leader_epoch
        ready = self.accumulator.ready(self.now_ms).partitions
        for tp in ready:
            self.accumulator.locate(tp, "id", self.leader_epochs[tp])
        for batch in self.accumulator.drain(ready, 300, self.now_ms):
            self.network.append(
                Attempt(batch, encode(self.accumulator, batch), self.leader_epochs[batch.topic_partition])
            )
        if self.stragglers and self.rng.random() < 0.2:
            self.append_quietly(self.stragglers.pop(self.rng.randrange(len(self.stragglers))))
        if self.network and self.rng.random() < 0.6:
            self.arrive(self.network.pop(self.rng.randrange(min(len(self.network), 4))))
        if self.answers and self.rng.random() < 0.6:
            self.answers.pop(self.rng.randrange(min(len(self.answers), 4)))()

    def answer(self, outcome: Callable[[], object]) -> None:
        self.answers.append(outcome)

    def append(self, attempt: Attempt) -> int:
        log = self.logs[attempt.batch.topic_partition]
        if attempt.leader_epoch != log.leader_epoch:
            raise FencedLeaderEpochError(f"{attempt.leader_epoch}, the leader has {log.leader_epoch}")
        return log.append(attempt.data)

    def append_quietly(self, attempt: Attempt) -> None:
        try:
            self.append(attempt)
        except PacelineError:
            pass

    def arrive(self, attempt: Attempt) -> None:
        chance = self.rng.random()
        if chance < self.losses:
            which = self.rng.randrange(3)
            if which == 0:
                self.append_quietly(attempt)
            elif which == 1:
                self.stragglers.append(attempt)
            self.answer(lambda: self.fail(attempt, BrokerNotAvailableError("lost"), answered=False))
            return
        chance -= self.losses
        if chance < self.refusals:
            if self.rng.random() < 0.5:
                self.append_quietly(
                    attempt
                )  # the broker led at the append, and no longer when the batch was to be replicated
            self.answer(lambda: self.fail(attempt, NotLeaderOrFollowerError("moved")))
            return
        chance -= self.refusals
        if chance < self.hard_failures:
            self.answer(lambda: self.fail(attempt, MessageTooLargeError("too large")))
            return
        try:
            offset = self.append(attempt)
        except PacelineError as caught:
            error = caught
            self.answer(lambda: self.fail(attempt, error))
        else:
            self.answer(lambda: self.accumulator.complete(attempt.batch, offset, None))

    def fail(self, attempt: Attempt, error: PacelineError, answered: bool = True) -> None:
        self.accumulator.fail(attempt.batch, error, self.now_ms, answered)

    def run(self, records: int) -> None:
        for _ in range(records):
            self.send()
            for _ in range(self.rng.randrange(3)):
                self.step()
        self.accumulator.flushing += 1
        for _ in range(60_000):
            if not self.accumulator.incomplete() and not self.network and not self.answers:
                return
            self.step()
        raise AssertionError(f"seed {self.seed}: {len(self.accumulator.incomplete())} batches never ended")

    def check(self) -> None:
        note = f"seed {self.seed}"
        assert self.accumulator.buffered_bytes == 0, note
        assert self.accumulator.fatal is None, note
        for tp, log in self.logs.items():
            assert len(set(log.values)) == len(log.values), f"{note}: {tp} has a record twice"
            delivered = []
            for value in self.sent.get(tp, []):
                batch, index = self.futures[value]
                assert batch.done, note
                if value not in log.values and self.elections:
                    assert batch.base_offset is not None, f"{note}: {value!r} was lost without an acknowledgement"
                elif batch.error is None:
                    assert batch.base_offset is not None
                    if not self.elections:
                        assert log.values[batch.base_offset + index] == value, f"{note}: wrong offset for {value!r}"
                    delivered.append(value)
                elif not batch.maybe_appended:
                    assert value not in log.values, f"{note}: {value!r} failed definitely but is in the log"
            places = [log.values.index(value) for value in delivered]
            assert places == sorted(places), f"{note}: {tp} changed the order"
            if self.elections:
                assert log.values == sorted(log.values), f"{note}: {tp} changed the order"


@pytest.mark.parametrize("seed", range(60))
def test_every_record_arrives_once_and_in_order_over_any_network(seed: int) -> None:
    simulation = Simulation(seed, losses=0.15, refusals=0.1)
    simulation.run(150)
    simulation.check()
    errors: list[PacelineError] = [batch.error for batch, _ in simulation.futures.values() if batch.error]
    assert errors == []
    assert sum(len(log.values) for log in simulation.logs.values()) == 150


@pytest.mark.parametrize("seed", range(60))
def test_final_failures_neither_duplicate_nor_reorder_later_records(seed: int) -> None:
    simulation = Simulation(seed, losses=0.2, refusals=0.1, hard_failures=0.05, delivery_timeout_ms=60)
    simulation.run(150)
    simulation.check()


@pytest.mark.parametrize("seed", range(20))
def test_one_partition_and_much_reordering_lose_nothing(seed: int) -> None:
    simulation = Simulation(seed, partitions=1, losses=0.05, refusals=0.02)
    simulation.run(300)
    simulation.check()
    assert len(simulation.logs[TP].values) == 300


def test_unclean_leaders_get_every_record_that_was_not_acknowledged_once_and_in_order() -> None:
    new_ids = 0
    for seed in range(120):
        simulation = Simulation(seed, partitions=2, losses=0.1, refusals=0.1, elections=0.02)
        simulation.run(150)
        simulation.check()
        assert [batch.error for batch, _ in simulation.futures.values() if batch.error] == []
        new_ids += simulation.next_id - 101
    assert new_ids > 100, "the simulation does not reach the rule"
