"""Which way imports point: each room may only use what the table of docs/architecture.md gives it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ROOT / "services"
CLIENT = ROOT / "clients" / "python"

SERVICE_FOLDERS = {"service", "kazoo"}

# Modules that pure code must not import: time, random, threads, sockets, files, and packages that use them.
OUTSIDE = {"grpc", "kazoo", "threading", "asyncio", "time", "socket", "subprocess", "os", "shutil", "tempfile",
           "concurrent", "multiprocessing", "structlog", "prometheus_client", "pydantic_settings"}  # fmt: skip

# room -> (rooms of paceline it may import, outside modules it may import although they are in OUTSIDE)
ROOMS: dict[str, tuple[set[str], set[str]]] = {
    "model": (set(), set()),
    "replication": ({"model"}, set()),
    "log": ({"model"}, set()),
    "controller": ({"model", "replication", "coordination", "log.log_config"}, set()),
    "broker": ({"model", "replication", "coordination", "log"}, set()),
    "coordination": ({"model"}, set()),
}
SERVICE_FILES = {"__main__.py", "os_files.py"}


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def _files(room: str) -> list[Path]:
    folder = SERVICES / "paceline" / room
    return [
        path
        for path in sorted(folder.rglob("*.py"))
        if path.name not in SERVICE_FILES and not SERVICE_FOLDERS & set(path.relative_to(folder).parts)
    ]


def _allowed(name: str, room: str, rooms: set[str]) -> bool:
    inside = name.removeprefix("paceline.")
    return any(inside == other or inside.startswith(f"{other}.") for other in rooms | {room})


@pytest.mark.parametrize("room", ROOMS)
def test_a_pure_room_imports_no_module_with_effects(room: str) -> None:
    rooms, outside = ROOMS[room]
    leaks = []
    for path in _files(room):
        for name in _imports(path):
            top = name.split(".")[0]
            if top in OUTSIDE - outside:
                leaks.append(f"{path.name} imports {name}")
            if name.startswith("paceline.") and not _allowed(name, room, rooms):
                parents = {other.split(".")[0] for other in rooms} | {room}
                if name.removeprefix("paceline.") not in parents:
                    leaks.append(f"{path.name} imports {name}")
            if top in {"paceline_client", "pyspark_paceline"}:
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
