"""A release needs a clean, tested tree in which every file names the same version."""

import pytest

from scripts.release import CHANGELOG, TESTS, problems

TESTED = "`make test-all`: 2026-11-28, commit `abcdef0`: 7,604 passed, 12 skipped.\n"
GOOD = {
    CHANGELOG: "# Changelog\n\n## 0.1.0 (2026-11-29)\n",
    TESTS: TESTED,
    "clients/java/pom.xml": "<version>0.1.0</version>",
}
ANSWERS = {"rev-parse": None, "status": "", "merge-base": "", "diff": ""}


def test_a_clean_tested_tree_can_be_released_with_a_version_of_three_numbers() -> None:
    assert problems("0.1.0", GOOD, lambda command, *_: ANSWERS[command]) == []
    assert "0.1.0.dev0 is not like" in problems("0.1.0.dev0", GOOD, lambda command, *_: ANSWERS[command])[0]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"clients/java/pom.xml": "<version>0.2.0</version>"}, "pom.xml has version 0.2.0, not 0.1.0"),
        ({CHANGELOG: "## 0.0.9\n"}, "should begin with 0.1.0"),
        ({CHANGELOG: "## Unreleased\n\n## 0.1.0\n"}, "should begin with 0.1.0"),
        ({TESTS: "Tests\n"}, "names no run of make test-all"),
        ({TESTS: TESTED.replace("12 skipped", "1 failed")}, "names no run of make test-all"),
        ({"status": " M README.md"}, "not committed"),
        ({"rev-parse": "1234"}, "the tag v0.1.0 exists"),
        ({"merge-base": None}, "not in the history"),
        ({"diff": None}, "has changed since"),
    ],
)
def test_each_reason_against_a_release_is_named(wrong: dict[str, str], problem: str) -> None:
    (found,) = problems("0.1.0", GOOD | wrong, lambda command, *_: (ANSWERS | wrong)[command])
    assert problem in found
