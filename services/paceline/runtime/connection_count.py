"""Count the connections of each listener from the kernel's table, because gRPC does not report them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

_TABLES: Final = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_ESTABLISHED: Final = "01"


def established_connections(table: str) -> Counter[int]:
    """Return the number of established connections per local port in a table in the format of ``/proc/net/tcp``."""
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
        """Count the connections of these listeners from now on; ``ports`` has the port of each listener name."""
        self._ports = dict(ports)
        self._max_connections = max_connections

    def collect(self) -> Iterator[Metric]:
        """Return the metric families, for a registry; called on the endpoint's thread."""
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
