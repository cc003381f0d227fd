"""A cluster of real processes on one machine: embedded ZooKeeper, controllers and brokers in one directory.

Read `local_cluster.py`. `paceline dev up`, `make run` and the process tests all use it.
"""

from pathlib import Path
from typing import Final

DEV_DIRECTORY: Final = Path("build/dev")
"""Directory of the cluster that `paceline dev` means unless it is given another."""
