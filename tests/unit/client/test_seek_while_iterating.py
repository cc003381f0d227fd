"""Positions and commits of a group member in a loop over its records."""

import sys
import threading
from collections.abc import Iterator

import pytest

from paceline.model.identifiers import TopicPartition
from paceline_client import Consumer, ConsumerRecord
from paceline_client.groups.held_records import HeldRecords

ONE = TopicPartition("t", 0)


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumer]:
    """Return a member that has polled the offsets 5 to 7."""
    records = [ConsumerRecord("t", 0, offset, 1_000, None, b"v", ()) for offset in (5, 6, 7)]
    monkeypatch.setattr(Consumer, "poll", lambda *_: {ONE: list(records)})
    with Consumer("127.0.0.1:1", group_id="g", enable_auto_commit=False) as made:
        made.take_assignment([ONE])
        made.seek(ONE, 8)
        yield made


@pytest.fixture
def few_steps_per_thread() -> Iterator[None]:
    """Let another thread run after some microseconds."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def test_a_loop_that_is_left_after_a_seek_keeps_the_new_position(consumer: Consumer) -> None:
    for record in consumer:
        consumer.seek(ONE, record.offset)
        break
    assert consumer.consumed()[ONE].offset == consumer.position(ONE) == 5


def test_a_loop_that_is_left_after_a_seek_to_an_end_looks_it_up(consumer: Consumer) -> None:
    for _ in consumer:
        consumer.seek_to_beginning()
        break
    assert ONE not in consumer.consumed()


def test_a_loop_that_is_left_reads_the_remaining_records_again(consumer: Consumer) -> None:
    for _ in consumer:
        break
    assert consumer.position(ONE) == 6


def test_a_commit_in_a_loop_includes_the_records_that_the_loop_has_got(consumer: Consumer) -> None:
    committed = []
    for record in consumer:
        committed.append((record.offset, consumer.consumed()[ONE].offset))
        if record.offset == 7:
            break
    assert committed == [(5, 6), (6, 7), (7, 8)]


def test_a_loop_continues_with_other_partitions_after_a_seek(monkeypatch: pytest.MonkeyPatch) -> None:
    two = TopicPartition("t", 1)
    records = {tp: [ConsumerRecord(*tp, offset, 1_000, None, b"v", ()) for offset in (5, 6)] for tp in (ONE, two)}
    monkeypatch.setattr(Consumer, "poll", lambda *_: dict(records))
    with Consumer("127.0.0.1:1", group_id="g", enable_auto_commit=False) as consumer:
        consumer.take_assignment([ONE, two])
        consumer.seek(two, 7)
        loop = iter(consumer)
        assert next(loop)[:3] == ("t", 0, 5)
        consumer.seek(ONE, 9)
        assert next(loop)[:3] == ("t", 1, 5)
        assert (consumer.consumed()[ONE].offset, consumer.consumed()[two].offset) == (9, 6)


def test_records_that_one_thread_takes_are_not_given_back_by_another(few_steps_per_thread: None) -> None:
    for _ in range(50):
        held = HeldRecords({ONE: [ConsumerRecord("t", 0, offset, 1_000, None, b"v", ()) for offset in range(3_000)]})
        taken: list[int] = []
        begun = threading.Event()

        def take(held: HeldRecords = held, taken: list[int] = taken, begun: threading.Event = begun) -> None:
            for record in held.rest:
                taken.append(record.offset)
                begun.set()

        thread = threading.Thread(target=take)
        thread.start()
        assert begun.wait(60)
        first = held.remove_all().get(ONE, 3_000)
        thread.join(60)
        assert taken == list(range(first))
