"""A service stops at a SIGTERM that arrives before it has read its settings."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import eventually

WAIT_S = 120.0


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_a_service_that_reads_its_settings_ends_at_a_sigterm(role: str, tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    os.mkfifo(settings)  # opening a FIFO for reading blocks until a writer opens it
    argv = [sys.executable, "-m", f"paceline.{role}", f"--config={settings}", "--die-with-parent"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: asks_for(process.pid, signal.SIGTERM), WAIT_S, "the process handles SIGTERM")
            process.terminate()
            assert process.wait(WAIT_S) == 128 + signal.SIGTERM
        finally:
            process.kill()


def asks_for(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal; without one, process 1 of a container ignores the signal."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (number - 1) & 1)
