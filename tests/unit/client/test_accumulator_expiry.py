"""The delivery timeout, and whether the error of a batch is definite."""

from collections.abc import Callable

import pytest

from paceline.model.errors import (
    BrokerNotAvailableError,
    ClusterAuthorizationError,
    InvalidProducerEpochError,
    NotEnoughReplicasError,
    RequestTimedOutError,
)
from paceline.model.identifiers import TopicPartition
from paceline_client.accumulator import Accumulator
from paceline_client.errors import DeliveryFailedError, ProducerClosedError, ProducerFatalError
from tests.unit.client.accumulators import TP, acknowledge_one, fill, make, put, take


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
