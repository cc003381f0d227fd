"""Counts the connections of each listener from the kernel's table: gRPC tells nothing of its connections."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

_TABLES: Final = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_ESTABLISHED: Final = "01"


def established_connections(table: str) -> Counter[int]:
    """Return how many established connections each local port has in a table in the form of ``/proc/net/tcp``."""
    counted: Counter[int] = Counter()
    for line in table.splitlines()[1:]:
        columns = line.split(maxsplit=4)
        if len(columns) > 4 and columns[3] == _ESTABLISHED:
            counted[int(columns[1].rpartition(":")[2], 16)] += 1
    return counted


class ConnectionCount:
    """A collector of ``paceline_connections`` and ``paceline_connections_max``; it reads the table at each scrape."""

    def __init__(self) -> None:
        self._ports: Mapping[str, int] = {}
        self._max_connections = 0

    def watch(self, ports: Mapping[str, int], max_connections: int) -> None:
        """Count the connections of these listeners, by name, from now on."""
        self._ports = dict(ports)
        self._max_connections = max_connections

    def collect(self) -> Iterator[Metric]:
        """Yield the families, for a registry; called from the endpoint's thread."""
        found: Counter[int] = Counter()
        for path in _TABLES:
            try:
                found += established_connections(path.read_text())
            except OSError:  # a system without /proc
                continue
        open_now = GaugeMetricFamily("paceline_connections", "Connections open at a listener", labels=["listener"])
        most = GaugeMetricFamily(
            "paceline_connections_max",
            "Connections a listener accepts: max.connections, or less where the limit of open files is low",
            labels=["listener"],
        )
        for listener, port in self._ports.items():
            open_now.add_metric([listener], found[port])
            most.add_metric([listener], self._max_connections)
        yield open_now
        yield most
