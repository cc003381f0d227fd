"""A ZooKeeper server of a test's own, on a free port, and pauses of a server."""

import os
import signal
from pathlib import Path
from typing import Any

from paceline.dev.ports import free_ports
from paceline.runtime.embedded_zookeeper import EmbeddedZooKeeper


def embedded_zookeeper(directory: Path, **options: Any) -> EmbeddedZooKeeper:
    """Return a server that is not running yet."""
    (port,) = free_ports(1, "127.0.0.1")
    return EmbeddedZooKeeper(directory, port, **options)


def pause(server: EmbeddedZooKeeper) -> None:
    """Suspend the process: connections stay open, but the server does not answer."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)


def resume(server: EmbeddedZooKeeper) -> None:
    """Continue a paused process."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGCONT)
