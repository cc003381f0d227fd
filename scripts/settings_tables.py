#!/usr/bin/env python3
"""Write the tables of docs/settings.md and docs/security.md from the code, or check them with --check."""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from paceline.log.topic_key_descriptions import TOPIC_KEY_DESCRIPTIONS
from paceline.model.broker_dynamic_config import BROKER_KEY_DESCRIPTIONS
from paceline.model.config_keys import ConfigKey
from paceline.rpc.security.rpc_needs import RPC_NEEDS
from paceline.runtime.settings.fields import DAY_MS, MAX_INT64, key_name
from paceline.runtime.settings.keys import NOT_HERE, BrokerKeys, CommonKeys, ControllerKeys, GatewayKeys, ProcessKeys
from paceline_client import Admin, Consumer, Producer

DOCS: Final = Path(__file__).parents[1] / "docs"
GUIDES: Final = (DOCS / "settings.md", DOCS / "security.md")
_REGION: Final = re.compile(
    r"(<!-- (\w+): written by scripts/settings_tables.py -->\n).*?(<!-- \w+ end -->)", re.DOTALL
)
_UNITS: Final = {
    "bytes": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")),
    "ms": ((DAY_MS, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")),
}
_ARGUMENT: Final = re.compile(r"^    (\w+): (.*?)(?=^    \w|^\S|\Z)", re.MULTILINE | re.DOTALL)


def table(header: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table of Markdown."""
    names = header.split(", ")
    lines = [names, ["---"] * len(names), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def value(found: Any, unit: str) -> str:
    """Return a default for a reader: large sizes and times also in a larger unit."""
    if found in (None, "", 1.7976931348623157e308):
        return ""
    if isinstance(found, bool):
        return str(found).lower()
    if found == MAX_INT64:
        return f"{found} (no limit)"
    for size, name in _UNITS.get(unit, ()):
        if isinstance(found, int) and found >= size and found % size == 0:
            return f"{found} ({found // size} {name})"
    return str(found)


def keys_of(keys: type[ProcessKeys], without: type[ProcessKeys] | None = None) -> Iterator[tuple[str, ...]]:
    """Yield a row per key of a class, except the keys of ``without``."""
    inherited = without.model_fields if without is not None else {}
    for field, info in sorted(keys.model_fields.items()):
        if field in inherited:
            continue
        extra: Any = info.json_schema_extra
        topic = extra["topic_key"]
        meaning = [f"default of the topic key [`{topic}`](#topics)"] if topic else []
        default = "required" if info.is_required() else value(info.default, extra["unit"])
        limits = {type(limit).__name__: limit for limit in info.metadata}
        allowed = [f"from {limits['Ge'].ge}"] if "Ge" in limits else []
        allowed += [f"to {limits['Le'].le}"] if "Le" in limits and limits["Le"].le != MAX_INT64 else []
        if get_origin(info.annotation) is Literal:
            allowed = [", ".join(get_args(info.annotation))]
        if info.annotation is bool:
            allowed = ["true, false"]
        meaning += [info.description] if info.description else []
        yield f"`{key_name(field)}`", default, extra["unit"], " ".join(allowed), "; ".join(meaning)


def described(keys: Iterable[ConfigKey]) -> Iterator[tuple[str, ...]]:
    """Yield a row per topic key or dynamic broker key."""
    for key in keys:
        unit = next((unit for ending, unit in (("bytes", "bytes"), ("ms", "ms")) if key.key.endswith(ending)), "")
        default = value(int(key.default) if key.default.isdecimal() else key.default, unit)
        yield f"`{key.key}`", default, key.documentation


def arguments_of(client: type) -> Iterator[tuple[str, ...]]:
    """Yield a row per argument of a client, from its signature and its docstring."""
    text = inspect.getdoc(client.__init__) or ""  # type: ignore[misc]
    meanings = dict(_ARGUMENT.findall(text.partition("Args:\n")[2]))
    for name, parameter in inspect.signature(client).parameters.items():
        default = parameter.default
        if not isinstance(default, bool):
            default = "required" if default is parameter.empty else value(default, _unit(name))
        meaning = " ".join(meanings[name].split()).rstrip(".").replace("``", "`")
        yield f"`{name}`", str(default), meaning


def needs_of_rpcs() -> Iterator[tuple[str, ...]]:
    """Yield a row per need of RPCs: RPCs of one service with the same needs share a row."""
    shared: dict[tuple[str, str, str], list[str]] = {}
    for method, row in RPC_NEEDS.items():
        service, _, name = method[1:].rpartition("/")
        needs = "; ".join(map(str, row.needs())) or "nothing"
        shared.setdefault((service.rpartition(".")[2], needs, row.note), []).append(f"`{name}`")
    for (service, needs, note), names in shared.items():
        yield f"{service}: {', '.join(names)}", needs, note


def _unit(argument: str) -> str:
    if argument.endswith("_ms"):
        return "ms"
    return "bytes" if argument.endswith(("_bytes", "batch_size", "buffer_memory")) else ""


KEYS: Final = "Key, Default, Unit, Values, Meaning"
TABLES: Final = {
    "common": lambda: table(KEYS, keys_of(CommonKeys)),
    "controller": lambda: table(KEYS, keys_of(ControllerKeys, CommonKeys)),
    "broker": lambda: table(KEYS, keys_of(BrokerKeys, CommonKeys)),
    "gateway": lambda: table(KEYS, keys_of(GatewayKeys, CommonKeys)),
    "topic": lambda: table("Key, Default, Meaning", described(TOPIC_KEY_DESCRIPTIONS.values())),
    "dynamic": lambda: table("Key, Default, Meaning", described(BROKER_KEY_DESCRIPTIONS.values())),
    "refused": lambda: table("Kafka's key, Reason", ((f"`{key}`", why) for key, why in NOT_HERE.items())),
    "producer": lambda: table("Argument, Default, Meaning", arguments_of(Producer)),
    "consumer": lambda: table("Argument, Default, Meaning", arguments_of(Consumer)),
    "admin": lambda: table("Argument, Default, Meaning", arguments_of(Admin)),
    "rpcs": lambda: table("RPC, Needs, Notes", needs_of_rpcs()),
}


def main() -> int:
    """Write or check."""
    guides = {path: path.read_text() for path in GUIDES}
    written = {
        path: _REGION.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text) for path, text in guides.items()
    }
    missing = TABLES.keys() - {found[2] for text in guides.values() for found in _REGION.finditer(text)}
    if missing:
        print(f"docs/settings.md and docs/security.md lack the tables {sorted(missing)}", file=sys.stderr)
        return 1
    if "--check" in sys.argv:
        return int(written != guides)
    for path, text in written.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
