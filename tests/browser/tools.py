"""Chromium from the system, and Playwright with axe-core from requirements-browser.lock, in a folder below build.

``python -m tests.browser.tools`` installs them; a slow test does it by itself. Debian has the package `chromium`.
PACELINE_CHROMIUM is the path of another Chromium.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_LOCK = ROOT / "requirements-browser.lock"
FOLDER = ROOT / "build" / f"browser-{hashlib.sha256(_LOCK.read_bytes()).hexdigest()[:12]}"
AXE = FOLDER / "axe_playwright_python" / "axe.min.js"
_COMPLETE = FOLDER / "complete"


def chromium() -> str | None:
    """Return the path of Chromium, None when this machine has none."""
    return os.environ.get("PACELINE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def install() -> None:
    """Make Playwright importable; downloads 50 MB the first time."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _COMPLETE.exists():
            pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--require-hashes"]
            subprocess.run([*pip, "--upgrade", "--target", str(FOLDER), "-r", str(_LOCK)], check=True, timeout=420)
            _COMPLETE.touch()
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))


MARKS = () if chromium() and _COMPLETE.exists() else (pytest.mark.slow,)
"""Nothing where Chromium and Playwright are ready."""

if __name__ == "__main__":
    install()
