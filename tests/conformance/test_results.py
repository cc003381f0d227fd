"""Recording some groups of scenarios does not change the results of the other groups."""

import json
from pathlib import Path

import pytest

from tests.conformance import results
from tests.conformance.results import FAILED, PASSED, Outcome, record
from tests.conformance.scenarios import Scenario


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    scenarios = [Scenario(f"{group}{n}", group, "none", ()) for group in ("a", "b", "c") for n in (1, 2)]
    monkeypatch.setattr(results, "all_scenarios", lambda: scenarios)
    monkeypatch.setattr(results, "RESULTS_FILE", tmp_path / "results.json")
    monkeypatch.setattr(results, "GUIDE", tmp_path / "guide.md")
    (tmp_path / "guide.md").write_text(f"before\n{results.BEGIN}\n{results.END}\nafter\n")
    return tmp_path


def test_only_groups_that_were_played_whole_are_recorded(kept: Path) -> None:
    outcomes = {f"{group}{n}": Outcome(PASSED) for group in ("a", "b") for n in (1, 2)}
    record("go", "client", outcomes | {"a2": Outcome(FAILED)})
    record("go", "client", {"b1": Outcome(FAILED), "c1": Outcome(PASSED), "c2": Outcome(PASSED)})
    found = json.loads((kept / "results.json").read_text())["go"]
    assert found["groups"] == {group: {"passed": n, "of": 2} for group, n in (("a", 1), ("b", 2), ("c", 2))}
    assert found["exceptions"] == {"a2": FAILED}


def test_a_group_without_results_is_shown_as_not_played(kept: Path) -> None:
    record("go", "client", {"a1": Outcome(PASSED), "a2": Outcome(PASSED)})
    guide = (kept / "guide.md").read_text()
    assert "| a | 2 of 2 |\n| b | not yet |\n| c | not yet |" in guide and guide.endswith("after\n")
