"""Ports of a local cluster: the previous ports, else the documented ports if free, else other free ports."""

import fcntl
import json
import os
import random
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

BROKER_DEFAULTS = {"CLIENT": 9092, "EXTERNAL": 19092, "REPLICATION": 9093, "CONTROL": 9094}
CONTROLLER_DEFAULTS = {"CLIENT": 9082, "EXTERNAL": 19082, "CONTROL": 9084}
PORTS_FILE = "ports.json"
_lock_files: list[IO[bytes]] = []
_reserved: set[int] = set()

BROKER_METRICS, CONTROLLER_METRICS, ZOOKEEPER, CONSOLE, GATEWAY, GATEWAY_METRICS = 9101, 9081, 2181, 8090, 9095, 9096


@dataclass(frozen=True, slots=True)
class NodePorts:
    """Ports of a process by listener, and its metrics port."""

    listeners: dict[str, int]
    metrics: int


@dataclass(frozen=True, slots=True)
class PortPlan:
    """Ports of a whole local cluster."""

    zookeeper: int
    controllers: tuple[NodePorts, ...]
    brokers: tuple[NodePorts, ...]

    def all(self) -> list[int]:
        """Return every port of the plan."""
        nodes = (*self.controllers, *self.brokers)
        return [self.zookeeper, *(port for node in nodes for port in (*node.listeners.values(), node.metrics))]


def default_plan(controllers: int, brokers: int, offset: int = 0) -> PortPlan:
    """Return the documented ports plus ``offset``: broker n adds 10 n, each further controller subtracts 10."""
    below, above = range(0, -10 * controllers, -10), range(10, 10 * brokers + 1, 10)
    return PortPlan(
        zookeeper=ZOOKEEPER + offset,
        controllers=tuple(_shifted(CONTROLLER_DEFAULTS, CONTROLLER_METRICS, offset + by) for by in below),
        brokers=tuple(_shifted(BROKER_DEFAULTS, BROKER_METRICS, offset + by) for by in above),
    )


def _shifted(listeners: dict[str, int], metrics: int, by: int) -> NodePorts:
    return NodePorts({name: port + by for name, port in listeners.items()}, metrics + by)


def save_plan(directory: Path, plan: PortPlan) -> None:
    """Store the ports, so that the next start in this directory uses them again."""
    (directory / PORTS_FILE).write_text(json.dumps(asdict(plan), indent=2) + "\n", encoding="utf-8")


def load_plan(directory: Path, controllers: int, brokers: int, host: str = "127.0.0.1") -> PortPlan | None:
    """Return the ports of the last start in a directory; None when its processes differ or a port is in use."""
    try:
        fields = json.loads((directory / PORTS_FILE).read_text(encoding="utf-8"))
        plan = PortPlan(
            int(fields["zookeeper"]),
            tuple(NodePorts(dict(each["listeners"]), int(each["metrics"])) for each in fields["controllers"]),
            tuple(NodePorts(dict(each["listeners"]), int(each["metrics"])) for each in fields["brokers"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if (len(plan.controllers), len(plan.brokers)) != (controllers, brokers) or taken(plan.all(), host):
        return None
    return plan


def free_plan(controllers: int, brokers: int, host: str = "127.0.0.1") -> PortPlan:
    """Return distinct ports that are free, and that no other process chooses while this one lives."""
    count = 1 + controllers * (len(CONTROLLER_DEFAULTS) + 1) + brokers * (len(BROKER_DEFAULTS) + 1)
    ports = iter(free_ports(count, host))
    return PortPlan(
        zookeeper=next(ports),
        controllers=tuple(
            NodePorts({name: next(ports) for name in CONTROLLER_DEFAULTS}, next(ports)) for _ in range(controllers)
        ),
        brokers=tuple(NodePorts({name: next(ports) for name in BROKER_DEFAULTS}, next(ports)) for _ in range(brokers)),
    )


def choose_plan(controllers: int, brokers: int, host: str = "127.0.0.1") -> PortPlan:
    """Return the documented ports when all of them are free, else free ports.

    Each chosen port is reserved while this process lives, so that two clusters that start at the same time choose
    different ports.
    """
    plan = default_plan(controllers, brokers)
    if taken(plan.all(), host) or not _reserve(plan.all()):
        return free_plan(controllers, brokers, host)
    return plan


def choose_port(wanted: int, host: str = "127.0.0.1") -> int:
    """Return a port if it is free, else a free port; it is reserved like those of `choose_plan`."""
    return wanted if not taken([wanted], host) and _reserve([wanted]) else free_ports(1, host)[0]


def taken(ports: Sequence[int], host: str = "127.0.0.1") -> list[int]:
    """Return the ports among ``ports`` on which a process listens."""
    found = []
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                found.append(port)
    return found


def _reserve(ports: Sequence[int]) -> bool:
    """Lock the byte of each port in a file that all clusters of a user share; the locks end with this process."""
    if not _lock_files:
        _lock_files.append((Path(tempfile.gettempdir()) / f"paceline-ports-{os.getuid()}.lock").open("ab"))
    fresh = [port for port in ports if port not in _reserved]
    for index, port in enumerate(fresh):
        try:
            fcntl.lockf(_lock_files[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            for locked in fresh[:index]:
                fcntl.lockf(_lock_files[0], fcntl.LOCK_UN, 1, locked)
            return False
    _reserved.update(fresh)
    return True


def free_ports(count: int, host: str) -> list[int]:
    """Pick ports above the documented ones and below the range from which the kernel takes outgoing connections."""
    chance = random.SystemRandom()
    found: list[int] = []
    for port in chance.sample(range(20_000, 32_000), k=2_000):
        if port not in _reserved and not taken([port], host) and _reserve([port]):
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"found only {len(found)} of {count} free ports on {host}")
