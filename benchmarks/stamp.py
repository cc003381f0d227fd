"""Stamp of a benchmark, which it prints first: machine, date and commit."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc


def stamp() -> dict[str, Any]:
    """Return machine, date and commit of the measurement."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": {
            "cpus": os.cpu_count(),
            "cpu": _cpu_model(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "grpcio": grpc.__version__,
        },
    }


def headline(found: dict[str, Any]) -> str:
    """Return the stamp as one line."""
    machine = found["machine"]
    return (
        f"{found['date']}  commit {found['commit']}  {machine['cpus']} x {machine['cpu']}, "
        f"{machine['memory_gib']} GiB, Python {machine['python']}, grpcio {machine['grpcio']}"
    )


def _commit() -> str:
    def git(*arguments: str) -> str:
        try:
            return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()
        except OSError:
            return ""

    commit = git("rev-parse", "--short", "HEAD") or "unknown"
    return f"{commit}+changes" if git("status", "--porcelain", "--untracked-files=no") else commit


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
