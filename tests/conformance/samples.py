"""The samples of clients/ that use a gateway, as processes: publish lines, and subscribe in a group."""

import os
import signal
import subprocess
import threading
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from paceline.model.tls import TlsFiles
from tests.conformance.driver import ROOT, TOOLCHAIN_MISSING, DriverError, ToolchainMissingError

SAMPLES_FILE: Final = Path(__file__).parent / "samples.toml"
BUILD_TIMEOUT_S: Final = 900.0
END_TIMEOUT_S: Final = 30.0
ENDED: Final = (0, 128 + signal.SIGTERM)
"""Exit codes after SIGTERM of a program that has ended in order; a JVM has no choice but the second."""


class Read(NamedTuple):
    """A line of a subscriber."""

    partition: int
    offset: int
    value: bytes
    at_s: float
    """When the line was read, on the monotonic clock."""


@dataclass(frozen=True)
class Sample:
    """The commands of one language."""

    language: str
    publish_command: tuple[str, ...]
    subscribe_command: tuple[str, ...]
    slow: bool = False
    """Whether only make test-all plays it."""

    @property
    def folder(self) -> Path:
        """The folder in which the commands run."""
        return ROOT / "clients" / self.language

    def build(self) -> None:
        """Make the stubs and the programs.

        Raises:
            ToolchainMissingError: this machine lacks a tool.
            DriverError: the build fails.
        """
        command = ("scripts/clients/samples.sh", self.language)
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
        if built.returncode == TOOLCHAIN_MISSING:
            raise ToolchainMissingError(built.stderr.strip())
        if built.returncode:
            raise DriverError(f"{' '.join(command)} failed: {built.stderr[-4_000:] or built.stdout[-4_000:]}")

    def build_or_skip(self) -> "Sample":
        """Make the programs and return the sample, or skip the test on a machine without the tools of the language."""
        try:
            self.build()
        except ToolchainMissingError as error:
            pytest.skip(str(error))
        return self

    def publisher(self, gateways: Sequence[str], topic: str, tls: TlsFiles | None = None) -> subprocess.Popen[bytes]:
        """Start the publisher; each line of its stdin becomes a record."""
        return self._start(self.publish_command, gateways, (topic,), tls)

    def publish(
        self, gateways: Sequence[str], topic: str, values: Iterable[bytes], timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[bytes]:
        """Publish values, without TLS, and return the ended process."""
        process = self.publisher(gateways, topic)
        try:
            out, complaints = process.communicate(b"".join(value + b"\n" for value in values), timeout_s)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, complaints)

    def subscriber(
        self, gateways: Sequence[str], topic: str, group: str, tls: TlsFiles | None = None
    ) -> "SampleSubscriber":
        """Start a subscriber in a group."""
        return SampleSubscriber(self._start(self.subscribe_command, gateways, (topic, group), tls))

    def _start(
        self, command: tuple[str, ...], gateways: Sequence[str], arguments: tuple[str, ...], tls: TlsFiles | None
    ) -> subprocess.Popen[bytes]:
        names = {"PACELINE_GATEWAYS": ",".join(gateways)}
        if tls is not None:
            names |= {"PACELINE_SSL_CA_FILE": str(tls.ca), "PACELINE_SSL_CERTIFICATE_FILE": str(tls.certificate)}
            names |= {"PACELINE_SSL_KEY_FILE": str(tls.key)}
        others = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
        pipe: Any = subprocess.PIPE
        return subprocess.Popen(
            [*command, *arguments], cwd=self.folder, env=others | names, stdin=pipe, stdout=pipe, stderr=pipe
        )


class SampleSubscriber:
    """A running subscriber; ``read`` grows with its output."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.read: list[Read] = []
        self.complaints = b""
        self._process = process
        self._readers = [threading.Thread(target=one, daemon=True) for one in (self._read, self._complain)]
        for reader in self._readers:
            reader.start()

    def stop(self) -> int:
        """Send SIGTERM and return the exit code, after all output has been read."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Return the exit code of a process that ends by itself, after all output has been read."""
        code = self._process.wait(END_TIMEOUT_S)
        for reader in self._readers:
            reader.join(END_TIMEOUT_S)
        return code

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            partition, offset, value = line.rstrip(b"\n").split(b"\t", 2)
            self.read.append(Read(int(partition), int(offset), value, time.monotonic()))

    def _complain(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.complaints += line


def known_samples() -> dict[str, Sample]:
    """Return the samples by language."""
    found = {}
    for language, fields in tomllib.loads(SAMPLES_FILE.read_text()).items():
        program = ROOT / "clients" / language / fields.get("program", "")
        slow = fields.get("slow", False) or not program.exists()
        found[language] = Sample(language, tuple(fields["publish"]), tuple(fields["subscribe"]), slow)
    return found
