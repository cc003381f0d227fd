"""The checkers of clients report small bad histories of sends and reads and accept good ones."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.log.record_batch import NewRecord, encode_batch, parse_header
from paceline.model.client_io import FetchResult, OffsetAnswer, ProduceResult, RequiredAcks
from paceline.model.replica_fetch import EpochEnd
from tests.simulation.checked_cluster import TOPIC_ID, TP, broker, cluster, log, prepared, violated
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.history import Outcome, Poll, Reading, Send
from tests.simulation.observed_log import Mirror, ObservedLog
from tests.simulation.partition_record import PartitionRecord

__all__ = ["cluster"]


def sent(cluster: SimulatedCluster, value: bytes, **more: Any) -> Send:
    batch = encode_batch([NewRecord(0, None, value)])
    fields: dict[str, Any] = {
        "client": "p",
        "topic_partition": TP,
        "topic_id": TOPIC_ID,
        "acks": RequiredAcks.ALL,
        "batch": batch,
        "crc": parse_header(batch).crc,
        "timestamp_ms": 0,
        "count": 1,
        "producer_id": 1,
        "sequence": 0,
        "invoked_us": 0,
        "completed_us": 1,
        "outcome": Outcome.OK,
        "offset": 0,
        "tries": 1,
    } | more
    send = Send(**fields)
    cluster.checks.history.add(send)
    return send


def finish(cluster: SimulatedCluster, record: PartitionRecord, one: ObservedLog) -> None:
    cluster.checks.clients._readable = lambda *_: None  # type: ignore[method-assign]
    cluster.checks.clients.finish(record, one, [one])


def test_a_lost_record_and_a_record_that_was_never_sent_are_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    send = sent(cluster, b"a")
    finish(cluster, record, log((0, 1, 0, send.crc)))
    assert violated(cluster) == ()
    finish(cluster, record, log((0, 1, 0, 99)))
    assert violated(cluster) == ("C1", "C2")


def test_a_refused_record_in_the_log_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    send = sent(cluster, b"a", outcome=Outcome.FAIL, offset=None)
    finish(cluster, record, log((0, 1, 0, send.crc)))
    assert violated(cluster) == ("C2",)


def test_a_repeated_record_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    send = sent(cluster, b"a")
    finish(cluster, record, log((0, 1, 0, send.crc), (1, 2, 0, send.crc)))
    assert violated(cluster) == ("C4", "C11")


def test_a_gap_in_a_producers_sequence_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    send = sent(cluster, b"a", sequence=3)
    finish(cluster, record, log((0, 1, 0, send.crc)))
    assert violated(cluster) == ("C11",)


def test_an_offset_below_one_that_was_answered_before_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    late = sent(cluster, b"late", invoked_us=10, completed_us=20, offset=0, producer_id=-1)
    early = sent(cluster, b"early", invoked_us=1, completed_us=5, offset=1, producer_id=-1)
    finish(cluster, record, log((0, 1, 0, late.crc), (1, 2, 0, early.crc)))
    assert violated(cluster) == ("C8",)


def test_reading_uncommitted_records_and_records_that_disappear_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    send = sent(cluster, b"a", outcome=Outcome.UNKNOWN, offset=None)
    reading = Reading("r", TP, TOPIC_ID)
    cluster.checks.fetch_answered(broker(1), reading, 0, FetchResult(TP, None, 0, 0, 0, None, send.batch))
    assert violated(cluster) == ("C9",)
    reading.polls.append(Poll(0, 0, 1, send.crc))
    cluster.checks.history.readings.append(reading)
    before = cluster.checks.verdicts.all["C9"].violations
    finish(cluster, record, log())
    assert cluster.checks.verdicts.all["C9"].violations == before + 1


def test_polls_with_a_gap_and_end_offsets_that_fall_are_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    reading = Reading("r", TP, TOPIC_ID)
    record.led_without = [(2, 4)]  # by the only ISR member, which has lost this segment
    cluster.checks.polled(reading, 3, Poll(0, 4, 5, 1))
    assert violated(cluster) == ()
    cluster.checks.polled(reading, 3, Poll(0, 5, 6, 1))
    assert violated(cluster) == ("C7",)
    cluster.checks.end_told(reading, 5, by_deposed=False)
    cluster.checks.end_told(reading, 4, by_deposed=False)
    assert violated(cluster) == ("C7", "C10")


def test_acknowledging_before_the_commit_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    send = sent(cluster, b"a")
    one = log((0, 1, 0, send.crc), high_watermark=0)
    hosted = SimpleNamespace(log=one, is_leader=True, has_enough_replicas=True, isr=(1, 2, 3), leader_epoch=0)
    cluster.checks.produce_answered(broker(1, hosted), send, ProduceResult(TP, None, 0))
    assert violated(cluster) == ("R7",)


def lost_by_election(cluster: SimulatedCluster, start: int, offset: int, epoch: int) -> tuple[str, ...]:
    """Return the verdicts when a record acknowledged at ``offset`` in ``epoch`` is missing; epoch 4 began uncleanly."""
    record = prepared(cluster)
    cluster.checks.unclean_allowed(record)
    record.unclean_starts[4] = start
    record.voided = "an unclean election"
    send = sent(cluster, b"a")
    send.outcome, send.offset, send.leader_epoch = Outcome.OK, offset, epoch
    one = SimpleNamespace(mirror=Mirror(), path="/data/t-0", log_start_offset=0, log_end_offset=0)
    cluster.checks.clients.finish(record, cast(ObservedLog, one), [])
    return violated(cluster)


@pytest.mark.parametrize(("start", "offset", "epoch"), [(2, 1, 3), (0, 1, 4), (-1, 1, 3)])
def test_more_loss_than_an_unclean_election_explains_is_reported(
    cluster: SimulatedCluster, start: int, offset: int, epoch: int
) -> None:
    assert lost_by_election(cluster, start, offset, epoch) == ("C1",)


def test_an_unclean_leader_keeps_its_committed_records(cluster: SimulatedCluster) -> None:
    record, other, shorter = prepared(cluster), Mirror(), Mirror()
    record.committed = Mirror()
    for base in range(4):
        record.committed.add(base, base + 1, 0, base)
    for base in range(6):
        other.add(base, base + 1, 0, base if base < 2 else 99)
    shorter.add(0, 1, 0, 0)
    longer = record.committed.copy()
    longer.add(4, 5, 0, 4)
    assert [record.kept_by(one) for one in (other, shorter, longer, Mirror())] == [2, 1, 5, 0]


def test_loss_above_the_end_of_an_unclean_leader_is_not_reported(cluster: SimulatedCluster) -> None:
    assert lost_by_election(cluster, 1, 1, 3) == ()


def test_a_leader_that_answers_long_after_its_successor_was_elected_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.elected |= {0: (1, 0), 1: (2, 0)}
    record.leaders |= {0: 1, 1: 2}
    deposed = broker(1, SimpleNamespace(log=log(), is_leader=True, leader_epoch=0))
    reading = Reading("r", TP, TOPIC_ID, latest=5)
    answer = OffsetAnswer(TP, None, 4)
    cluster.world.now_us = 10 * cluster.profile.deposed_bound_ms * 1_000
    cluster.checks.end_answered(deposed, reading, answer)
    assert violated(cluster) == ()  # The successor got no request, so followers still prove the leadership.
    record.led_us[1] = 9 * cluster.profile.deposed_bound_ms * 1_000
    cluster.checks.end_answered(deposed, reading, answer)
    cluster.checks.end_told(reading, 4, by_deposed=True)
    assert violated(cluster) == ()  # The leader could not know its successor yet: no violation.
    cluster.world.now_us += 1_000
    cluster.checks.end_answered(deposed, reading, answer)
    assert violated(cluster) == ("C12",)


def test_a_leader_that_answers_in_a_session_after_its_successor_led_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.elected |= {0: (1, 0), 1: (2, 5)}
    record.leaders |= {0: 1, 1: 2}
    record.led_us[1] = 10
    deposed = broker(1, SimpleNamespace(log=log(), is_leader=True, leader_epoch=0))
    cluster.world.now_us = 30
    for deposed.session_us, outside, verdict in ((9, set(), ()), (20, {1}, ()), (20, set(), ("C12",))):
        record.elected_from_outside = outside
        cluster.checks.end_answered(deposed, Reading("r", TP, TOPIC_ID), OffsetAnswer(TP, None, 4))
        assert violated(cluster) == verdict


def test_a_leader_that_answers_after_a_late_renewal_of_its_lease_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.elected |= {0: (1, 0), 1: (2, 5)}
    record.leaders |= {0: 1, 1: 2}
    record.led_us[1] = 10
    deposed = broker(1, SimpleNamespace(log=log(), is_leader=True, leader_epoch=0))
    cluster.world.now_us = 30
    for renewed_us, in_contact, verdict in ((9, True, ()), (20, False, ()), (20, True, ("C12",))):
        cluster.checks.deposed._renewed_us[deposed.node._contact.proof] = renewed_us
        deposed.node.replica_manager.hosted.in_contact = lambda in_contact=in_contact: in_contact
        cluster.checks.end_answered(deposed, Reading("r", TP, TOPIC_ID), OffsetAnswer(TP, None, 4))
        assert violated(cluster) == verdict


def test_a_leader_that_answers_after_it_has_read_that_it_was_deposed_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    hosted: Any = SimpleNamespace(log=log(), is_leader=True, leader_epoch=3)
    for epoch, verdict in ((2, ()), (3, ("C12",))):
        cluster.checks.deposed._read_deposed[id(hosted), epoch] = hosted
        cluster.checks.end_answered(broker(1, hosted), Reading("r", TP, TOPIC_ID), OffsetAnswer(TP, None, 4))
        assert violated(cluster) == verdict


@pytest.mark.parametrize(
    ("end", "verdict"),
    [(EpochEnd(2, 5), ()), (EpochEnd(3, 9), ()), (EpochEnd(2, 4), ("C9",)), (EpochEnd(1, 9), ("C9",)), (None, ("C9",))],
)
def test_the_end_of_an_epoch_that_cuts_off_a_committed_record_is_reported(
    cluster: SimulatedCluster, end: EpochEnd | None, verdict: tuple[str, ...]
) -> None:
    prepared(cluster).committed.add(3, 5, 2, 0)
    cluster.checks.clients.epoch_end_told(Reading("r", TP, TOPIC_ID), 5, 2, end)
    assert violated(cluster) == verdict
