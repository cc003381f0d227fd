"""Sources of settings: flags override the environment, which overrides the file; each source spells keys differently.

``replica.lag.time.max.ms`` in a file is ``PACELINE_REPLICA_LAG_TIME_MAX_MS`` in the environment and
``--replica-lag-time-max-ms`` as a flag.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.runtime.settings.keys import KEYS, NOT_HERE

ENVIRONMENT_PREFIX = "PACELINE_"
_ENVIRONMENT_MISTAKE = 0.85
"""Similarity to a key at which an unknown PACELINE_ variable counts as a misspelling of that key.

Less similar variables are ignored, because other tools of the project have their own ``PACELINE_`` variables.
"""


class SettingsError(Exception):
    """Invalid settings; the message has one line per problem, each with the key and its origin."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value with its source."""

    text: str
    origin: str
    """Text for people: ``file config/dev.properties:12``, ``environment PACELINE_...``, ``flag --...``."""
    file: Path | None = None
    """The settings file, if it is the source."""


def unknown_key(key: str, origin: str, spell: str = "{}") -> str:
    """Return the error message for an unknown key, with the most similar known key as a hint."""
    if key in NOT_HERE:
        return f"{origin}: {key} is a Kafka key that is not supported: {NOT_HERE[key]}"
    near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.6)
    hint = f"; did you mean {spell.format(flag_name(near[0])[2:] if '--' in spell else near[0])}?" if near else ""
    return f"{origin}: unknown key {spell.format(flag_name(key)[2:]) if '--' in spell else key}{hint}"


def environment_name(key: str) -> str:
    """Return the environment variable of a key."""
    return ENVIRONMENT_PREFIX + key.replace(".", "_").upper()


def flag_name(key: str) -> str:
    """Return the flag of a key."""
    return "--" + key.replace(".", "-")


_BY_ENVIRONMENT = {environment_name(key): key for key in KEYS}
_BY_FLAG = {flag_name(key): key for key in KEYS}


def from_file(path: Path, problems: list[str]) -> dict[str, Setting]:
    """Return the settings of a Java properties file; adds an error message per invalid key to ``problems``."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else failure
        problems.append(f"the settings file {path} cannot be read: {reason}")
        return {}
    found: dict[str, Setting] = {}
    for number, key, value in parse_properties(text):
        origin = f"file {path}:{number}"
        if key not in KEYS:
            problems.append(unknown_key(key, origin))
        elif key in found:
            problems.append(f"{origin}: {key} is set twice, first in {found[key].origin}")
        else:
            found[key] = Setting(value, origin, path)
    return found


def from_environment(environment: Mapping[str, str], problems: list[str]) -> dict[str, Setting]:
    """Return the settings of ``PACELINE_`` variables.

    An unknown variable that is similar to a key is probably misspelt and is added to ``problems``.
    """
    found = {}
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        key = _BY_ENVIRONMENT.get(name)
        if key is not None:
            found[key] = Setting(environment[name], f"environment {name}")
            continue
        near = difflib.get_close_matches(name, _BY_ENVIRONMENT, n=1, cutoff=_ENVIRONMENT_MISTAKE)
        if near:
            problems.append(f"environment {name}: unknown key; did you mean {near[0]}?")
    return found


def from_flags(arguments: Sequence[str], problems: list[str]) -> dict[str, Setting]:
    """Return the settings of ``--key value`` and ``--key=value``; adds invalid flags to ``problems``."""
    found: dict[str, Setting] = {}
    waiting = list(arguments)
    while waiting:
        flag, equals, value = waiting.pop(0).partition("=")
        key = _BY_FLAG.get(flag)
        if not flag.startswith("--"):
            problems.append(f"{flag!r} is not a flag")
        elif key is None:
            problems.append(unknown_key(flag[2:].replace("-", "."), f"flag {flag}", "--{}"))
            if not equals and waiting and not waiting[0].startswith("--"):
                waiting.pop(0)
        elif equals:
            found[key] = Setting(value, f"flag {flag}")
        elif waiting and not waiting[0].startswith("--"):
            found[key] = Setting(waiting.pop(0), f"flag {flag}")
        else:
            problems.append(f"flag {flag} needs a value")
    return found


_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SIMPLE_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> list[tuple[int, str, str]]:
    """Return (line number, key, value) of Java properties, continuation lines and escapes included."""
    entries = []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        logical = line.lstrip()
        if not logical or logical[0] in "#!":
            continue
        while _continues(logical):
            _, following = next(lines, (0, ""))
            logical = logical[:-1] + following.lstrip()
        match = re.match(r"((?:\\.|[^\\:=\s])*)\s*[:=]?\s*(.*)", logical, re.DOTALL)
        assert match is not None  # every part may be empty
        entries.append((number, _unescaped(match[1]), _unescaped(match[2]).rstrip()))
    return entries


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _SIMPLE_ESCAPES.get(escape, escape)

    return _ESCAPE.sub(one, text)
