"""Pauses between attempts."""

import random

import pytest

from paceline.model.backoff import Backoff


def test_pauses_double_up_to_the_limit_and_are_exact_without_jitter() -> None:
    backoff = Backoff(initial_backoff_ms=1_000, max_backoff_ms=60_000)
    assert [backoff.backoff_ms(attempt) for attempt in (1, 2, 3, 6, 7, 8, 5_000)] == [
        1_000,
        2_000,
        4_000,
        32_000,
        60_000,
        60_000,
        60_000,
    ]


def test_jitter_spreads_pauses_within_its_bounds() -> None:
    rng = random.Random(1)
    pauses = {Backoff(jitter=0.2).backoff_ms(1, rng) for _ in range(100)}
    assert len(pauses) > 1 and min(pauses) >= 80 and max(pauses) <= 120


@pytest.mark.parametrize(
    "wrong", [{"initial_backoff_ms": -1}, {"max_backoff_ms": 1}, {"multiplier": 0.5}, {"jitter": 2}]
)
def test_an_invalid_backoff_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must hold|fraction"):
        Backoff(**wrong)
