"""A seek of a group member in a loop over its records."""

from collections.abc import Iterator

import pytest

from paceline.model.identifiers import TopicPartition
from paceline_client import Consumer, ConsumerRecord

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
