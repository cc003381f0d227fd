"""The commands and Python programs of README.md, docs/cli.md and docs/moving-from-kafka.md run on another address."""

import json
import os
import re
import shlex
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from paceline.dev.local_cluster import LocalCluster
from paceline_client import Admin, NewTopic, Producer
from tests.support.programs import Program

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:9102"
ENDING = {"top": ["--once"], "watch": ["-n", "1"]}
"""Options that end the commands that run until Ctrl-C."""
OTHER_TESTS = {"dev"}
"""test_dev_cluster.py starts and stops clusters."""


def run_command(line: str, bootstrap: str) -> str:
    """Run a line such as ``echo "a:b" | .venv/bin/paceline produce T  # comment`` and return its output."""
    words = shlex.split(line, comments=True)
    given = ""
    if words[0] == "echo":
        given, words = words[1] + "\n", words[3:]
    assert words.pop(0) == ".venv/bin/paceline"
    if words[0] in OTHER_TESTS:
        return ""
    done = CliRunner(env={"PACELINE_BOOTSTRAP_SERVERS": bootstrap}).invoke(
        cli, [*words, *ENDING.get(words[0], [])], input=given
    )
    assert done.exit_code == 0, f"{line}: {done.output}"
    return done.stdout


def test_the_commands_of_the_readme_and_of_the_tour_run_as_printed(
    local_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()  # `dev up` creates it
    minute = README.partition("## One minute of use\n\n```sh\n")[2].partition("```")[0].replace("rides", "minute")
    tour = (
        (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").partition("## A tour\n\n```sh\n")[2].partition("```")[0]
    )
    for block in (minute, tour):
        outputs = {line: run_command(line, local_cluster.bootstrap) for line in block.splitlines()}
        assert [output for line, output in outputs.items() if "consume" in line] == ["hello\n", "hello\n"]
    plan = json.loads((tmp_path / "build" / "plan.json").read_text())
    assert [len(move["replicas"]) for move in plan["partitions"]] == [3, 3, 3], "the example moves something"
    with Admin(local_cluster.bootstrap) as admin:
        (described,) = admin.describe_topics(["drafts"], from_controller=True)
    assert [len(partition.isr) for partition in described.partitions] == [3, 3, 3]
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "build", tmp_path / "build/plan.json"], "no other file is left"


def test_the_python_programs_run_as_printed(local_cluster: LocalCluster, tmp_path: Path) -> None:
    pages = README + (ROOT / "docs" / "moving-from-kafka.md").read_text(encoding="utf-8")
    programs = [block for block in re.findall(r"```python\n(.*?)```", pages, re.DOTALL) if "paceline_client" in block]
    with Admin(local_cluster.bootstrap) as admin, Producer(local_cluster.bootstrap) as producer, ExitStack() as started:
        names = ("programs-rides", "programs-orders")
        admin.create_topics([NewTopic(name, 1, 3) for name in names])
        for name in names:
            producer.send(name, b"hello").result(30)
        running = []
        for number, program in enumerate(programs):
            assert ADDRESS in program
            text = program.replace(ADDRESS, local_cluster.bootstrap)
            text = re.sub(r'"(rides|orders)"', r'"programs-\1"', text)
            endless = "for record in" in text
            lines = ["programs-orders 0 0 b'hello'" if "record.topic" in text else "0 b'hello'"] if endless else []
            running.append(Program(tmp_path / f"program_{number}.py", text, lines, os.environ, endless))
            started.callback(running[-1].kill)
        for each in running:
            each.finish()
    assert len(running) == 3
