"""CI repeats a few failed tests with processes once, and nothing else."""

from pathlib import Path

import pytest

from scripts import second_try

PASSES, FAILS = "tests/integration/passes.py", "tests/integration/fails.py"


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one test that passes and one that fails; returns the path of the report."""
    monkeypatch.chdir(tmp_path)
    for name, passes in ((PASSES, True), (FAILS, False)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def test_it():\n    assert {passes}\n")
    report = tmp_path / second_try.REPORT
    report.parent.mkdir(parents=True)
    return report


def write(report: Path, tests: list[str]) -> None:
    """Write a report in which these tests failed and another one passed."""
    cases = ['<testcase classname="tests.integration.other" name="test_it" />']
    for test in tests:
        file, _, name = test.partition("::")
        module = file.removesuffix(".py").replace("/", ".")
        cases.append(f'<testcase classname="{module}" name="{name}"><failure>no</failure></testcase>')
    report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")


def test_a_failed_test_that_passes_at_the_second_try_is_named(failed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(failed, [f"{PASSES}::test_it"])
    assert second_try.main() == 0
    assert f"SECOND TRY passed: {PASSES}::test_it" in capfd.readouterr().out


def test_a_test_that_fails_again_fails_the_run(failed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(failed, [f"{PASSES}::test_it", f"{FAILS}::test_it"])
    assert second_try.main() == 1
    assert f"SECOND TRY failed: {FAILS}::test_it" in capfd.readouterr().out


@pytest.mark.parametrize(
    "tests",
    [
        [],
        ["tests/unit/test_isr.py::test_it"],
        [f"{PASSES}::test_it", "tests/simulation/test_seeds.py::test_it"],
        [f"{PASSES}::a{n}" for n in range(4)],
    ],
)
def test_unit_tests_and_many_failures_are_named_and_not_repeated(
    failed: Path, capfd: pytest.CaptureFixture[str], tests: list[str]
) -> None:
    write(failed, tests)
    assert second_try.main() == 1
    first, *named = capfd.readouterr().out.splitlines()
    assert first.startswith("no second try") and [name.strip() for name in named] == tests
