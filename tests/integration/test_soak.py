"""Five of the hundred rounds of ``make soak``."""

from pathlib import Path

import pytest

from tests.soak.kills import soak

ROUNDS, SEED = 5, 20_261_121


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.timeout(1200)
def test_brokers_killed_under_load_lose_no_record_and_have_identical_logs(tmp_path: Path) -> None:
    outcome = soak(tmp_path, ROUNDS, SEED)
    assert outcome.problems == []
    assert outcome.rounds == ROUNDS
    assert outcome.acked == outcome.sent == outcome.read > 1_000
    assert outcome.batches_compared > 100
