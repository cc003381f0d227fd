"""The guide for writing clients agrees with the protos and the conformance results."""

import subprocess
import sys
from pathlib import Path

from tests.conformance.results import BEGIN, END, GUIDE, read_results, table

ROOT = Path(__file__).parents[2]


def test_the_table_of_errors_is_that_of_the_options_in_the_protos() -> None:
    checked = subprocess.run([sys.executable, "scripts/errors_table.py", "--check"], cwd=ROOT, check=False, timeout=120)
    assert checked.returncode == 0, "run python scripts/errors_table.py"


def test_the_table_of_conformance_is_that_of_the_results() -> None:
    guide = GUIDE.read_text()
    shown = guide[guide.index(BEGIN) + len(BEGIN) : guide.index(END)].strip()
    assert shown == table(read_results()).strip()
