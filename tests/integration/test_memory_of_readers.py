"""A process that reads keeps the memory of responses."""

import os
import platform
import subprocess
import sys

import pytest

from paceline.rpc.memory import KEEP_FREED_MEMORY

ROUNDS = 20
PAGES_OF_A_ROUND = 3 * 12 * 256
LIKE_RESPONSES = f"""
import resource, sys
from paceline_client import Consumer
with Consumer("127.0.0.1:1"):
    for _ in range({ROUNDS}):
        held = [b"x" * (12 * 1024 * 1024) for _ in range(3)]
        del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def page_faults(**variables: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    arguments = [sys.executable, "-c", LIKE_RESPONSES]
    done = subprocess.run(
        arguments, env=environment | variables, capture_output=True, text=True, timeout=60, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_a_consumer_keeps_freed_memory_unless_the_environment_says_otherwise() -> None:
    returned = page_faults(**{KEEP_FREED_MEMORY: "0"})
    assert returned > ROUNDS * PAGES_OF_A_ROUND // 2
    assert page_faults(MALLOC_TRIM_THRESHOLD_="1000000") > ROUNDS * PAGES_OF_A_ROUND // 2, "glibc's own setting counts"
    assert page_faults() < returned // 4
