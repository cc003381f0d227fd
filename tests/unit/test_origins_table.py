"""docs/origins.md names existing tests, and every row of the original documents has one."""

import ast
import re
from pathlib import Path

import pytest

from scripts.origins_table import (
    DOCUMENT,
    NOT_RUN_SINCE,
    ROWS,
    Evidence,
    Figure,
    Result,
    by_row,
    digests_of,
    document,
    known_figures,
    known_results,
    merged,
    results_of,
    row_result,
    valid_results,
)

ROOT = Path(__file__).resolve().parents[2]
ROWS_PER_TEXT = {0: 16, 1: 15, 2: 11, 3: 9, 4: 15}


def written() -> list[Evidence]:
    """Evidence functions with a row in their names, read from the sources, which is quicker than collecting them."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                test = Evidence(path.relative_to(ROOT).as_posix(), node.name)
                if test.rows:
                    found.append(test)
    return found


def test_there_is_a_row_for_every_system_and_a_test_for_every_row() -> None:
    assert list(ROWS) == [f"S{text}-{n}" for text, count in ROWS_PER_TEXT.items() for n in range(1, count + 1)]
    table = by_row(written())
    assert [row for row, tests in table.items() if not tests] == []
    assert list(table) == list(ROWS), "a test names a row that does not exist"


def test_the_document_names_the_existing_tests() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    expected = document(by_row(written()), known_results(text), known_figures(text))
    assert text == expected, "run make origins, or scripts/origins_table.py --run --rows ROW"


def test_the_document_has_the_digests_of_the_present_tests() -> None:
    stated = {row: result.digest for row, result in known_results(DOCUMENT.read_text(encoding="utf-8")).items()}
    assert stated == digests_of(by_row(written())), "run make origins, or scripts/origins_table.py --run --rows ROW"


def test_a_changed_test_invalidates_the_result_of_its_row_and_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.origins_table.ROOT", tmp_path)
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(f"def test_s1_1_{name}() -> None: ...\n", encoding="utf-8")
    table = {"S1-1": [Evidence("test_a.py", "test_s1_1_a")], "S1-2": [Evidence("test_b.py", "test_s1_2_b")]}
    before = digests_of(table)
    results = {row: Result("pass", digest) for row, digest in before.items()}
    assert valid_results(results, before) == results
    (tmp_path / "test_b.py").write_text("def test_s1_2_b() -> None: assert False\n", encoding="utf-8")
    after = digests_of(table)
    assert after["S1-1"] == before["S1-1"] and after["S1-2"] != before["S1-2"]
    assert valid_results(results, after) == {
        "S1-1": Result("pass", before["S1-1"]),
        "S1-2": Result(NOT_RUN_SINCE, after["S1-2"]),
    }


def test_figures_of_rows_that_were_not_measured_stay() -> None:
    known = [Figure("S1-12", "a", "1"), Figure("S1-13", "b", "2")]
    assert merged(known, [Figure("S1-13", "c", "3")], ["S1-13"]) == [known[0], Figure("S1-13", "c", "3")]
    assert merged(known, [], ["S1-13"]) == known


def test_a_row_is_found_anywhere_in_a_name() -> None:
    assert Evidence("", "test_s1_2_change_leaders").rows == ["S1-2"]
    assert Evidence("", "test_q2_s3_3_when_a_broker_dies").rows == ["S3-3"]
    assert Evidence("", "test_s0_1_s1_15_today").rows == ["S0-1", "S1-15"]
    assert Evidence("", "test_brokers_1_2_are_up").rows == []


def test_a_row_passes_only_if_every_test_of_it_ran_and_passed(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.unit.test_x" name="test_s1_1_a[1]"/>'
        '<testcase classname="tests.unit.test_x" name="test_s1_1_a[2]"><failure/></testcase>'
        '<testcase classname="tests.unit.test_x" name="test_s1_1_b"/>'
        '<testcase classname="tests.unit.test_x" name="test_s1_1_c"><skipped/></testcase></testsuite></testsuites>',
        encoding="utf-8",
    )
    results = results_of(report)
    a, b, c, d = (Evidence("tests/unit/test_x.py", f"test_s1_1_{letter}") for letter in "abcd")
    assert (results[a], results[b], results[c]) == ("fail", "pass", "skipped")
    assert [row_result(tests, results) for tests in ([b], [a, b], [b, c], [b, d], [])] == [
        "pass",
        "fail",
        "skipped",
        "not run",
        "no test",
    ]


@pytest.mark.parametrize("row", list(ROWS))
def test_every_row_has_a_description_of_one_line(row: str) -> None:
    assert re.fullmatch(r"[A-Z0-9][^|\n]{10,110}\.", ROWS[row]), row
