"""Two, and slowly five, of the hundred rounds of ``make soak``."""

from pathlib import Path

import pytest

from tests.soak.kills import soak

SEED = 20_261_121


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rounds", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_brokers_killed_under_load_lose_no_record_and_have_identical_logs(tmp_path: Path, rounds: int) -> None:
    outcome = soak(tmp_path, rounds, SEED)
    assert outcome.problems == []
    assert outcome.rounds == rounds
    assert outcome.acked == outcome.sent == outcome.read > 200 * rounds
    assert outcome.batches_compared > 20 * rounds
