"""The entry point of the command: interrupts and help texts."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.commands import _COMMANDS, cli
from paceline.cli.exit_codes import INTERRUPTED


def test_an_interrupt_outside_of_calls_to_a_cluster_has_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_directory: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.dev.detached_cluster.read_state", interrupted)
    ended = CliRunner().invoke(cli, ["dev", "status"])
    assert (ended.exit_code, ended.stderr) == (INTERRUPTED, "interrupted\n")


def test_an_interrupt_while_the_command_is_still_loading_shows_no_traceback() -> None:
    script = (
        "import os, signal, sys, types\n"
        "from paceline.cli.main import main\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'paceline.cli.commands':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "            signal.pause()\n"
        "sys.meta_path.insert(0, Slow())\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (INTERRUPTED, "interrupted\n")


def test_a_second_interrupt_ends_a_command_that_waits_after_the_first() -> None:
    script = (
        "import os, signal, sys, time, click\n"
        "from paceline.cli import commands, main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "@click.command()\n"
        "def hanging():\n"
        "    while True:\n"
        "        try:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "            time.sleep(60)\n"
        "        except KeyboardInterrupt:\n"
        "            pass\n"
        "commands.hanging = hanging\n"
        "commands._COMMANDS['hanging'] = ('paceline.cli.commands', 'hanging', '')\n"
        "sys.argv = ['paceline', 'hanging']\n"
        "main.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert (ended.returncode, ended.stderr) == (INTERRUPTED, "interrupted\n")


def test_an_installation_of_the_client_alone_names_the_extra_of_the_command_line() -> None:
    script = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click':\n"
        "            raise ModuleNotFoundError(\"No module named 'click'\", name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from paceline.cli.main import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and "pip install 'paceline[cli]'" in ended.stderr
    assert "Traceback" not in ended.stderr


_WRITTEN_BY_CLICK = [name for name in _COMMANDS if name != "gateway"]  # the help of a service lists its settings


@pytest.mark.parametrize(
    "arguments", [[], *([name] for name in _WRITTEN_BY_CLICK)], ids=lambda names: " ".join(names) or "all"
)
def test_no_help_text_is_truncated(arguments: list[str]) -> None:
    ended = CliRunner().invoke(cli, [*arguments, "--help"], terminal_width=80)
    assert ended.exit_code == 0
    assert "..." not in ended.stdout.replace("]...", "").replace("host:port,...", ""), ended.stdout
