"""A cluster that outlives the command that started it: its state file, and its processes by pid.

`paceline dev up` writes the file; the other `paceline dev` commands, and every command that needs a bootstrap address,
read it.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.dev import DEV_DIRECTORY, program
from paceline.model.tls import TlsFiles
from paceline.rpc.channels import Options, open_channel
from paceline.rpc.security.client_tls import client_credentials

STATE_FILE: Final = "cluster.json"
STOP_SECONDS: Final = 40.0
START_SECONDS: Final = 60.0
CONSOLE: Final = "console"
"""Kind and name of the console's process, which is not a node of the cluster."""
STOP_ORDER: Final = (CONSOLE, "gateway", "broker", "controller")
FAST_RECONNECT: Final[Options] = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 50),
    ("grpc.use_local_subchannel_pool", 1),
]


class DetachedClusterError(Exception):
    """The cluster or process does not exist, or the process did not start or stop."""


def launch(argv: Sequence[str], log_path: Path) -> "subprocess.Popen[bytes]":
    """Start a process in its own session; its output is appended to a file, which other users cannot read."""
    log_path.touch(0o600)
    with log_path.open("ab") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def tail(path: Path, lines: int = 25) -> str:
    """Return the last lines of a file, indented."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "  (no log)"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])


def read_state(directory: Path) -> dict[str, Any] | None:
    """Return the state of the cluster in a directory, None when there is none."""
    try:
        state = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) else None


def running_clusters() -> dict[Path, str]:
    """Return the bootstrap addresses of the dev clusters that have a running broker on this machine, by directory."""
    found: dict[Path, str] = {}
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = process.read_bytes().decode(errors="replace")
            log_dirs = re.search("\0--log-dirs=([^\0]+)/broker-[0-9]+/data\0", command)
            if log_dirs and "\0paceline.broker\0" in command and (state := read_state(Path(log_dirs[1]))):
                found[Path(log_dirs[1])] = str(state["bootstrap"])
    return found


def write_state(directory: Path, state: dict[str, Any]) -> None:
    """Replace the state file."""
    temporary = directory / f"{STATE_FILE}.tmp"
    temporary.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    temporary.replace(directory / STATE_FILE)


def alive(pid: int | None, directory: Path) -> bool:
    """Return whether a process runs and belongs to the cluster in the directory; the kernel may have reused its pid."""
    if pid is None:
        return False
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z" and str(directory.resolve()).encode() in command.replace(b"\0", b" ")


def address_file(directory: Path) -> Path:
    """Return the file in which the console of a cluster keeps the address for its next visitor."""
    return directory / CONSOLE / "address"


def dev_command(verb: str, directory: Path) -> str:
    """Return the command line for another `paceline dev` command on the cluster in this directory."""
    where = "" if directory == DEV_DIRECTORY else f" --directory {shlex.quote(str(directory))}"
    return f"{program()} dev {verb}{where}"


def find_node(directory: Path, name: str) -> dict[str, Any]:
    """Return the entry of a process: ``broker-1``, ``controller-1000000``, ``console``.

    Raises:
        DetachedClusterError: no cluster was started in the directory, or it has no process with that name.
    """
    state = read_state(directory)
    if state is None:
        raise DetachedClusterError(f"no cluster runs in {directory}; start one with: {dev_command('up', directory)}")
    for node in state["nodes"]:
        if node["name"] == name:
            found: dict[str, Any] = node
            return found
    names = ", ".join(node["name"] for node in state["nodes"])
    raise DetachedClusterError(f"the cluster in {directory} has no process {name!r}; it has {names}")


def start_node(directory: Path, name: str, say: Callable[[str], None], timeout_s: float = START_SECONDS) -> int:
    """Start a stopped process with its ports and data, and return its pid when it serves.

    Raises:
        DetachedClusterError: it already runs, it ended, or it did not serve in time.
    """
    node = find_node(directory, name)
    if alive(node["pid"], directory):
        raise DetachedClusterError(f"{name} already runs with pid {node['pid']}")
    log = Path(node["log"])
    address = address_file(directory)
    if node["kind"] == CONSOLE:
        address.unlink(missing_ok=True)
    process = launch(node["argv"], log)
    state = read_state(directory)
    assert state is not None
    for each in state["nodes"]:
        if each["name"] == name:
            each["pid"] = process.pid
    write_state(directory, state)
    tls = client_credentials(_tls_files(state), {})
    began = time.monotonic()
    said = False
    with open_channel(node["client"], tls=tls, more_options=FAST_RECONNECT) as channel:
        while (waited_s := time.monotonic() - began) < timeout_s:
            if process.poll() is not None:
                raise DetachedClusterError(f"{name} ended with exit code {process.returncode}\n{tail(log)}")
            with contextlib.suppress(grpc.RpcError):
                if address.exists() if node["kind"] == CONSOLE else not why_not_serving(channel):
                    return process.pid
            if waited_s > 1.5 and not said:
                say(f"waiting until {name} serves; its log is {log}")
                said = True
            time.sleep(0.05)
    raise DetachedClusterError(f"{name} did not serve within {timeout_s:g} s\n{tail(log)}")


def signal_node(directory: Path, name: str, number: signal.Signals) -> int:
    """Send a signal to a running process and return its pid.

    Raises:
        DetachedClusterError: the process does not exist, or it does not run.
    """
    node = find_node(directory, name)
    pid = node["pid"]
    if not alive(pid, directory):
        raise DetachedClusterError(f"{name} does not run; start it with: {dev_command('start', directory)} {name}")
    os.kill(pid, number)
    return int(pid)


def stop_node(directory: Path, name: str, *, force: bool, timeout_s: float = STOP_SECONDS) -> None:
    """Stop a process: with SIGTERM, or with SIGKILL when ``force`` is set, and wait for its end.

    Raises:
        DetachedClusterError: the process does not exist, it does not run, or it did not end in time.
    """
    pid = signal_node(directory, name, signal.SIGKILL if force else signal.SIGTERM)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)  # a paused process handles SIGTERM only after it continues
    deadline = time.monotonic() + timeout_s
    while alive(pid, directory):
        if time.monotonic() > deadline:
            kill = f"{dev_command('kill', directory)} {name}"
            raise DetachedClusterError(f"{name} did not end within {timeout_s:g} s; use: {kill}")
        time.sleep(0.02)


def stop_detached(directory: Path, timeout_s: float = STOP_SECONDS) -> list[str]:
    """Stop all processes, console, gateways and brokers first; return the names of the stopped processes."""
    state = read_state(directory)
    if state is None:
        return []
    stopped: list[str] = []
    for kind in STOP_ORDER:
        group = [
            (node["name"], node["pid"])
            for node in state["nodes"]
            if node["kind"] == kind and alive(node["pid"], directory)
        ]
        _end((pid for _, pid in group), directory, timeout_s)
        stopped.extend(name for name, _ in group)
    zookeeper = state["zookeeper"]["pid"]
    if alive(zookeeper, directory):
        _end([zookeeper], directory, timeout_s)
        stopped.append("zookeeper")
    with contextlib.suppress(FileNotFoundError):
        (directory / STATE_FILE).unlink()
    return stopped


def _end(pids: Iterable[int], directory: Path, timeout_s: float) -> None:
    waiting = list(pids)
    for pid in waiting:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while waiting and time.monotonic() < deadline:
        waiting = [pid for pid in waiting if alive(pid, directory)]
        time.sleep(0.05)
    for pid in waiting:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def why_not_serving(channel: grpc.Channel) -> str:
    """Return the status of a process that does not serve, an empty text when it serves.

    Raises:
        grpc.RpcError: the process has not answered.
    """
    request = health_pb2.HealthCheckRequest(service="readiness")
    answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=1.0)
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return "" if serving else health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def _tls_files(state: dict[str, Any]) -> TlsFiles | None:
    tls = state.get("tls")
    return TlsFiles(Path(tls["ca"]), Path(tls["certificate"]), Path(tls["key"])) if tls else None
