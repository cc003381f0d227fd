"""Run the cluster of docker-compose.yml for tests, with the docker command and Docker Compose 2 or 1."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.dev.ports import free_plan, free_ports
from paceline.model.tls import TlsFiles
from tests.containers import faults
from tests.support.stub_client import StubClient
from tests.support.verified_load import VerifiedLoad
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "containers"
PROJECT_PREFIX = "paceline-test-"
BROKERS = {1: "broker-1", 2: "broker-2", 3: "broker-3"}
ZOOKEEPERS = ("zookeeper-1", "zookeeper-2", "zookeeper-3")
CONTROLLERS = {1_000_000: "controller-1", 1_000_001: "controller-2"}
GATEWAYS = ("gateway-1", "gateway-2")
CALL_TIMEOUT_S = 10.0
"""Deadline of a call: an isolated container never responds, and the load retries at another broker."""
_COMMAND_TIMEOUT_S = 180.0


def run(command: Sequence[str], timeout_s: float = _COMMAND_TIMEOUT_S, **environment: str) -> str:
    """Run a command in the repository root and return its stdout; a non-zero exit code fails with its whole output."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"{' '.join(command)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def engine_problem() -> str | None:
    """Return why no container can be started on this machine, or None if containers can be started."""
    try:
        done = subprocess.run(
            ["scripts/docker_engine.sh", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=120.0
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        return str(failure)
    return done.stderr.strip() if done.returncode else None


def remove_leftovers() -> None:
    """Remove containers, volumes and networks of test runs whose process has ended."""
    for kind, remove in (
        ("ps -a", ["rm", "-f", "-v"]),
        ("volume ls", ["volume", "rm"]),
        ("network ls", ["network", "rm"]),
    ):
        form = '{{.Label "com.docker.compose.project"}} ' + ("{{.Name}}" if kind == "volume ls" else "{{.ID}}")
        listing = run(["docker", *kind.split(), "--filter", "label=com.docker.compose.project", "--format", form])
        for project, name in (line.split() for line in listing.splitlines() if line.startswith(PROJECT_PREFIX)):
            owner = project.removeprefix(PROJECT_PREFIX).split("-")[0]
            if not Path(f"/proc/{owner}").exists():
                run(["docker", *remove, name])


@dataclass
class ComposeCluster:
    """ZooKeeper, controllers, brokers and the console in containers, with their own project name and host ports.

    ``overrides`` are additional Compose files; ``environment`` holds variables for the Compose files.
    """

    overrides: Sequence[Path] = ()
    environment: dict[str, str] = field(default_factory=dict)
    project: str = field(default_factory=lambda: f"{PROJECT_PREFIX}{os.getpid()}-{secrets.token_hex(3)}")

    def __post_init__(self) -> None:
        plan = free_plan(len(CONTROLLERS), len(BROKERS))
        self._ports = {
            **{name: node.listeners["EXTERNAL"] for name, node in zip(BROKERS.values(), plan.brokers, strict=True)},
            **{
                name: node.listeners["EXTERNAL"]
                for name, node in zip(CONTROLLERS.values(), plan.controllers, strict=True)
            },
            **dict(zip(("console", *GATEWAYS), free_ports(1 + len(GATEWAYS), "127.0.0.1"), strict=True)),
        }

    @property
    def bootstrap(self) -> list[str]:
        """EXTERNAL addresses of the brokers."""
        return [self.address(name) for name in BROKERS.values()]

    def address(self, service: str) -> str:
        """Return the EXTERNAL address of a broker or controller, or the address of a gateway or the console."""
        return f"localhost:{self._ports[service]}"

    def compose(self, *arguments: str, timeout_s: float = _COMMAND_TIMEOUT_S) -> str:
        """Run a compose command for this cluster."""
        return run(["scripts/compose.sh", *arguments], timeout_s, **self.variables)

    @property
    def variables(self) -> dict[str, str]:
        """Environment of the scripts that run this cluster."""
        return {
            **{f"PORT_{name.upper().replace('-', '_')}": str(port) for name, port in self._ports.items()},
            "COMPOSE_PROJECT_NAME": self.project,
            "COMPOSE_FILE": ":".join(["docker-compose.yml", *map(str, self.overrides)]),
            "PACELINE_CERTIFICATE_FOLDER": str(LOGS / f"{self.project}-certificates"),
            **self.environment,
        }

    @property
    def tls(self) -> TlsFiles:
        """Certificate files of the client ``admin``."""
        return self.files("admin")

    def files(self, name: str) -> TlsFiles:
        """Return the certificate files of a client, issued on first use."""
        folder = LOGS / f"{self.project}-certificates" / name
        if not folder.exists():
            run(["scripts/certificate.sh", name], **self.variables)
        return TlsFiles(folder / "ca.crt", folder / f"client-{name}.crt", folder / f"client-{name}.key")

    def client(self, *services: str, give_up: Callable[[], bool] = lambda: False) -> StubClient:
        """Return a client that bootstraps from the EXTERNAL listeners of the services, by default of all brokers."""
        addresses = [self.address(service) for service in services] or self.bootstrap
        return StubClient(addresses, give_up=give_up, tls=self.tls, call_timeout_s=CALL_TIMEOUT_S)

    def load(self, topic: str, partitions: int) -> VerifiedLoad:
        """Return a context manager that writes with an idempotent producer in the background."""
        return VerifiedLoad(
            self.bootstrap, topic, partitions, tls=self.tls, idempotent=True, call_timeout_s=CALL_TIMEOUT_S
        )

    def up(self, timeout_s: float = 600.0) -> None:
        """Start all services and wait until brokers, controllers, gateways and the console are healthy."""
        deadline = time.monotonic() + timeout_s
        self.compose("up", "-d", "--no-build", timeout_s=timeout_s)
        for service in self._ports:
            self.wait_healthy(service, max(deadline - time.monotonic(), 1.0))

    def down(self) -> None:
        """Remove containers, volumes, networks and certificates."""
        shutil.rmtree(LOGS / f"{self.project}-certificates", ignore_errors=True)
        self.compose("down", "-v", "--remove-orphans", "-t", "5", timeout_s=300.0)

    def container(self, service: str) -> str:
        """Return the id of a service's container, running or not."""
        listing = run(
            [
                *["docker", "ps", "-a", "-q"],
                *["--filter", f"label=com.docker.compose.project={self.project}"],
                *["--filter", f"label=com.docker.compose.service={service}"],
            ]
        ).split()
        assert len(listing) == 1, f"{service} has {len(listing)} containers"
        return listing[0]

    def inspect(self, service: str) -> dict[str, Any]:
        """Return the output of ``docker inspect`` for the container."""
        (details,) = json.loads(run(["docker", "inspect", self.container(service)]))
        assert isinstance(details, dict)
        return details

    def wait_healthy(self, service: str, timeout_s: float = 240.0) -> None:
        """Wait until the container is running and its health check succeeds."""
        container = self.container(service)
        form = "{{.State.Status}} {{if .State.Health}}{{.State.Health.Status}}{{end}}"
        states: list[str] = []

        def healthy() -> bool:
            states.append(run(["docker", "inspect", "-f", form, container]).strip())
            return states[-1] == "running healthy"

        try:
            eventually(healthy, timeout_s, f"{service} is healthy", pause_s=0.25)
        except AssertionError as failure:
            logs = run(["docker", "logs", "--tail", "30", container])
            raise AssertionError(f"{failure} (its state is {states[-1]!r})\n{logs}") from None

    def kill(self, service: str) -> None:
        """Send SIGKILL to the container's process; Docker does not restart the container."""
        run(["docker", "kill", "-s", "KILL", self.container(service)])

    def stop(self, service: str) -> int:
        """Stop the container with a grace period of 30 s before SIGKILL, and return its exit code."""
        run(["docker", "stop", "-t", "30", self.container(service)], timeout_s=240.0)
        return int(self.inspect(service)["State"]["ExitCode"])

    def stop_all(self, *services: str) -> None:
        """Stop the containers at the same time, each with a grace period of 60 s before SIGKILL."""
        run(["docker", "stop", "-t", "60", *(self.container(service) for service in services)], timeout_s=240.0)

    def start_all(self, *services: str) -> None:
        """Start the containers with one command, without waiting until they are healthy."""
        run(["docker", "start", *(self.container(service) for service in services)])

    def kill_all(self, *services: str) -> None:
        """Kill the containers with one command."""
        run(["docker", "kill", *(self.container(service) for service in services)])

    def log(self, service: str, lines: int) -> str:
        """Return the last lines of the container's log."""
        command = ["docker", "logs", "--tail", str(lines), self.container(service)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S)
        return done.stdout + done.stderr

    def health(self, service: str) -> str:
        """Return the result of the container's health check, empty if it has none."""
        return str(self.inspect(service)["State"].get("Health", {}).get("Status", ""))

    def state_changes(self, service: str) -> list[dict[str, Any]]:
        """Return the state-change log entries of a broker or controller since its container was created."""
        command = ["docker", "logs", self.container(service)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S)
        lines = (done.stdout + done.stderr).splitlines()
        return [
            json.loads(line[line.index('{"who"') : line.rindex("}") + 1])
            for line in lines
            if '{"who"' in line and line.rstrip().endswith("[paceline.state_change]")
        ]

    def start(self, service: str) -> None:
        """Start a stopped container with its existing data, and wait until it is healthy."""
        run(["docker", "start", self.container(service)])
        self.wait_healthy(service)

    def pause(self, service: str) -> None:
        """Pause the container's processes."""
        run(["docker", "pause", self.container(service)])

    def unpause(self, service: str) -> None:
        """Resume the container's paused processes."""
        run(["docker", "unpause", self.container(service)])

    @contextlib.contextmanager
    def cut_off(self, service: str, *peers: str, only: faults.Direction | None = None) -> Iterator[None]:
        """Drop packets between a container and its peers while the block runs.

        Without peers, all packets except loopback are dropped; with ``only``, packets of one direction alone.
        """
        addresses = [address for peer in peers for address in self.addresses(peer)]
        pid = self.inspect(service)["State"]["Pid"]
        faults.drop_packets(pid, addresses, only)
        try:
            yield
        finally:
            faults.pass_packets(pid)

    def addresses(self, service: str) -> list[str]:
        """Return the container's IP address in each of its networks."""
        networks = self.inspect(service)["NetworkSettings"]["Networks"]
        return [network["IPAddress"] for network in networks.values() if network["IPAddress"]]

    def heal(self) -> None:
        """Start, unpause and reconnect all containers, and wait until they are healthy."""
        for service in (*ZOOKEEPERS, *self._ports):
            state = self.inspect(service)["State"]
            if state["Paused"]:
                self.unpause(service)
            if state["Running"]:
                faults.pass_packets(state["Pid"])
            else:
                run(["docker", "start", self.container(service)])
        for service in (*ZOOKEEPERS, *self._ports):
            self.wait_healthy(service)

    def collect(self, name: str) -> Path:
        """Write every container's log and state to a folder below build/containers, and return the folder."""
        folder = LOGS / f"{self.project}-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        for service in (*ZOOKEEPERS, *self._ports):
            try:
                container = self.container(service)
                done = subprocess.run(
                    ["docker", "logs", "-t", container],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=_COMMAND_TIMEOUT_S,
                )
                (folder / f"{service}.log").write_bytes(done.stdout)
                state = json.dumps(self.inspect(service)["State"], indent=2)
                (folder / f"{service}.state.json").write_text(state + "\n", encoding="utf-8")
            except (AssertionError, OSError, subprocess.TimeoutExpired) as failure:
                (folder / f"{service}.log").write_text(f"{failure}\n", encoding="utf-8")
        return folder
