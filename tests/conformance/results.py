"""The passed scenarios of each client: stored in results.json, shown as a table in docs/clients.md."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.conformance.scenarios import all_scenarios

PASSED: Final = "passed"
UNSUPPORTED: Final = "not supported"
NOT_YET: Final = "not yet"
FAILED: Final = "failed"

RESULTS_FILE: Final = Path(__file__).parent / "results.json"
GUIDE: Final = Path(__file__).parents[2] / "docs" / "clients.md"
BEGIN: Final = "<!-- conformance: written by python -m tests.conformance --record -->"
END: Final = "<!-- conformance end -->"


@dataclass(frozen=True)
class Outcome:
    """The result of one scenario."""

    verdict: str
    why: str = ""


def read_results() -> dict[str, dict[str, Any]]:
    """Return the stored results by language: the client, the counts of each group, and the failed scenarios."""
    if not RESULTS_FILE.exists():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(RESULTS_FILE.read_text())
    return found


def record(language: str, client: str, outcomes: dict[str, Outcome]) -> None:
    """Store the results of completely played groups, and rewrite the table."""
    results = read_results()
    earlier = results.get(language, {"groups": {}, "exceptions": {}})
    groups: dict[str, dict[str, int]] = {}
    exceptions: dict[str, str] = {}
    for group in dict.fromkeys(scenario.group for scenario in all_scenarios()):
        names = [scenario.name for scenario in all_scenarios() if scenario.group == group]
        if all(name in outcomes for name in names):
            verdicts = {name: outcomes[name].verdict for name in names}
        else:
            verdicts = {name: earlier["exceptions"].get(name, PASSED) for name in names if group in earlier["groups"]}
        if verdicts:
            passed = sum(verdict == PASSED for verdict in verdicts.values())
            groups[group] = {"passed": passed, "of": len(verdicts)}
        exceptions |= {name: verdict for name, verdict in verdicts.items() if verdict != PASSED}
    results[language] = {"client": client, "groups": groups, "exceptions": dict(sorted(exceptions.items()))}
    RESULTS_FILE.write_text(json.dumps(dict(sorted(results.items())), indent=2, ensure_ascii=False) + "\n")
    guide = GUIDE.read_text()
    begin, end = guide.index(BEGIN), guide.index(END)
    GUIDE.write_text(guide[:begin] + BEGIN + "\n" + table(results) + guide[end:])


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the table: a row per group, a column per language, and a list of failed scenarios.

    A group without results is shown as "not yet": the client was not played since the group was added.
    """
    languages = sorted(results)
    groups = list(dict.fromkeys(scenario.group for scenario in all_scenarios()))
    lines = [
        "| Scenarios | " + " | ".join(languages) + " |",
        "|---|" + "---|" * len(languages),
    ]
    for group in groups:
        cells = []
        for language in languages:
            counts = results[language]["groups"].get(group)
            cells.append(NOT_YET if counts is None else f"{counts['passed']} of {counts['of']}")
        lines.append(f"| {group} | " + " | ".join(cells) + " |")
    notes = [
        f"* {language}: {verdict}: {name}"
        for language in languages
        for name, verdict in results[language]["exceptions"].items()
    ]
    return "\n".join([*lines, "", *notes] if notes else lines) + "\n"
