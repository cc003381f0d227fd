"""When a batch is ready, and which records fit into it."""

from typing import Any

import pytest

from paceline.model.errors import InvalidRequestError, MessageTooLargeError
from paceline.model.identifiers import TopicPartition
from paceline_client.codec import Row
from tests.unit.client.accumulators import TP, encode, fill, make, put, take
from tests.unit.client.model_broker import ModelPartition


def test_a_batch_waits_for_linger() -> None:
    accumulator = make(linger_ms=5)
    put(accumulator, b"a", now_ms=100)
    assert accumulator.ready(104) == ([], 1)
    assert accumulator.ready(105).partitions == [TP]


def test_a_full_batch_does_not_wait() -> None:
    accumulator = make(linger_ms=1_000)
    fill(accumulator, 2)
    assert accumulator.ready(0).partitions == [TP]


def test_a_flush_does_not_wait() -> None:
    accumulator = make(linger_ms=1_000)
    put(accumulator, b"a")
    accumulator.flushing += 1
    assert accumulator.ready(0).partitions == [TP]


def test_a_record_larger_than_the_limit_is_refused_and_changes_nothing() -> None:
    accumulator = make(max_record_bytes=100)
    with pytest.raises(MessageTooLargeError):
        put(accumulator, bytes(200))
    assert accumulator.buffered_bytes == 0
    assert accumulator.incomplete() == []


def test_the_size_limit_of_a_record_applies_in_an_open_batch() -> None:
    accumulator = make(batch_size=10_000, max_record_bytes=100)
    batch, _ = put(accumulator, b"small")
    before = accumulator.buffered_bytes
    with pytest.raises(MessageTooLargeError):
        put(accumulator, bytes(200))
    with pytest.raises(MessageTooLargeError):
        accumulator.append_to(batch, None, None, bytes(200), [])
    with pytest.raises(MessageTooLargeError):
        accumulator.append_run(batch, [(None, None, bytes(200), [])], 0, with_keys=False)
    assert (accumulator.buffered_bytes, batch.count) == (before, 1)


def test_records_appended_together_equal_records_appended_one_by_one() -> None:
    values = [bytes([number % 251]) * (number % 40) for number in range(200)]
    rows: list[Row] = [(1_000, None, value, []) for value in values]
    one_by_one, in_runs = make(batch_size=500), make(batch_size=500)
    for value in values:
        put(one_by_one, value)
    at = 0
    while at < len(rows):
        batch, index = put(in_runs, values[at])
        after = in_runs.append_run(batch, rows, at + 1, with_keys=False)
        assert batch.count == index + after - at
        at = after
    assert in_runs.buffered_bytes == one_by_one.buffered_bytes
    expected, found = one_by_one.incomplete(), in_runs.incomplete()
    assert [(one.count, one.charged_bytes) for one in found] == [(one.count, one.charged_bytes) for one in expected]
    assert [encode(in_runs, one) for one in found] == [encode(one_by_one, one) for one in expected]


def test_a_run_of_records_stops_at_a_key_unless_keys_are_ignored() -> None:
    rows: list[Row] = [(1_000, key, b"value", []) for key in (None, None, b"key", None)]
    accumulator = make(batch_size=500)
    batch, _ = put(accumulator, b"first")
    assert accumulator.append_run(batch, rows, 0, with_keys=False) == 2
    assert accumulator.append_run(batch, rows, 2, with_keys=False) == 2
    assert accumulator.append_run(batch, rows, 2, with_keys=True) == 4
    assert batch.count == 5


def test_a_run_keeps_the_records_before_a_value_that_is_not_bytes() -> None:
    accumulator = make(batch_size=500)
    batch, _ = put(accumulator, b"a")
    with pytest.raises(TypeError):
        rows: Any = [(1_000, None, b"b", []), (1_000, None, "text", [])]
        accumulator.append_run(batch, rows, 0, with_keys=False)
    put(accumulator, b"c")
    accumulator.flushing += 1
    log = ModelPartition()
    while drained := take(accumulator, 0):
        accumulator.complete(drained[0], log.append(encode(accumulator, drained[0])), None)
    assert log.values == [b"a", b"b", b"c"]


def test_a_value_that_is_not_bytes_is_refused_and_later_records_are_sent() -> None:
    accumulator = make()
    put(accumulator, b"a")
    with pytest.raises(TypeError):
        put(accumulator, "text")  # type: ignore[arg-type]
    put(accumulator, b"b")
    accumulator.flushing += 1
    log = ModelPartition()
    while drained := take(accumulator, 0):
        accumulator.complete(drained[0], log.append(encode(accumulator, drained[0])), None)
    assert log.values == [b"a", b"b"]


def test_a_request_has_at_most_the_given_number_of_bytes() -> None:
    accumulator = make(enable_idempotence=False)
    for partition in range(4):
        put(accumulator, bytes(70), tp=TopicPartition("t", partition))
    assert len(take(accumulator, 0, max_bytes=160)) == 2
    assert len(take(accumulator, 0, max_bytes=1)) == 1
    assert len(take(accumulator, 0, max_bytes=1_000)) == 1


@pytest.mark.parametrize(
    ("timestamp_ms", "headers"),
    [(2**63, []), (1_000, [("\ud800", b"x")])],
    ids=["a time beyond its field", "a header name that is not Unicode"],
)
@pytest.mark.parametrize("first", [True, False])
def test_values_that_a_record_cannot_contain_are_refused_and_other_records_are_sent(
    timestamp_ms: int, headers: list[tuple[str, bytes | None]], first: bool
) -> None:
    accumulator = make()
    if not first:
        put(accumulator, b"a")
    with pytest.raises(InvalidRequestError, match="the record cannot be sent: "):
        accumulator.append(accumulator.queue(TP), timestamp_ms, None, b"v", headers, 0)
    put(accumulator, b"b")
    accumulator.flushing += 1
    log = ModelPartition()
    while drained := take(accumulator, 0):
        accumulator.complete(drained[0], log.append(encode(accumulator, drained[0])), None)
    assert log.values == ([b"b"] if first else [b"a", b"b"])


def test_a_run_refuses_a_timestamp_that_exceeds_its_field() -> None:
    accumulator = make(batch_size=500)
    batch, _ = put(accumulator, b"a")
    with pytest.raises(InvalidRequestError, match="the record cannot be sent: "):
        accumulator.append_run(batch, [(2**63, None, b"b", [])], 0, with_keys=False)
    assert (batch.sealed, batch.count) == (True, 1)
