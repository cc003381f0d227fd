"""Pauses by address: they end by time, do not shrink, and overlapping pauses count once."""

from paceline_client.throttle import Throttles


def test_a_pause_is_of_one_address_and_ends() -> None:
    throttles = Throttles()
    throttles.note("a:1", 500, 1_000)
    assert throttles.left_ms("a:1", 1_200) == 300
    assert throttles.left_ms("b:1", 1_200) == 0
    assert throttles.left_ms("a:1", 1_500) == 0
    throttles.note("a:1", 0, 1_600)
    assert throttles.left_ms("a:1", 1_600) == 0 and throttles.total_ms == 500


def test_a_shorter_pause_does_not_end_a_longer_one_and_the_common_part_counts_once() -> None:
    throttles = Throttles()
    throttles.note("a:1", 500, 0)
    throttles.note("a:1", 100, 100)
    assert throttles.left_ms("a:1", 100) == 400 and throttles.total_ms == 500
    throttles.note("a:1", 600, 200)
    assert throttles.left_ms("a:1", 200) == 600 and throttles.total_ms == 800
