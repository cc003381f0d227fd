"""Records of a poll and the garbage collector."""

import gc
from collections.abc import Iterator

import pytest

from paceline.log.record_batch import NewRecord, encode_batch
from paceline_client import Consumer
from paceline_client.subscription import PartitionState
from tests.unit.client.test_seek_while_iterating import ONE


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def with_records(consumer: Consumer, count: int) -> PartitionState:
    """Return the state of a partition with prefetched records."""
    state = consumer._assignment.state(ONE)
    state.take_fetched(encode_batch([NewRecord(1_000, None, b"v") for _ in range(count)]), count)
    return state


def test_the_records_of_a_poll_start_no_garbage_collection() -> None:
    collections: list[str] = []

    def collected(phase: str, _information: dict[str, int]) -> None:
        collections.append(phase)

    with Consumer("127.0.0.1:1") as consumer:
        consumer._assignment.assign([ONE], None)
        consumer.seek(ONE, 0)
        with_records(consumer, 10_000)
        gc.collect()
        gc.callbacks.append(collected)
        try:
            records = consumer.poll(timeout_ms=0)[ONE]
            more = [[] for _ in range(100)]
        finally:
            gc.callbacks.remove(collected)
    assert (len(records), len(more)) == (10_000, 100)
    assert collections == []


def test_a_threshold_that_the_program_has_set_stays() -> None:
    gc.set_threshold(5_000, 5, 5)
    with Consumer("127.0.0.1:1"):
        assert gc.get_threshold() == (5_000, 5, 5)
    gc.set_threshold(0)
    with Consumer("127.0.0.1:1"):
        assert gc.get_threshold()[0] == 0


def test_the_threshold_is_bounded() -> None:
    with Consumer("127.0.0.1:1", max_poll_records=10_000_000):
        assert gc.get_threshold() == (100_000, 10, 10)
    with Consumer("127.0.0.1:1", max_poll_records=1):
        assert gc.get_threshold() == (100_000, 10, 10)
