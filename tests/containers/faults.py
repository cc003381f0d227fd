"""Network faults of a container: iptables rules in its network namespace, set from the host as root."""

import enum
import os
import shutil
import subprocess
from collections.abc import Iterable


class Direction(enum.Enum):
    """Direction of packets as the container sees it; the value is the iptables chain."""

    INCOMING = "INPUT"
    OUTGOING = "OUTPUT"


def problem() -> str | None:
    """Return why iptables rules cannot be set on this machine, or None if they can."""
    if os.geteuid() != 0:
        return "network faults need root: rules of iptables in the containers' network namespaces"
    missing = [name for name in ("nsenter", "iptables") if shutil.which(name) is None]
    return f"{' and '.join(missing)} missing" if missing else None


def drop_packets(pid: int, addresses: Iterable[str], only: Direction | None = None) -> None:
    """Drop packets between the container of a process and the addresses; without addresses, all except loopback."""
    found = list(addresses)
    for direction in (only,) if only is not None else Direction:
        if found:
            side = "-s" if direction is Direction.INCOMING else "-d"
            matches = [[side, address] for address in found]
        else:
            matches = [["!", "-i" if direction is Direction.INCOMING else "-o", "lo"]]
        for match in matches:
            _iptables(pid, "-A", direction.value, *match, "-j", "DROP")


def pass_packets(pid: int) -> None:
    """Remove the rules that `drop_packets` has set."""
    for direction in Direction:
        _iptables(pid, "-F", direction.value)


def _iptables(pid: int, *arguments: str) -> None:
    command = ["nsenter", "-t", str(pid), "-n", "iptables", "-w", "30", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0)
    assert done.returncode == 0, f"{' '.join(command)} exited with {done.returncode}: {done.stderr}"
