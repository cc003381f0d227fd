"""A cluster of real processes on one machine: embedded ZooKeeper, controllers and brokers in one directory.

Read `local_cluster.py`. `paceline dev up`, `make run` and the process tests all use it.
"""

import shutil
import sys
from pathlib import Path
from typing import Final

DEV_DIRECTORY: Final = Path("build/dev")
"""Directory of the cluster that `paceline dev` means unless it is given another."""


def program() -> str:
    """Return the name under which a shell finds the command line: as it was called when the search path lacks it."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "paceline" and shutil.which("paceline") is None else "paceline"
