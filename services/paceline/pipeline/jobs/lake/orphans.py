"""Remove files that are in no commit: files of attempts that failed, were repeated, or whose driver died."""

import os
import time
from pathlib import Path
from typing import Final

from paceline.pipeline.jobs.lake.table import DATA_FOLDER, Table

DEFAULT_AGE_S: Final = 24 * 3600
"""Minimum age: a younger file may belong to a batch that is being written."""


def collect_orphans(table: Table, older_than_s: float = DEFAULT_AGE_S, now_s: float | None = None) -> list[str]:
    """Delete old data files of the table that are in no commit, and return their paths.

    Files are listed before the commits are read, so that a file committed in between counts as live.
    """
    now_s = time.time() if now_s is None else now_s
    old = [path for path in _data_files(table.root) if _modified_s(table.root / path) < now_s - older_than_s]
    if not old:
        return []
    live = table.live_paths()
    removed = []
    for path in old:
        if path not in live:
            (table.root / path).unlink(missing_ok=True)
            removed.append(path)
    return removed


def _data_files(root: Path) -> list[str]:
    found: list[str] = []
    for folder, _, names in os.walk(root / DATA_FOLDER):
        found.extend(
            (Path(folder) / name).relative_to(root).as_posix()
            for name in names
            if name.startswith("part-") and name.endswith(".parquet")
        )
    return sorted(found)


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
