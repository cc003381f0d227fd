"""`scripts/install.sh` prints a line per stage, with a stand-in for pip."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIP = """#!/bin/sh
case "$*" in
  *--quiet*) exit 0 ;;
  *--require-hashes*)
    i=0
    while [ $i -lt 45 ]; do echo "Collecting package-$i==1.0 (from -r requirements.lock (line $i))"; i=$((i + 1)); done
    echo "Installing collected packages: package-0, package-1"
    [ -z "$BROKEN" ] || { echo "ERROR: no space left" >&2; exit 1; } ;;
esac
"""


def install(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    pip = tmp_path / "venv" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.write_text(PIP)
    pip.chmod(0o755)
    return subprocess.run(
        [ROOT / "scripts/install.sh", tmp_path / "venv"],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "BROKEN": "", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_each_stage_of_an_installation_prints_a_line(tmp_path: Path) -> None:
    done = install(tmp_path)
    assert done.returncode == 0, done.stderr
    total = len(re.findall(r"^\S+==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert done.stdout.splitlines()[1:] == [
        *(f"  downloading packages of requirements.lock: {found} of at most {total}" for found in (0, 20, 40)),
        "  downloaded 45; unpacking them (the longest stage)",
        "  installing Paceline itself",
        "installed",
    ]


def test_a_failure_of_pip_ends_the_installation_with_its_message(tmp_path: Path) -> None:
    done = install(tmp_path, BROKEN="1")
    assert (done.returncode, done.stderr) == (1, "ERROR: no space left\n")
    assert "installing Paceline itself" not in done.stdout
