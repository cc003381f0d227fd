"""Run a range of seeds and the seeds that found bugs, and check that equal seeds give equal runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.__main__ import run_many
from tests.simulation.mutants import MUTANTS
from tests.simulation.run import Run, run_seed

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FEW = 30
KEPT = [line.split(maxsplit=1) for line in (HERE / "kept_seeds.txt").read_text().splitlines() if line[:1].isdigit()]


@pytest.mark.timeout(1200)
def test_some_seeds_violate_no_invariant(request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("--simulation-seeds", FEW)
    assert run_many(range(1, count + 1), jobs=2, keep_going=False, with_shrinking=False) == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_more_seeds_violate_no_invariant(request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("--simulation-seeds", FEW)
    assert run_many(range(count + 1, 301), jobs=2, keep_going=False, with_shrinking=False) == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", [range(1, 21), pytest.param(range(21, 61), marks=pytest.mark.slow)], ids=str)
def test_some_wild_seeds_violate_no_invariant(seeds: range) -> None:
    assert run_many(seeds, jobs=2, keep_going=False, with_shrinking=False, wild=True) == 0


@pytest.mark.parametrize(("seed", "name"), KEPT)
def test_seeds_that_once_found_a_bug_violate_no_invariant(seed: str, name: str) -> None:
    mutant = next(one for one in MUTANTS if one.name == name)
    assert Run(int(seed), profile=mutant.profile(int(seed))).run().failures == {}


@pytest.mark.timeout(600)
def test_a_seed_gives_the_same_run_in_another_process_with_another_hash_seed(request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("--double-runs", 6)
    program = (
        "from tests.simulation.run import run_seed\n"
        f"for seed in range(1, {count} + 1): print(seed, run_seed(seed).digest)"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    one, other = (process.communicate(timeout=500)[0].splitlines() for process in running)
    assert [process.returncode for process in running] == [0, 0]
    assert len(one) == count
    assert one == other


def test_two_seeds_give_different_runs() -> None:
    assert run_seed(1).digest != run_seed(2).digest
