"""Every row of docs/origins.md has a test, and every test that names a row names one of the page."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def marked_rows() -> set[str]:
    """Return the rows in ``@pytest.mark.origin(...)`` of all tests, read from the sources, without importing them."""
    rows: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if "mark.origin(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.origin":
                        rows.update(ast.literal_eval(argument) for argument in mark.args)
    return rows


def test_every_row_has_a_test_and_every_mark_a_row() -> None:
    text = (ROOT / "docs" / "origins.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (S\d-\d+) \| [A-Z0-9][^|]+\. \|$", text, re.MULTILINE)
    assert len(rows) == len(set(rows)) == 66
    marked = marked_rows()
    assert [row for row in rows if row not in marked] == [], "rows without a test"
    assert marked.difference(rows) == set(), "marks without a row"
