"""docs/origins.md names existing tests, and every row of the original documents has one."""

import ast
import re
from pathlib import Path

import pytest

from scripts.origins_table import (
    DOCUMENT,
    ROWS,
    Evidence,
    by_row,
    document,
    known_figures,
    known_results,
    results_of,
    row_result,
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


def test_the_document_names_the_tests_there_are() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    expected = document(by_row(written()), known_results(text), known_figures(text))
    assert text == expected, "run scripts/origins_table.py"


def test_a_row_is_read_from_a_name_wherever_it_stands() -> None:
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
def test_every_row_says_in_one_line_what_it_is(row: str) -> None:
    assert re.fullmatch(r"[A-Z0-9][^|\n]{10,110}\.", ROWS[row]), row
