"""docs/cli.md names every verb, with an example that the command accepts and with the exit codes of its help text."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from paceline.cli.commands import _COMMANDS, cli

GUIDE = Path(__file__).parents[3] / "docs" / "cli.md"
_ROW = re.compile(r"^\| `([a-z -]+)` \| `paceline (.+?)` \| (.*)\|$", re.MULTILINE)
ROWS = {name: (example, codes) for name, example, codes in _ROW.findall(GUIDE.read_text())}


def _verbs() -> Iterator[tuple[str, click.Command]]:
    for name in _COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        if isinstance(command, click.Group):
            for verb, each in command.commands.items():
                yield f"{name} {verb}", each
        else:
            yield name, command


VERBS = dict(_verbs())


def test_the_guide_has_every_verb_and_no_other() -> None:
    assert sorted(ROWS) == sorted(VERBS)


@pytest.mark.parametrize("verb", ROWS)
def test_the_example_of_a_verb_is_accepted(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("plan.json", "before.json", "ca.crt", "rules.json", "audit.log"):
        (tmp_path / name).touch()
    words = shlex.split(ROWS[verb][0].partition("<")[0].partition(">")[0])
    assert words[: len(verb.split())] == verb.split()
    VERBS[verb].make_context(verb, words[len(verb.split()) :]).close()


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_help_names_exit_code_3_has_it_in_the_guide(verb: str) -> None:
    says_three = re.search(r"exits? (with|code) 3", VERBS[verb].help or "", re.IGNORECASE)
    assert (says_three is None) or "3 " in ROWS[verb][1], f"{verb}: {ROWS[verb][1]}"
