"""docs/spark.md describes the options that the source accepts."""

import re
from pathlib import Path

import pytest

from paceline.pipeline.sink.options import KNOWN as WRITE_OPTIONS
from paceline.pipeline.source.options import ALL_COLUMNS, KNOWN

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("heading", "known"), [("Options", KNOWN), ("Writing", WRITE_OPTIONS)])
def test_every_option_is_documented_and_no_other(heading: str, known: tuple[str, ...]) -> None:
    table = DOCUMENT.split(f"## {heading}")[1].split("\n## ")[0]
    told = [
        name for row in table.splitlines() if row.startswith("| `") for name in re.findall("`(.+?)`", row.split("|")[1])
    ]
    assert sorted(told) == sorted(known)


def test_every_column_is_documented() -> None:
    columns = DOCUMENT.split("## Columns")[1].split("\n## ")[0]
    assert [name for name in ALL_COLUMNS if f"`{name}`" not in columns] == []


def ticks() -> str:
    """Return the table of options and the tests that show them."""
    return DOCUMENT.split("## Beside Spark's Kafka source")[1].split("\n## ")[0]


@pytest.mark.parametrize(("side", "known"), [("| `", KNOWN), ("| sink `", WRITE_OPTIONS)], ids=["source", "sink"])
def test_every_option_is_ticked_with_a_test(side: str, known: tuple[str, ...]) -> None:
    rows = [row.split("|") for row in ticks().splitlines() if row.startswith("| ") and "::test_" in row]
    ticked = {name for row in rows if "✓" in row[3] for name in re.findall("`(.+?)`", row[1])}
    shown = {name for row in rows if f"|{row[1]}".startswith(side) for name in re.findall("`(.+?)`", row[1])}
    # Addresses and certificates are read by the same code on both sides.
    common = {"paceline.bootstrap.servers", *(name for name in known if name.startswith("paceline.ssl."))}
    assert [name for name in known if name not in shown | (common & ticked)] == []


def test_every_ticked_test_exists() -> None:
    tests = Path(__file__).resolve().parents[2]
    rows = [row for row in ticks().splitlines() if row.startswith("| ")][1:]
    named = [found for row in rows for found in re.findall(r"`(\S+\.py)::(\w+)` \|$", row)]
    assert len(named) == len(rows) > 20, [row for row in rows if "::" not in row]
    assert [f"{file}::{name}" for file, name in named if f"def {name}(" not in (tests / file).read_text()] == []
