"""A running driver, which is a process that wraps the client of one language, and the list of drivers."""

import json
import queue
import subprocess
import sys
import threading
import tomllib
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
DRIVERS_FILE: Final = Path(__file__).parent / "drivers.toml"
PROTOCOL: Final = 1
TOOLCHAIN_MISSING: Final = 77
"""Exit code of a build that cannot run on this machine, as in Automake's test suites."""
END_OF_STDERR_S: Final = 5.0
_END_TIMEOUT_S: Final = 30.0
"""Three times the ten seconds that a driver has to end, because a busy machine may delay it."""

Message = dict[str, Any]


class DriverError(Exception):
    """The driver violated the protocol, or did not answer in time; the message ends with its stderr."""


class ToolchainMissingError(DriverError):
    """A tool to build the driver is missing on this machine; the message names it."""


@dataclass(frozen=True)
class DriverSpec:
    """The commands that build and start the driver of a language."""

    language: str
    command: tuple[str, ...]
    build: tuple[str, ...] = ()


def known_drivers() -> dict[str, DriverSpec]:
    """Return the drivers by language."""
    found = {}
    for language, fields in tomllib.loads(DRIVERS_FILE.read_text()).items():
        command = tuple(word.replace("{python}", sys.executable) for word in fields["command"])
        found[language] = DriverSpec(language, command, tuple(fields.get("build", ())))
    return found


class Driver:
    """The process. It executes one command at a time; `close` ends it."""

    def __init__(self, spec: DriverSpec) -> None:
        """Build and start the driver.

        Raises:
            ToolchainMissingError: this machine cannot build it.
            DriverError: it cannot be built, or does not greet.
        """
        self.spec = spec
        self._next_id = 0
        if spec.build:
            built = subprocess.run(spec.build, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
            if built.returncode == TOOLCHAIN_MISSING:
                raise ToolchainMissingError(built.stderr.strip() or f"{spec.language}: the toolchain is missing")
            if built.returncode:
                raise DriverError(f"{' '.join(spec.build)} failed: {built.stderr[-4_000:] or built.stdout[-4_000:]}")
        self._process = subprocess.Popen(
            spec.command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._complaints: deque[str] = deque(maxlen=40)
        threading.Thread(target=self._read_answers, daemon=True).start()
        self._complaints_reader = threading.Thread(target=self._read_complaints, daemon=True)
        self._complaints_reader.start()
        try:
            self.hello: Message = self.ask({"command": "hello", "protocol": PROTOCOL}, 60.0)["ok"]
        except BaseException:
            self.kill()
            raise

    def ask(self, command: Message, timeout_s: float) -> Message:
        """Send a command and return the answer.

        Raises:
            DriverError: no answer in time, or one that is against the protocol.
        """
        self._next_id += 1
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"id": self._next_id, **command}) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise DriverError(f"no answer to {command['command']} within {timeout_s} s{self._stderr()}") from None
        except OSError as failure:
            self._complaints_reader.join(END_OF_STDERR_S)
            raise DriverError(f"the driver ended: {failure}{self._stderr()}") from None
        if line is None:
            # stdout and stderr close at the same time, but two threads read them: wait for the slower reader.
            self._complaints_reader.join(END_OF_STDERR_S)
            raise DriverError(f"the driver ended during {command['command']}{self._stderr()}")
        try:
            answer: Message = json.loads(line)
        except ValueError:
            raise DriverError(f"{line!r} is no JSON; only answers may be written to stdout") from None
        kinds = [kind for kind in ("ok", "error", "unsupported") if kind in answer]
        if answer.get("id") != self._next_id or len(kinds) != 1:
            raise DriverError(f"{line!r} is not one answer to command {self._next_id}")
        return answer

    def close(self) -> None:
        """End stdin and wait for the process.

        Raises:
            DriverError: it does not end by itself with code 0.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            code = self._process.wait(_END_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            self.kill()
            raise DriverError(
                f"the driver did not end within {_END_TIMEOUT_S:g} s after stdin{self._stderr()}"
            ) from None
        if code:
            raise DriverError(f"the driver ended with code {code}{self._stderr()}")

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_complaints(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._complaints.append(line)

    def _stderr(self) -> str:
        return f"; stderr: {''.join(self._complaints)[-2_000:]}" if self._complaints else ""
