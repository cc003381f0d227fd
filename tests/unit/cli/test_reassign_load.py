"""Rates between two readings of a partition's counters."""

from paceline.cli.reassign_load import Reading, rates


def test_rates_survive_a_counter_that_starts_over() -> None:
    assert rates(Reading(1, 100, 50), Reading(1, 300, 150), 10.0) == (20.0, 10.0)
    assert rates(Reading(1, 100, 50), Reading(1, 40, 10), 10.0) == (4.0, 1.0)
    assert rates(Reading(1, 100, 50), Reading(2, 4_000, 10), 10.0) == (0.0, 0.0)
    assert rates(None, Reading(1, 1, 1), 10.0) == (0.0, 0.0)
