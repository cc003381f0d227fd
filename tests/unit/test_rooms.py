"""Which way imports point: each room may only use what the table of docs/architecture.md gives it."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ROOT / "services"
CLIENT = ROOT / "clients" / "python"

# Modules that pure code must not import: time, random, threads, sockets, files, and packages that use them.
OUTSIDE = {"grpc", "kazoo", "threading", "asyncio", "time", "socket", "subprocess", "os", "shutil", "tempfile",
           "concurrent", "multiprocessing", "structlog", "prometheus_client", "pydantic_settings"}  # fmt: skip

STUBS = {"v1", "internal"}
NODE = {"model", "replication", "coordination", "rpc", "runtime"} | STUBS

# room -> (rooms of paceline it may import, whether it may import modules with effects)
ROOMS: dict[str, tuple[set[str], bool]] = {
    "model": (set(), False),
    "replication": ({"model"}, False),
    "planning": (set(), False),
    "findings": ({"model"}, False),
    "findings/service": ({"model", "paceline_client"}, True),
    "log": ({"model"}, False),
    "coordination": ({"model"}, False),
    "coordination/kazoo": ({"model"}, True),
    "controller": ({"model", "replication", "coordination", "log.log_config"}, False),
    "controller/service": (NODE | {"log.log_config", "log.topic_key_descriptions"}, True),
    "broker": ({"model", "replication", "coordination", "log"}, False),
    "broker/service": (NODE | {"log"}, True),
    "rpc": ({"model"} | STUBS, True),
    "security": ({"model"}, True),
    "runtime": ({"model", "coordination", "rpc", "security"}, True),
    "dev": ({"model", "rpc", "runtime", "security", "v1"}, True),
    "pipeline": ({"model", "log", "rpc", "v1", "paceline_client"}, True),
    "operations": ({"model", "paceline_client"}, True),
    "gateway": ({"model", "paceline_client"}, False),
    "gateway/service": ({"model", "rpc", "runtime", "v1", "paceline_client"}, True),
    "console": ({"model", "findings"}, False),
    "console/service": ({"model", "findings", "operations", "paceline_client"}, True),
    "cli": (
        {
            "console",
            "gateway",
            "model",
            "planning",
            "findings",
            "dev",
            "pipeline",
            "rpc",
            "security",
            "paceline_client",
            "log",
        }
        | {"operations", "runtime.doctor", "broker.groups.records", "broker.groups.offsets_topic"},
        True,
    ),
}
SERVICE_FILES = {"__main__.py", "os_files.py"}


@cache
def _imports(path: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def _files(room: str) -> list[Path]:
    folder = SERVICES / "paceline" / room
    apart = [SERVICES / "paceline" / other for other in ROOMS if other.startswith(f"{room}/")]
    return [
        path
        for path in sorted(folder.rglob("*.py"))
        if path.name not in SERVICE_FILES and not any(path.is_relative_to(other) for other in apart)
    ]


def _allowed(name: str, room: str, rooms: set[str]) -> bool:
    inside = name.removeprefix("paceline.")
    own = room.split("/")[0]
    return inside == "__version__" or any(inside == other or inside.startswith(f"{other}.") for other in rooms | {own})


def _modules() -> Iterator[tuple[str, Path]]:
    """Every module of the services and of the Python client, with its file."""
    for root in (SERVICES, CLIENT):
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _import_graph() -> dict[str, set[str]]:
    """The modules that each module imports."""
    paths = dict(_modules())
    return {name: {other for other in _imports(path) if other in paths} - {name} for name, path in paths.items()}


def _circle(graph: Mapping[str, Collection[str]]) -> str:
    """Return a circle of the graph, the importing node first; an empty text without a circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " imports ".join(reversed(error.args[1]))
    return ""


def test_no_files_import_each_other_in_a_circle() -> None:
    circle = _circle(_import_graph())
    assert not circle


@pytest.mark.parametrize("room", [room for room in ROOMS if "/" not in room])
def test_the_folders_of_a_room_import_each_other_in_one_direction(room: str) -> None:
    """Folders count as one node each, files beside them as one node each."""
    start = f"paceline.{room}."

    def node(module: str) -> str:
        return module.removeprefix(start).split(".")[0]

    graph: dict[str, set[str]] = {}
    for module, imported in _import_graph().items():
        if module.startswith(start):
            nodes = {node(other) for other in imported if other.startswith(start)}
            graph.setdefault(node(module), set()).update(nodes - {node(module)})
    circle = _circle(graph)
    assert graph and not circle


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_below_it_and_a_pure_room_no_module_with_effects(room: str) -> None:
    rooms, has_effects = ROOMS[room]
    leaks = []
    for path in _files(room):
        for name in _imports(path):
            top = name.split(".")[0]
            if top in OUTSIDE and not has_effects:
                leaks.append(f"{path.name} imports {name}")
            if name.startswith("paceline.") and not _allowed(name, room, rooms):
                parents = {other.split(".")[0] for other in rooms} | {room}
                if name.removeprefix("paceline.") not in parents:
                    leaks.append(f"{path.name} imports {name}")
            if top in {"paceline_client", "pyspark_paceline"} - rooms:
                leaks.append(f"{path.name} imports {name}")
    assert not leaks, "\n".join(sorted(leaks))


@pytest.mark.parametrize("room", ["controller", "broker", "replication", "log", "coordination"])
def test_randomness_is_passed_in(room: str) -> None:
    used = []
    for path in _files(room):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        used.extend(
            f"{path.name}:{node.lineno} random.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "random"
            and node.attr != "Random"
        )
    assert not used, "\n".join(used)


def test_controller_and_broker_never_import_each_other() -> None:
    for room, other in (("controller", "broker"), ("broker", "controller")):
        for path in sorted((SERVICES / "paceline" / room).rglob("*.py")):
            assert not any(name.startswith(f"paceline.{other}") for name in _imports(path)), path


def test_kazoo_is_imported_in_one_folder() -> None:
    folders = {
        path.parent.relative_to(SERVICES).as_posix()
        for path in sorted(SERVICES.rglob("*.py"))
        if any(name.split(".")[0] == "kazoo" for name in _imports(path))
    }
    assert folders == {"paceline/coordination/kazoo"}


def test_the_client_needs_neither_controller_nor_broker_nor_service_packages() -> None:
    for path in sorted(CLIENT.rglob("*.py")):
        for name in _imports(path):
            assert not name.startswith(("paceline.controller", "paceline.broker", "paceline.coordination")), path
            assert name.split(".")[0] not in {"kazoo", "structlog", "pydantic_settings", "pyspark"}, path


def test_every_package_has_a_docstring_about_its_purpose() -> None:
    for init in sorted((SERVICES / "paceline").rglob("__init__.py")):
        assert ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))), init


def test_no_unit_test_sleeps() -> None:
    """``asyncio.sleep(0)`` gives the loop a turn; a longer sleep belongs to tests/integration."""
    sleeps = []
    for path in sorted((ROOT / "tests" / "unit").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "sleep(" in text else ():
            call = ast.unparse(node) if isinstance(node, ast.Call) else ""
            if re.match(r"[\w.]*\bsleep\(", call) and call != "asyncio.sleep(0)":
                sleeps.append(f"{path.relative_to(ROOT)}:{node.lineno}: {call}")
    assert not sleeps, "\n".join(sleeps)
