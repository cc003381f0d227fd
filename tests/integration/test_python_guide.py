"""Every program of docs/python.md runs, in order, against a cluster with TLS, and prints the text that follows it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from paceline.testing import Cluster, run_cluster
from paceline_client import Admin
from tests.support.programs import Program
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(?:# (\w+\.py)\n)?(.*?)```\n(?:\n```text\n(.*?)```\n)?", GUIDE, re.DOTALL)
PROGRAMS = {name: shown.splitlines() for name, _, shown in BLOCKS if shown}
"""Programs with the lines that each prints."""
FILES = {name: text for name, text, _ in BLOCKS}


@pytest.fixture(scope="module", autouse=True)
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator["subprocess.Popen[str]"]:
    """Run the tests of the section on testing in another process, while the other programs run."""
    folder = tmp_path_factory.mktemp("application")
    for name in ("conftest.py", "test_orders.py"):
        (folder / name).write_text(FILES[name])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with run_cluster(tmp_path_factory.mktemp("guide") / "build" / "secure", secure=True) as cluster:
        yield cluster


def start(name: str, cluster: Cluster) -> Program:
    folder, tls = cluster.local.directory.parents[1], cluster.local.client_tls
    assert tls is not None
    environment = {**os.environ, "PACELINE_BOOTSTRAP_SERVERS": cluster.bootstrap}
    if name != "secure.py":  # it passes the files itself
        environment["PACELINE_SSL_CA_FILE"] = str(tls.ca)
        environment["PACELINE_SSL_CERTIFICATE_FILE"] = str(tls.certificate)
        environment["PACELINE_SSL_KEY_FILE"] = str(tls.key)
    endless = "while " in FILES[name]
    return Program(folder / name, FILES[name], PROGRAMS[name], environment, endless)


def test_every_program_of_the_guide_runs_and_prints_what_the_guide_shows(secure: Cluster) -> None:
    first = ("hello.py", "sell.py")
    for name in first:
        start(name, secure).finish()
    with ExitStack() as started, Admin(secure.bootstrap, tls=secure.local.client_tls) as admin:
        rest: list[Program] = []
        for name in PROGRAMS:
            if name in first:
                continue
            if name == "secure.py":  # it writes to a topic that another program creates
                eventually(lambda: "parcels" in admin.list_topics(), 60, "a topic parcels")
            rest.append(start(name, secure))
            started.callback(rest[-1].kill)
        for program in rest:
            program.finish()
    assert len(rest) == 6


def test_the_fixture_runs_the_tests_of_an_application(application: "subprocess.Popen[str]") -> None:
    output, _ = application.communicate(timeout=120)
    assert (application.returncode, "2 passed" in output) == (0, True), output


def test_every_block_of_the_guide_is_one_of_these_programs() -> None:
    assert sorted(FILES) == sorted({*PROGRAMS, "conftest.py", "test_orders.py"})
    assert GUIDE.count("```python\n") == len(FILES)
