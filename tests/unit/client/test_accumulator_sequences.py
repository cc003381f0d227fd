"""Producer ids and sequences of batches: in flight, retried, refused, and of re-created topics."""

import pytest

from paceline.log.compression import Codec
from paceline.log.record_batch import check_crc, parse_header
from paceline.model.errors import (
    BrokerNotAvailableError,
    InconsistentTopicIdError,
    InvalidProducerEpochError,
    MessageTooLargeError,
    NotEnoughReplicasAfterAppendError,
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
from paceline_client.codec import finish, new_encoder
from paceline_client.errors import DeliveryFailedError
from paceline_client.record_buffer import AccumulatorConfig
from tests.unit.client.accumulators import TP, acknowledge_one, encode, fill, make, put, sequences, take


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
    accumulator.locate(TP, "one", 0)
    acknowledge_one(accumulator)
    fill(accumulator, 4)
    lost, refused, appended, late = (take(accumulator, 0)[0] for _ in range(4))
    accumulator.fail(lost, BrokerNotAvailableError("gone"), 0, answered=False)
    accumulator.fail(refused, InconsistentTopicIdError("another"), 0)
    accumulator.complete(appended, 3, None)  # by the earlier log, so that the next one lacks its sequence
    accumulator.fail(late, InconsistentTopicIdError("another"), 0)
    accumulator.locate(TP, "another", 0)
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
    accumulator.locate(TP, "one", 0)
    acknowledge_one(accumulator)
    retried, following = fill(accumulator, 2)
    take(accumulator, 0)
    accumulator.fail(retried, InconsistentTopicIdError("another"), 0)
    assert take(accumulator, 1_000) == [retried]
    accumulator.locate(TP, "another", 0)
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
    accumulator.locate(TP, "the present one", 0)
    acknowledge_one(accumulator)
    fill(accumulator, 2)
    lost, following = (take(accumulator, 0)[0] for _ in range(2))
    accumulator.fail(lost, BrokerNotAvailableError("gone"), 0, answered=False)
    accumulator.fail(following, OutOfOrderSequenceNumberError("gap"), 0)
    accumulator.locate(TP, "the earlier one", 0)
    accumulator.locate(TP, "the present one", 0)
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


def lose(accumulator: Accumulator, count: int, *unclear: int) -> list[ProducerBatch]:
    """Send ``count`` batches to a leader that has lost an acknowledged batch; no response arrives to ``unclear``."""
    acknowledge_one(accumulator)
    fill(accumulator, count)
    batches = [take(accumulator, 0)[0] for _ in range(count)]
    for index in unclear:
        accumulator.fail(batches[index], BrokerNotAvailableError("connection lost"), 0, answered=False)
    return batches


def test_batches_after_records_that_the_leader_lost_are_sent_in_order_under_a_new_producer_id() -> None:
    accumulator = make()
    a, b, c = lose(accumulator, 3)
    for batch in (a, c, b):
        assert accumulator.fail(batch, OutOfOrderSequenceNumberError("lost"), 0)
    assert take(accumulator, 1_000) == [] and accumulator.needs_producer_id()
    accumulator.set_producer_id(8, 0)
    for expected, sequence in ((a, 0), (b, 1), (c, 2)):
        assert take(accumulator, 1_000) == [expected]
        header = parse_header(encode(accumulator, expected))
        assert (header.producer_id, header.base_sequence) == (8, sequence)
        if expected is a:
            assert take(accumulator, 1_000) == [], "the first batch of the new producer id is alone"
        accumulator.complete(expected, sequence, None)
    assert accumulator.fatal is None


def test_batches_of_unknown_outcome_after_lost_records_are_sent_under_a_new_producer_id() -> None:
    accumulator = make()
    a, b, c = lose(accumulator, 3, 0, 1)
    assert take(accumulator, 1_000) == [a]
    assert parse_header(encode(accumulator, a)).producer_id == 7
    assert accumulator.fail(a, OutOfOrderSequenceNumberError("lost"), 1_000)
    assert take(accumulator, 2_000) == [] and not accumulator.needs_producer_id(), "a batch is in flight"
    assert accumulator.fail(c, BrokerNotAvailableError("connection lost"), 2_000, answered=False)
    assert take(accumulator, 3_000) == [] and accumulator.needs_producer_id()
    accumulator.set_producer_id(8, 0)
    for sequence, batch in enumerate((a, b, c)):
        assert take(accumulator, 3_000) == [batch]
        assert (batch.base_sequence, parse_header(encode(accumulator, batch)).producer_id) == (sequence, 8)
        accumulator.complete(batch, sequence, None)


def test_lost_records_of_one_partition_do_not_change_the_producer_id_of_another() -> None:
    accumulator = make()
    other = TopicPartition("t", 1)
    put(accumulator, b"x", tp=other)
    (x,) = take(accumulator, 0)
    accumulator.complete(x, 0, None)
    (a,) = lose(accumulator, 1)
    accumulator.fail(a, OutOfOrderSequenceNumberError("lost"), 0)
    accumulator.set_producer_id(8, 0)
    put(accumulator, b"y", tp=other)
    ids = {batch.topic_partition: parse_header(encode(accumulator, batch)) for batch in take(accumulator, 1_000)}
    assert {tp: (header.producer_id, header.base_sequence) for tp, header in ids.items()} == {TP: (8, 0), other: (7, 1)}


def test_a_leader_that_refuses_every_producer_id_gets_few_requests_until_the_delivery_timeout() -> None:
    accumulator = make(delivery_timeout_ms=60_000)
    (batch,) = lose(accumulator, 1)
    ids, now_ms = 0, 0
    accumulator.fail(batch, NotLeaderOrFollowerError("moved"), now_ms, leader=(1, 5))
    while not batch.done:
        now_ms += 1
        accumulator.expire(now_ms)
        accumulator.retry_at_new_leaders({TP: (3, 6)}.get, now_ms)
        if accumulator.needs_producer_id():
            ids += 1
            accumulator.set_producer_id(100 + ids, 0)
        for sent in take(accumulator, now_ms):
            accumulator.fail(sent, OutOfOrderSequenceNumberError("broker 3: lost"), now_ms)
    assert now_ms == 60_000 and ids < 70
    assert isinstance(batch.error, DeliveryFailedError)
    assert isinstance(batch.error.cause, OutOfOrderSequenceNumberError)
    assert batch.error.definite and "broker 3" in str(batch.error)


def test_a_new_leader_gets_one_batch_alone_until_it_has_acknowledged_one() -> None:
    accumulator = make()
    accumulator.queue(TP)
    accumulator.locate(TP, "one", 4)
    acknowledge_one(accumulator)
    fill(accumulator, 4)
    of_the_former_leader = take(accumulator, 0)[0]
    accumulator.locate(TP, "one", 5)
    assert take(accumulator, 0) == []
    accumulator.complete(of_the_former_leader, 1, None)
    (first,) = take(accumulator, 0)
    assert take(accumulator, 0) == [], "the new leader has not acknowledged a batch"
    accumulator.complete(first, 2, None)
    assert [len(take(accumulator, 0)) for _ in range(2)] == [1, 1]


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


def test_sequences_wrap_to_zero() -> None:
    accumulator = make()
    acknowledge_one(accumulator)
    accumulator.queue(TP).next_sequence = 2**31 - 1
    fill(accumulator, 2)
    assert [take(accumulator, 0)[0].base_sequence for _ in range(2)] == [2**31 - 1, 0]


def finished(value: bytes, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1) -> bytes:
    encoder = new_encoder(1_000)
    for index in range(3):
        encoder.append(index, 1_000, None, value, [])
    return bytes(finish(encoder, Codec.NONE, producer_id, producer_epoch, base_sequence))


def test_a_finished_batch_follows_the_records_before_it_in_order_and_sequence() -> None:
    accumulator = make()
    put(accumulator, b"record")
    batch = accumulator.add_finished(accumulator.queue(TP), finished(b"x"), 0)
    put(accumulator, b"later")
    drained = []
    for _ in range(3):
        drained += take(accumulator, 0)
        accumulator.complete(drained[-1], 0, None)
    headers = [parse_header(encode(accumulator, each)) for each in drained]
    assert [(each.producer_id, each.base_sequence, each.record_count) for each in headers] == [
        (7, 0, 1), (7, 1, 3), (7, 4, 1),
    ]  # fmt: skip
    check_crc(encode(accumulator, batch), 0, headers[1])
    assert accumulator.buffered_bytes == 0


def test_a_finished_batch_keeps_the_sequences_of_its_caller_without_idempotence() -> None:
    accumulator = make(enable_idempotence=False)
    data = finished(b"x", 99, 3, 40)
    batch = accumulator.add_finished(accumulator.queue(TP), data, 0)
    assert take(accumulator, 0) == [batch] and encode(accumulator, batch) == data
    assert accumulator.fail(batch, NotEnoughReplicasAfterAppendError("planned"), 0)
    assert take(accumulator, 1_000) == [batch] and encode(accumulator, batch) == data
