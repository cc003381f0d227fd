"""Run the procedures of docs/operations.md as they stand, command by command, while a producer writes.

Each prints the number of acknowledged and lost records and the longest gap between two acknowledgements.
"""

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.containers.compose import ROOT, ComposeCluster
from tests.containers.workload import under_load
from tests.support.stub_client import StubClient
from tests.support.verified_load import VerifiedLoad

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

GUIDE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
PROCEDURES = GUIDE.split("\n## Procedures\n")[1].split("\n## ")[0]
IN_CI = ("rolling-restart", "certificates", "back-up-and-restore")
"""The others are slow."""
GAP_S = {"rolling-restart": 2.0, "certificates": 2.0, "upgrade": 2.0}
"""Longest gap of the procedures that roll; the median of three runs is below it, so one run may be twice as long."""
COMMAND_S = 900.0


def pages() -> dict[str, list[str]]:
    """Return the commands of each page by its anchor."""
    found = {}
    for page in PROCEDURES.split("\n### ")[1:]:
        anchor = page.partition("\n")[0].lower().replace(" ", "-")
        block = re.search(r"```sh\n(.*?)```", page, re.DOTALL)
        found[anchor] = block[1].strip().splitlines() if block else []
    return found


def chosen() -> Iterator[object]:
    """Yield the pages named in PAGES, without it all; those outside `IN_CI` are slow."""
    wanted = os.environ.get("PAGES", "").split()
    for anchor in wanted or pages():
        yield pytest.param(anchor, marks=[] if wanted or anchor in IN_CI else [pytest.mark.slow])


@contextmanager
def gaps(load: VerifiedLoad) -> Iterator[list[float]]:
    """Measure the longest time without an acknowledgement while the block runs; the list has it at the end."""
    found: list[float] = [0.0]
    over = threading.Event()

    def watch() -> None:
        count, since = load.count(), time.monotonic()
        while not over.wait(0.02):
            if load.count() != count:
                count, since = load.count(), time.monotonic()
            found[0] = max(found[0], time.monotonic() - since)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("page", list(chosen()))
def test_a_page_does_what_it_says(page: str, cluster: ComposeCluster, client: StubClient) -> None:
    (ROOT / "build").mkdir(exist_ok=True)
    topic = f"procedure-{page}"
    environment = {**os.environ, **cluster.variables, **_client(cluster)}
    with under_load(cluster, client, topic) as load, gaps(load) as longest:
        for command in pages()[page]:
            print(f"\n$ {command}")
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=ROOT, env=environment, capture_output=True, text=True, timeout=COMMAND_S, check=False,
            )  # fmt: skip
            print("\n".join((done.stdout + done.stderr).splitlines()[-12:]))
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    # `under_load` has compared the log with the acknowledged records, and fails when one is lost.
    print(f"\n{page}: acked {load.count():,}, lost 0, longest gap {longest[0]:.2f} s")
    assert longest[0] < 2 * GAP_S.get(page, 60.0)


def _client(cluster: ComposeCluster) -> dict[str, str]:
    folder = Path(cluster.tls.ca).parent
    text = (folder / "env").read_text(encoding="utf-8")
    found = dict(re.findall(r"export (\w+)='(.*)'", text))
    return found | {"PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}


def test_every_page_has_a_symptom_and_commands() -> None:
    for anchor, commands in pages().items():
        assert commands, anchor
        assert all(shutil.which(one.split()[0]) or one.split()[0] for one in commands)
    assert set(IN_CI) <= set(pages())
    assert PROCEDURES.count("\nSymptom: ") == len(pages())
