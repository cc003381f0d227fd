"""docs/settings.md agrees with the settings."""

import subprocess
import sys
from pathlib import Path


def test_the_tables_of_settings_are_those_of_the_definitions() -> None:
    command = [sys.executable, "scripts/settings_tables.py", "--check"]
    checked = subprocess.run(command, cwd=Path(__file__).parents[2], check=False, timeout=120)
    assert checked.returncode == 0, "run python scripts/settings_tables.py"
