"""Five rounds of what ``make soak`` does a hundred times."""

from pathlib import Path

import pytest

from tests.soak.kills import soak

ROUNDS, SEED = 5, 20_261_121


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.timeout(1200)
def test_brokers_killed_under_load_lose_nothing_and_end_identical(tmp_path: Path) -> None:
    outcome = soak(tmp_path, ROUNDS, SEED)
    assert outcome.problems == []
    assert outcome.rounds == ROUNDS
    assert outcome.acked == outcome.sent == outcome.read > 1_000
    assert outcome.batches_compared > 100
