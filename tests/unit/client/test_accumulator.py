import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from paceline.log.compression import Codec
from paceline.log.record_batch import parse_header
from paceline.model.errors import (
    BrokerNotAvailableError,
    ClusterAuthorizationError,
    InconsistentTopicIdError,
    InvalidProducerEpochError,
    InvalidRequestError,
    MessageTooLargeError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OutOfOrderSequenceNumberError,
    PacelineError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline_client.accumulator import Accumulator
from paceline_client.batch import ProducerBatch
from paceline_client.codec import finish
from paceline_client.errors import DeliveryFailedError, ProducerClosedError, ProducerFatalError
from paceline_client.record_buffer import AccumulatorConfig
from tests.unit.client.model_broker import ModelPartition

TP = TopicPartition("t", 0)


def put(accumulator: Accumulator, value: bytes, now_ms: int = 0, tp: TopicPartition = TP) -> tuple[ProducerBatch, int]:
    batch, index, _ = accumulator.append(accumulator.queue(tp), 1_000, None, value, [], now_ms)
    return batch, index


def take(accumulator: Accumulator, now_ms: int, max_bytes: int = 1 << 20) -> list[ProducerBatch]:
    drained = accumulator.drain(accumulator.ready(now_ms).partitions, max_bytes, now_ms)
    for batch in drained:
        encode(accumulator, batch)
    return drained


def encode(accumulator: Accumulator, batch: ProducerBatch) -> bytes:
    if batch.data is None:
        queue = accumulator.queue(batch.topic_partition)
        assert batch.encoder is not None
        if batch.base_sequence is None:
            batch.data = finish(batch.encoder, Codec.NONE)
        else:
            assert queue.producer_id is not None
            batch.data = finish(batch.encoder, Codec.NONE, queue.producer_id, queue.producer_epoch, batch.base_sequence)
    return bytes(batch.data)


def make(**settings: int | bool) -> Accumulator:
    accumulator = Accumulator(AccumulatorConfig(**{"linger_ms": 0, "batch_size": 100, **settings}))  # type: ignore[arg-type]
    accumulator.set_producer_id(7, 0)
    return accumulator


def fill(accumulator: Accumulator, count: int, now_ms: int = 0) -> list[ProducerBatch]:
    """Append ``count`` records that need a batch each."""
    return [put(accumulator, bytes(60), now_ms)[0] for _ in range(count)]


def acknowledge_one(accumulator: Accumulator) -> None:
    put(accumulator, b"first")
    (first,) = take(accumulator, 0)
    accumulator.complete(first, 0, None)


def sequences(accumulator: Accumulator) -> list[int | None]:
    return [batch.base_sequence for batch in accumulator.queue(TP).unresolved]


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


def test_no_batch_is_sent_before_the_producer_id_is_known() -> None:
    accumulator = Accumulator(AccumulatorConfig(linger_ms=0))
    put(accumulator, b"a")
    assert accumulator.ready(0).partitions == []
    assert accumulator.needs_producer_id()
    accumulator.set_producer_id(9, 0)
    assert accumulator.ready(0).partitions == [TP]
    assert not accumulator.needs_producer_id()


def test_only_one_batch_is_in_flight_until_the_leader_knows_the_producer() -> None:
    accumulator = make()
    fill(accumulator, 4)
    (first,) = take(accumulator, 0)
    assert take(accumulator, 0) == []
    accumulator.complete(first, 0, None)
    assert [len(take(accumulator, 0)) for _ in range(4)] == [1, 1, 1, 0]


def test_batches_in_flight_are_sent_to_a_re_created_topic_under_a_new_producer_id_one_at_first() -> None:
    accumulator = make()
    accumulator.queue(TP)
    accumulator.locate(TP, "one")
    acknowledge_one(accumulator)
    fill(accumulator, 4)
    lost, refused, appended, late = (take(accumulator, 0)[0] for _ in range(4))
    accumulator.fail(lost, BrokerNotAvailableError("gone"), 0, answered=False)
    accumulator.fail(refused, InconsistentTopicIdError("another"), 0)
    accumulator.complete(appended, 3, None)  # by the earlier log, so that the next one lacks its sequence
    accumulator.fail(late, InconsistentTopicIdError("another"), 0)
    accumulator.locate(TP, "another")
    # Metadata may be outdated: a batch that may be in the earlier log is retried there before it goes to the new one.
    assert take(accumulator, 1_000) == [lost] and lost.topic_id == "one"
    assert not accumulator.needs_producer_id()
    accumulator.fail(lost, InconsistentTopicIdError("another"), 1_000)
    assert take(accumulator, 2_000) == [] and accumulator.needs_producer_id()
    accumulator.set_producer_id(8, 0)
    (first,) = take(accumulator, 2_000)
    header = parse_header(encode(accumulator, first))
    assert (first, first.topic_id, header.producer_id, header.base_sequence) == (lost, "another", 8, 0)
    assert take(accumulator, 2_000) == []
    accumulator.complete(first, 0, None)
    assert [take(accumulator, 2_000)[0] for _ in range(2)] == [refused, late]
    assert [refused.base_sequence, late.base_sequence] == [1, 2]


@pytest.mark.parametrize("refused_again", [False, True])
def test_a_retry_in_flight_to_a_re_created_topic_is_not_sent_twice_under_a_new_producer_id(refused_again: bool) -> None:
    accumulator = make()
    accumulator.queue(TP)
    accumulator.locate(TP, "one")
    acknowledge_one(accumulator)
    retried, following = fill(accumulator, 2)
    take(accumulator, 0)
    accumulator.fail(retried, InconsistentTopicIdError("another"), 0)
    assert take(accumulator, 1_000) == [retried]
    accumulator.locate(TP, "another")
    assert take(accumulator, 1_000) == [] and not accumulator.needs_producer_id(), "the result of the retry decides"
    accumulator.set_producer_id(8, 0)  # for another partition
    assert take(accumulator, 1_000) == []
    if refused_again:
        accumulator.fail(retried, InconsistentTopicIdError("another"), 1_000)
        assert take(accumulator, 2_000) == [retried]
        assert (retried.topic_id, retried.base_sequence) == ("another", 0)
    accumulator.complete(retried, 1, None)
    assert take(accumulator, 2_000) == [following]
    assert following.base_sequence == int(refused_again)


def test_a_lagging_broker_that_returns_the_deleted_topic_causes_no_duplicate() -> None:
    accumulator = make()
    accumulator.queue(TP)
    accumulator.locate(TP, "the present one")
    acknowledge_one(accumulator)
    fill(accumulator, 2)
    lost, following = (take(accumulator, 0)[0] for _ in range(2))
    accumulator.fail(lost, BrokerNotAvailableError("gone"), 0, answered=False)
    accumulator.fail(following, OutOfOrderSequenceNumberError("gap"), 0)
    accumulator.locate(TP, "the earlier one")
    accumulator.locate(TP, "the present one")
    assert take(accumulator, 1_000) == [lost]
    assert (lost.topic_id, lost.base_sequence) == ("the present one", 1)
    assert parse_header(encode(accumulator, lost)).producer_id == 7


def test_at_most_five_batches_have_a_sequence_and_no_outcome() -> None:
    accumulator = make()
    acknowledge_one(accumulator)
    fill(accumulator, 8)
    while take(accumulator, 0):
        pass
    assert sequences(accumulator) == [1, 2, 3, 4, 5]


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
        accumulator.append_run(batch, None, [(None, bytes(200))], 0, with_keys=False)
    assert (accumulator.buffered_bytes, batch.count) == (before, 1)


def test_records_appended_together_equal_records_appended_one_by_one() -> None:
    values = [bytes([number % 251]) * (number % 40) for number in range(200)]
    pairs = [(None, value) for value in values]
    one_by_one, in_runs = make(batch_size=500), make(batch_size=500)
    for value in values:
        put(one_by_one, value)
    at = 0
    while at < len(pairs):
        batch, index = put(in_runs, pairs[at][1])
        after = in_runs.append_run(batch, 1_000, pairs, at + 1, with_keys=False)
        assert batch.count == index + after - at
        at = after
    assert in_runs.buffered_bytes == one_by_one.buffered_bytes
    expected, found = one_by_one.incomplete(), in_runs.incomplete()
    assert [(one.count, one.charged_bytes) for one in found] == [(one.count, one.charged_bytes) for one in expected]
    assert [encode(in_runs, one) for one in found] == [encode(one_by_one, one) for one in expected]


def test_a_run_of_records_stops_at_a_key_unless_keys_are_ignored() -> None:
    pairs = [(None, b"a"), (None, b"b"), (b"key", b"c"), (None, b"d")]
    accumulator = make(batch_size=500)
    batch, _ = put(accumulator, b"first")
    assert accumulator.append_run(batch, 1_000, pairs, 0, with_keys=False) == 2
    assert accumulator.append_run(batch, 1_000, pairs, 2, with_keys=False) == 2
    assert accumulator.append_run(batch, 1_000, pairs, 2, with_keys=True) == 4
    assert batch.count == 5


def test_a_run_keeps_the_records_before_a_value_that_is_not_bytes() -> None:
    accumulator = make(batch_size=500)
    batch, _ = put(accumulator, b"a")
    with pytest.raises(TypeError):
        accumulator.append_run(batch, 1_000, [(None, b"b"), (None, "text")], 0, with_keys=False)  # type: ignore[list-item]
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


def test_a_retry_keeps_sequence_and_bytes() -> None:
    accumulator = make()
    put(accumulator, b"a")
    (batch,) = take(accumulator, 0)
    before = encode(accumulator, batch)
    assert accumulator.fail(batch, NotLeaderOrFollowerError("moved"), 0)
    assert take(accumulator, 99) == []
    assert take(accumulator, 100) == [batch]
    assert encode(accumulator, batch) == before
    assert parse_header(before).base_sequence == 0


@pytest.mark.parametrize(
    "error, answered",
    [(NotLeaderOrFollowerError("moved"), True), (BrokerNotAvailableError("connection refused"), False)],
    ids=["not the leader", "connection lost"],
)
def test_a_batch_in_back_off_is_sent_to_a_new_leader_at_once(error: PacelineError, answered: bool) -> None:
    accumulator = make()
    put(accumulator, b"a")
    (batch,) = take(accumulator, 0)
    accumulator.fail(batch, error, 0, answered, leader=(1, 5))
    for unchanged in ((1, 5), None):
        assert accumulator.retry_at_new_leaders({TP: unchanged}.get, 10), "metadata must be read again"
        assert take(accumulator, 10) == []
    assert not accumulator.retry_at_new_leaders({TP: (2, 6)}.get, 20)
    assert take(accumulator, 20) == [batch]


def test_a_new_leader_does_not_end_the_back_off_of_other_errors() -> None:
    accumulator = make()
    put(accumulator, b"a")
    (batch,) = take(accumulator, 0)
    accumulator.fail(batch, NotEnoughReplicasError("two are missing"), 0, leader=(1, 5))
    assert not accumulator.retry_at_new_leaders({TP: (2, 6)}.get, 10)
    assert take(accumulator, 99) == []


def test_after_a_failure_batches_are_resent_one_at_a_time_in_order() -> None:
    accumulator = make()
    acknowledge_one(accumulator)
    fill(accumulator, 3)
    a, b, c = (take(accumulator, 0)[0] for _ in range(3))
    accumulator.fail(c, NotLeaderOrFollowerError("moved"), 0)
    accumulator.fail(a, NotLeaderOrFollowerError("moved"), 0)
    accumulator.fail(b, NotLeaderOrFollowerError("moved"), 0)
    fill(accumulator, 1, now_ms=1_000)
    for resent, following in ((a, []), (b, []), (c, [4])):
        assert take(accumulator, 1_000) == [resent]
        assert [batch.base_sequence for batch in take(accumulator, 1_000)] == following
        accumulator.complete(resent, 1, None)
    assert [batch.base_sequence for batch in (a, b, c)] == [1, 2, 3]


def test_a_batch_that_overtook_another_is_sent_again_after_it() -> None:
    accumulator = make()
    acknowledge_one(accumulator)
    fill(accumulator, 2)
    a, b = (take(accumulator, 0)[0] for _ in range(2))
    assert accumulator.fail(b, OutOfOrderSequenceNumberError("gap"), 0)
    assert take(accumulator, 0) == []
    accumulator.complete(a, 1, None)
    assert take(accumulator, 0) == [b]
    assert b.base_sequence == 2


def test_a_batch_that_overtook_another_is_not_fatal_when_the_other_arrived_meanwhile() -> None:
    accumulator = make()
    acknowledge_one(accumulator)
    fill(accumulator, 2)
    a, b = (take(accumulator, 0)[0] for _ in range(2))
    accumulator.complete(a, 1, None)
    assert accumulator.fail(b, OutOfOrderSequenceNumberError("gap"), 0)
    assert accumulator.fatal is None
    assert take(accumulator, 0) == [b]


def test_out_of_order_of_the_oldest_batch_is_fatal_and_never_resets_the_sequence() -> None:
    accumulator = make()
    acknowledge_one(accumulator)
    (batch,) = fill(accumulator, 1)
    take(accumulator, 0)
    assert not accumulator.fail(batch, OutOfOrderSequenceNumberError("lost"), 0)
    assert isinstance(batch.error, ProducerFatalError)
    assert isinstance(accumulator.fatal, ProducerFatalError)
    assert isinstance(accumulator.fatal.cause, OutOfOrderSequenceNumberError)
    assert not accumulator.needs_producer_id()


def test_a_newer_producer_epoch_is_fatal() -> None:
    accumulator = make()
    (batch,) = fill(accumulator, 1)
    take(accumulator, 0)
    accumulator.fail(batch, InvalidProducerEpochError("fenced"), 0)
    assert accumulator.fatal is not None


def test_batches_after_a_refused_one_get_new_sequences_under_a_new_producer_id() -> None:
    accumulator = make()
    acknowledge_one(accumulator)
    fill(accumulator, 3)
    bad, b, c = (take(accumulator, 0)[0] for _ in range(3))
    assert not accumulator.fail(bad, MessageTooLargeError("too large"), 0)
    assert isinstance(bad.error, MessageTooLargeError)
    assert accumulator.fail(b, OutOfOrderSequenceNumberError("gap"), 0)
    assert not accumulator.needs_producer_id()
    assert accumulator.fail(c, OutOfOrderSequenceNumberError("gap"), 0)
    assert accumulator.needs_producer_id()
    accumulator.set_producer_id(8, 0)
    for expected, sequence in ((b, 0), (c, 1)):
        assert take(accumulator, 0) == [expected]
        header = parse_header(encode(accumulator, expected))
        assert (header.producer_id, header.base_sequence) == (8, sequence)
        accumulator.complete(expected, 5, None)


@pytest.mark.parametrize(
    "unclear",
    [RequestTimedOutError("no answer"), NotLeaderOrFollowerError("deposed"), UnknownTopicOrPartitionError("gone")],
    ids=lambda error: type(error).__name__,
)
def test_a_batch_that_may_be_in_the_log_never_gets_another_sequence(unclear: PacelineError) -> None:
    accumulator = make()
    acknowledge_one(accumulator)
    fill(accumulator, 2)
    bad, b = (take(accumulator, 0)[0] for _ in range(2))
    accumulator.fail(bad, MessageTooLargeError("too large"), 0)
    accumulator.fail(b, unclear, 0)
    assert not accumulator.needs_producer_id()
    assert take(accumulator, 1_000) == [b]
    assert b.base_sequence == 2
    assert not accumulator.fail(b, OutOfOrderSequenceNumberError("gap"), 1_000)
    assert isinstance(b.error, OutOfOrderSequenceNumberError)
    assert accumulator.fatal is None


def test_other_partitions_keep_their_producer_id_when_one_needs_a_new_one() -> None:
    accumulator = make()
    other = TopicPartition("t", 1)
    acknowledge_one(accumulator)
    put(accumulator, b"x", tp=other)
    (x,) = take(accumulator, 0)
    accumulator.complete(x, 0, None)
    (bad,) = fill(accumulator, 1)
    take(accumulator, 0)
    accumulator.fail(bad, MessageTooLargeError("too large"), 0)
    put(accumulator, b"a")
    put(accumulator, b"y", tp=other)
    assert accumulator.needs_producer_id()
    (y,) = take(accumulator, 0)
    assert parse_header(encode(accumulator, y)).producer_id == 7
    accumulator.set_producer_id(8, 0)
    (a,) = take(accumulator, 0)
    assert parse_header(encode(accumulator, a)).producer_id == 8


def test_the_error_of_the_delivery_timeout_names_the_last_cause() -> None:
    accumulator = make(delivery_timeout_ms=1_000)
    put(accumulator, b"a")
    (batch,) = take(accumulator, 0)
    accumulator.fail(batch, NotEnoughReplicasError("broker 2 (b2:9092): ISR 1 of 2"), 0)
    (batch,) = take(accumulator, 500)
    accumulator.fail(batch, RequestTimedOutError("deadline"), 900)
    accumulator.expire(1_000)
    assert accumulator.take_ended() == [batch]
    assert isinstance(batch.error, DeliveryFailedError)
    assert isinstance(batch.error.cause, NotEnoughReplicasError)
    assert "broker 2 (b2:9092)" in str(batch.error)
    assert batch.error.maybe_appended
    assert accumulator.buffered_bytes == 0


def test_a_batch_that_was_never_sent_expires_with_the_reason_why() -> None:
    accumulator = make(delivery_timeout_ms=1_000)
    batch, _ = put(accumulator, b"a")
    accumulator.record_error(TP, BrokerNotAvailableError("broker 3 (b3:9092): connection refused"))
    assert accumulator.ready(0).next_check_ms == 1_000
    accumulator.expire(1_000)
    assert isinstance(batch.error, DeliveryFailedError)
    assert isinstance(batch.error.cause, BrokerNotAvailableError)
    assert not batch.error.maybe_appended


ENDS: dict[str, Callable[[Accumulator], None]] = {
    "delivery timeout": lambda accumulator: accumulator.expire(1_000),
    "closed": lambda accumulator: accumulator.fail_all(ProducerClosedError("closed")),
    "fatal": lambda accumulator: accumulator.fail_all(
        ProducerFatalError("fenced", InvalidProducerEpochError("a newer producer epoch exists"))
    ),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_error_of_a_batch_is_definite_unless_the_batch_may_be_in_the_log(
    end: Callable[[Accumulator], None],
) -> None:
    accumulator = make(delivery_timeout_ms=1_000, max_in_flight=3, retry_backoff_ms=900)
    acknowledge_one(accumulator)
    unanswered, refused, in_flight, never_sent = fill(accumulator, 4)
    while take(accumulator, 0):
        pass
    accumulator.fail(unanswered, BrokerNotAvailableError("gone"), 0, answered=False)
    accumulator.fail(refused, NotEnoughReplicasError("too few"), 0)
    end(accumulator)
    errors = [batch.error for batch in (unanswered, refused, in_flight, never_sent)]
    assert [error is not None and error.definite for error in errors] == [False, True, False, True]
    assert all(error is not None and type(error) is type(errors[0]) for error in errors)


def test_a_refusal_after_an_attempt_without_an_answer_is_not_definite() -> None:
    accumulator = make()
    tps = [TopicPartition("t", index) for index in range(2)]
    for tp in tps:
        put(accumulator, b"a", tp=tp)
    lost, refused = take(accumulator, 0)
    accumulator.fail(lost, RequestTimedOutError("no answer"), 0)
    assert take(accumulator, 1_000) == [lost]
    error = ClusterAuthorizationError("not allowed").with_metadata(address="b2:9092")
    error.__cause__ = OSError("certificate")
    for batch in (lost, refused):
        accumulator.fail(batch, error, 1_000)
    assert refused.error is error and error.definite, "the batch without an attempt before shares the error"
    assert isinstance(lost.error, ClusterAuthorizationError) and not lost.error.definite
    assert (str(lost.error), lost.error.metadata, lost.error.__cause__) == (str(error), error.metadata, error.__cause__)


def test_an_internal_error_of_the_sender_is_not_definite() -> None:
    accumulator = make()
    (batch,) = fill(accumulator, 1)
    accumulator.fail_all(ProducerFatalError("the sender failed"))
    assert batch.error is not None and not batch.error.definite


def test_an_attempt_in_flight_expires_for_the_caller_and_a_later_success_leaves_no_gap() -> None:
    accumulator = make(delivery_timeout_ms=1_000)
    put(accumulator, b"a")
    (batch,) = take(accumulator, 0)
    accumulator.expire(1_000)
    assert isinstance(batch.error, DeliveryFailedError)
    assert batch.error.maybe_appended
    accumulator.complete(batch, 0, None)
    put(accumulator, b"b", now_ms=1_000)
    (following,) = take(accumulator, 1_000)
    assert following.base_sequence == 1


def test_a_batch_that_waits_for_an_attempt_in_flight_expires_in_time() -> None:
    accumulator = make(delivery_timeout_ms=1_000)
    acknowledge_one(accumulator)
    first, second = fill(accumulator, 2)
    assert take(accumulator, 0) == [first]
    assert take(accumulator, 0) == [second]
    accumulator.fail(second, NotEnoughReplicasError("too few"), 10)
    accumulator.expire(1_000)
    assert isinstance(first.error, DeliveryFailedError) and isinstance(second.error, DeliveryFailedError)
    assert accumulator.buffered_bytes == 0
    accumulator.complete(first, 1, None)
    (third,) = fill(accumulator, 1, now_ms=1_000)
    assert accumulator.needs_producer_id()
    accumulator.set_producer_id(8, 0)
    assert take(accumulator, 1_000) == [third]
    assert third.base_sequence == 0


def test_an_expired_attempt_that_fails_leaves_a_gap_and_costs_the_producer_id() -> None:
    accumulator = make(delivery_timeout_ms=1_000)
    put(accumulator, b"a")
    (batch,) = take(accumulator, 0)
    accumulator.expire(1_000)
    accumulator.fail(batch, BrokerNotAvailableError("gone"), 1_000, answered=False)
    put(accumulator, b"b", now_ms=1_000)
    assert accumulator.needs_producer_id()


def test_sequences_wrap_to_zero() -> None:
    accumulator = make()
    acknowledge_one(accumulator)
    accumulator.queue(TP).next_sequence = 2**31 - 1
    fill(accumulator, 2)
    assert [take(accumulator, 0)[0].base_sequence for _ in range(2)] == [2**31 - 1, 0]


def test_a_request_has_at_most_the_given_number_of_bytes() -> None:
    accumulator = make(enable_idempotence=False)
    for partition in range(4):
        put(accumulator, bytes(70), tp=TopicPartition("t", partition))
    assert len(take(accumulator, 0, max_bytes=160)) == 2
    assert len(take(accumulator, 0, max_bytes=1)) == 1
    assert len(take(accumulator, 0, max_bytes=1_000)) == 1


@dataclass
class Attempt:
    batch: ProducerBatch
    data: bytes
    answered: bool = False


@dataclass
class Simulation:
    """A producer's accumulator, a network that reorders, loses and delays, and model brokers."""

    seed: int
    partitions: int = 3
    losses: float = 0.1
    refusals: float = 0.1
    hard_failures: float = 0.0
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
        ready = self.accumulator.ready(self.now_ms).partitions
        for batch in self.accumulator.drain(ready, 300, self.now_ms):
            self.network.append(Attempt(batch, encode(self.accumulator, batch)))
        if self.stragglers and self.rng.random() < 0.2:
            self.append_quietly(self.stragglers.pop(self.rng.randrange(len(self.stragglers))))
        if self.network and self.rng.random() < 0.6:
            self.arrive(self.network.pop(self.rng.randrange(min(len(self.network), 4))))
        if self.answers and self.rng.random() < 0.6:
            self.answers.pop(self.rng.randrange(min(len(self.answers), 4)))()

    def answer(self, outcome: Callable[[], object]) -> None:
        self.answers.append(outcome)

    def append_quietly(self, attempt: Attempt) -> None:
        try:
            self.logs[attempt.batch.topic_partition].append(attempt.data)
        except OutOfOrderSequenceNumberError:
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
            offset = self.logs[attempt.batch.topic_partition].append(attempt.data)
        except OutOfOrderSequenceNumberError as caught:
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
                if batch.error is None:
                    assert batch.base_offset is not None
                    assert log.values[batch.base_offset + index] == value, f"{note}: wrong offset for {value!r}"
                    delivered.append(value)
                elif not batch.maybe_appended:
                    assert value not in log.values, f"{note}: {value!r} failed definitely but is in the log"
            places = [log.values.index(value) for value in delivered]
            assert places == sorted(places), f"{note}: {tp} changed the order"


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
        accumulator.append_run(batch, 2**63, [(None, b"b")], 0, with_keys=False)
    assert (batch.sealed, batch.count) == (True, 1)
