"""Repeat the tests that failed in the last run of pytest, when they are few and use real processes.

    python scripts/second_try.py

A machine that is busy with other work sometimes stops a process longer than a test allows. At most three failed
tests of tests/integration, tests/containers and tests/conformance run once more, each in a new process, and are named
at the end. More failures, or a failure of a test without processes, end with exit code 1 and repeat nothing. Only CI
calls this script, `make test` does not. A test that is named here has a fault, even when it passes.
"""

import json
import subprocess
import sys
from pathlib import Path

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
WITH_PROCESSES = ("tests/integration/", "tests/containers/", "tests/conformance/")
MOST = 3


def main() -> int:
    """Return 0 when every repeated test passed."""
    failed = list(json.loads(LAST_FAILED.read_text(encoding="utf-8"))) if LAST_FAILED.exists() else []
    cannot = [test for test in failed if not test.startswith(WITH_PROCESSES)]
    if not failed or cannot or len(failed) > MOST:
        print(f"no second try: {len(failed)} failed tests, {len(cannot)} of them without processes", file=sys.stderr)
        return 1
    again = [test for test in failed if subprocess.run([sys.executable, "-m", "pytest", "-q", test]).returncode]
    for test in failed:
        print(f"SECOND TRY {'failed' if test in again else 'passed'}: {test}")
    return 1 if again else 0


if __name__ == "__main__":
    sys.exit(main())
