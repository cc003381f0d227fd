"""When the controller is notified of ISR changes: the timings of docs/protocol/replication.md#isr-propagation."""

import pytest

from paceline.model.identifiers import TopicPartition
from paceline.replication.isr_propagation import IsrPropagation

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
TICK_MS = 2_500


def propagation() -> IsrPropagation:
    return IsrPropagation(quiet_ms=5_000, max_wait_ms=60_000)


@pytest.mark.origin("S2-10")
def test_a_change_after_a_minute_without_changes_is_sent_at_the_next_tick() -> None:
    changes = propagation()
    changes.record(A, 100_000)
    assert changes.take_due(100_001) == (A,)


@pytest.mark.origin("S2-10")
def test_a_change_within_a_minute_of_the_last_propagation_waits_for_five_seconds_without_changes() -> None:
    changes = propagation()
    changes.record(A, 0)
    assert changes.take_due(0) == (A,)
    changes.record(B, 10_000)
    assert changes.take_due(14_999) == ()
    assert changes.take_due(15_000) == ()
    assert changes.take_due(15_001) == (B,)


@pytest.mark.origin("S2-10")
def test_constant_changes_are_sent_once_per_minute() -> None:
    changes = propagation()
    told_ms = []
    for now_ms in range(0, 300_000, TICK_MS):
        changes.record(A, now_ms)
        if changes.take_due(now_ms):
            told_ms.append(now_ms)
    assert told_ms == [0, 62_500, 125_000, 187_500, 250_000]


def test_the_minute_counts_from_the_last_propagation_and_is_strict() -> None:
    changes = propagation()
    changes.record(A, 0)
    changes.take_due(0)
    changes.record(B, 59_999)
    assert changes.take_due(60_000) == ()
    changes.record(B, 60_000)
    assert changes.take_due(60_001) == (B,)


@pytest.mark.origin("S2-11")
def test_the_set_holds_each_partition_once_and_is_empty_after_propagation() -> None:
    changes = propagation()
    for tp in (B, A, B):
        changes.record(tp, 1)
    assert changes.pending == (B, A)
    assert changes.take_due(2) == (B, A)
    assert changes.pending == () and changes.take_due(10**6) == ()


def test_changes_whose_write_failed_are_sent_later_with_newer_changes() -> None:
    changes = propagation()
    changes.record(A, 0)
    failed = changes.take_due(0)
    changes.record(B, 1)
    changes.put_back(failed)
    assert changes.take_due(10_000) == (A, B)
