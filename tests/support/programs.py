"""Programs of the documentation, run as a reader would run them."""

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.waiting import eventually


class Program:
    """A running program that should print certain lines, in any order, and then end, or run until it is stopped."""

    def __init__(
        self, path: Path, text: str, lines: Sequence[str], environment: Mapping[str, str], endless: bool
    ) -> None:
        self._name, self._lines, self._endless = path.name, Counter(lines), endless
        self._output = path.with_suffix(".out")
        path.write_text(text)
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-u", path.name], cwd=path.parent, env=environment, stdout=output, stderr=output
            )

    def _has_printed(self) -> bool:
        printed = self._output.read_text()
        missing = self._lines - Counter(printed.splitlines())
        assert not missing or self._process.poll() is None, f"{self._name} ended without {missing}:\n{printed}"
        return not missing

    def finish(self) -> None:
        """Wait for the lines and for the end of the program, which is stopped if it is endless."""
        try:
            eventually(self._has_printed, 60.0, f"{self._name} prints {self._lines}")
            if self._endless:
                self._process.terminate()
            assert self._process.wait(30) in ((0, -15) if self._endless else (0,)), self._output.read_text()
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the program if it still runs."""
        self._process.kill()
        self._process.wait()
