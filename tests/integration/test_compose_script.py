"""`scripts/compose.sh`, and the scripts that call it, where no container engine answers."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKER = """#!/bin/sh
[ "$1" = version ] || { echo "compose was called"; exit 9; }
echo "Cannot connect to the Docker daemon" >&2
exit 1
"""


@pytest.mark.parametrize("command", [["compose.sh", "ps"], ["spark.sh", "doctor"], ["certificate.sh", "alice"]])
def test_an_engine_that_does_not_answer_is_named_in_two_lines(tmp_path: Path, command: list[str]) -> None:
    for name in ("docker", "docker-compose"):
        (tmp_path / name).write_text(DOCKER)
        (tmp_path / name).chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PACELINE_CERTIFICATE_FOLDER": str(tmp_path / "issued")}
    script = ROOT / "scripts" / command[0]
    ended = subprocess.run(
        [str(script), *command[1:]], env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-2:] == [
        "no container engine answers: Cannot connect to the Docker daemon",
        "scripts/docker_engine.sh starts one on Debian",
    ]
    assert not (tmp_path / "issued" / "alice").exists()
