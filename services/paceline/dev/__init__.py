"""A cluster of real processes on one machine: embedded ZooKeeper, controllers and brokers in one directory.

Read `local_cluster.py`. `paceline dev up`, `make run` and the process tests all use it.
"""

import shutil
import sys
from pathlib import Path
from typing import Final

DEV_DIRECTORY: Final = Path("build/dev")
"""Default directory of the cluster for `paceline dev`."""


def program() -> str:
    """Return the command to type in a shell: ``paceline``, or the called path if the search path lacks ``paceline``."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "paceline" and shutil.which("paceline") is None else "paceline"
