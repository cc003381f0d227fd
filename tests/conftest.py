"""Fixtures of all tests: a real ZooKeeper per test run with a chroot per test, and the need for IPv6."""

import itertools
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

# gRPC's fork handlers break children that a test process starts with fork and exec, such as Spark's JVM. The variable
# is read when gRPC is first imported, so set it before other imports.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from paceline.coordination.errors import JavaNotFoundError, ZooKeeperJarsNotFoundError
from paceline.runtime.embedded_zookeeper import EmbeddedZooKeeper, jars_path, java_path
from tests.support.embedded_zookeeper import embedded_zookeeper

# With PYTHONDONTWRITEBYTECODE each process that a test starts compiles the services again, 2 s of processor and five
# processes in a cluster, and pytest rewrites the assertions of every test file again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Jobs of a minute end before optimised code has paid for its compilation: Spark's tests take a third less of a core.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

SLOW = (
    "make test-all adds the slow tests: faults in containers, Spark clusters, Spark's Kafka source beside ours, S3, "
    "4,000 connections, more seeds and kills, every scenario in every language, and the wheels."
)
_chroots = itertools.count(1)

# An example that takes longer than 200 ms on a busy machine is no failure. `make test-all` asks for the second profile.
settings.register_profile("paceline", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=200)
settings.load_profile("paceline")


class FilesInParallel(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each worker whole files, so that tests of a file share its clusters.

    All container tests go to one worker, because they share an engine; the scenarios of a language share a driver.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if file.startswith("tests/containers/"):
            return "tests/containers"
        if file == "tests/conformance/test_conformance.py":
            return file + test.partition("[")[2].partition("-")[0].rstrip("]")
        return file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesInParallel:
    """Choose how tests are shared out when pytest runs with ``-n``."""
    return FilesInParallel(config, log)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which tests ``-m "not slow"`` left out."""
    if config.option.markexpr == "not slow":
        terminalreporter.write_line(SLOW)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """A running server; do not stop or pause it, because other tests use it."""
    try:
        java_path()
        jars_path()
    except (JavaNotFoundError, ZooKeeperJarsNotFoundError) as error:
        pytest.skip(str(error))
    with embedded_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def ipv6() -> None:
    """Skip the test when this machine has no IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")


@pytest.fixture
def zookeeper_chroot(zookeeper_server: EmbeddedZooKeeper) -> str:
    """Connection string with an unused chroot: ``127.0.0.1:port/test-1``."""
    return f"{zookeeper_server.address}/test-{next(_chroots)}"
