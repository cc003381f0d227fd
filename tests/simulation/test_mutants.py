"""Some mutants are detected. All mutants: ``python -m tests.simulation.hunt``."""

import re
from pathlib import Path

import pytest

from tests.simulation import mutations
from tests.simulation.hunt import hunt, installed, main
from tests.simulation.mutants import MUTANTS, Mutant

TABLE = Path(__file__).parents[2] / "docs" / "reliability.md"
QUICK = (
    "controller writes without checking its epoch",
    "controller sends a state before it writes it",
    "high watermark of the leader alone",
    "high watermark moves below min ISR",
    "follower truncates to its high watermark",
    "leader accepts fetches of other epochs",
    "readers get uncommitted records",
    "a send is acknowledged too early",
    "repeated batches are not recognised",
    "a new session proves earlier leaderships",
    "a full disk is a broken disk",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_detected(name: str) -> None:
    outcome = hunt(next(one for one in MUTANTS if one.name == name))
    assert outcome.seeds is not None


def test_an_undetected_mutant_makes_the_hunt_fail() -> None:
    canary = Mutant("nothing is broken", mutations.nothing, ("C1", "C13", "R5"), budget=3)
    assert hunt(canary).seeds is None
    assert main([], (canary,)) == 1


def test_the_code_is_restored_after_a_hunt() -> None:
    from paceline.broker.requests.produce import DelayedProduce

    before = DelayedProduce.advance
    with installed(next(one for one in MUTANTS if one.breaks is mutations.acknowledge_early)):
        assert DelayedProduce.advance is not before
    assert DelayedProduce.advance is before


def test_the_table_of_mutants_in_the_documents_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| (.+?) \| (\d+) \| (\d+)(, aimed)? \| (.+?) \|$", TABLE.read_text(), re.MULTILINE)
    shown = {
        name: (int(budget), bool(aimed)) for name, _, budget, aimed, _ in rows if name in {one.name for one in MUTANTS}
    }
    assert shown == {one.name: (one.budget, bool(one.aimed)) for one in MUTANTS}
    notices = {one.name: set(one.noticed_by) for one in MUTANTS}
    for name, seeds, budget, _, noticed_by in rows:
        if name not in notices:
            continue  # a row of another table
        assert int(seeds) <= int(budget) and set(noticed_by.split(", ")) <= notices[name], name


def test_every_mutant_has_its_own_name_and_a_budget() -> None:
    assert len({one.name for one in MUTANTS}) == len(MUTANTS)
    assert all(one.budget > 0 and one.noticed_by for one in MUTANTS)
