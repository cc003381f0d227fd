"""Repeat the tests that failed in the last run of pytest, when they are few and use real processes.

    python scripts/second_try.py

A machine that is busy with other work sometimes stops a process longer than a test allows. At most three failed
tests of tests/integration, tests/containers and tests/conformance run once more, each in a new process, and are named
at the end. More failures, or a failure of a test without processes, are named, repeat nothing and end with exit code 1.
Only CI calls this script, `make test` does not. A test that is named here has a fault, even when it passes.
"""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

REPORT = Path("build/tests.xml")
"""Pytest's report in JUnit's format, which `.ci/run` asks for."""
WITH_PROCESSES = ("tests/integration/", "tests/containers/", "tests/conformance/")
MOST = 3


def main() -> int:
    """Return 0 when every repeated test passed."""
    failed = failed_tests()
    cannot = [test for test in failed if not test.startswith(WITH_PROCESSES)]
    if not failed or cannot or len(failed) > MOST:
        print(
            f"no second try: {len(failed)} failed tests, {len(cannot)} of them without processes", *failed, sep="\n  "
        )
        return 1
    again = [test for test in failed if subprocess.run([sys.executable, "-m", "pytest", "-q", test]).returncode]
    for test in failed:
        print(f"SECOND TRY {'failed' if test in again else 'passed'}: {test}")
    return 1 if again else 0


def failed_tests() -> list[str]:
    """Return the ids of the tests that failed or ended with an error; none without a report."""
    if not REPORT.exists():
        return []
    cases = ElementTree.parse(REPORT).iter("testcase")
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return list(
        dict.fromkeys(f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}" for case in failed)
    )


if __name__ == "__main__":
    sys.exit(main())
