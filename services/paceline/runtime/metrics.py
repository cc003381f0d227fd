"""Prometheus metrics under the names of docs/operations.md, and the endpoint that serves them.

Counters that the cores keep are read as a snapshot now and then (`Metrics.refresh`); what happens at the doors,
requests and the loop's lag, is observed here.
"""

import asyncio
import errno
import time
from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.metrics import MetricWrapperBase

from paceline import __version__

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_SLOW = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

GAUGES: Final = {
    "under_replicated_partitions": "Partitions led here whose in-sync set is smaller than the assignment",
    "offline_partitions": "Partitions without a leader, as the active controller counts",
    "active_controller": "1 on the active controller, else 0",
    "standby_in_sync": "1 on a controller that stands by with an up-to-date copy of the active one's state",
    "controller_queue_size": "Events waiting in the controller's queue",
    "replica_lag_records": "Largest lag of a follower on this broker, in records",
    "under_min_isr_partitions": "Partitions led here with fewer in-sync replicas than min.insync.replicas",
    "leader_partitions": "Partitions led here",
    "hosted_partitions": "Partitions with a replica here",
    "leader_throttled_bytes_per_second": "What throttled replicas fetch from this broker, all of them together",
    "follower_throttled_bytes_per_second": "What throttled replicas on this broker fetch",
}
COUNTERS: Final = {
    "isr_shrinks_total": "In-sync set shrinks committed",
    "isr_expands_total": "In-sync set expansions committed",
}


class MetricsError(Exception):
    """The metrics endpoint could not be opened."""


class Metrics:
    """One registry per process; names begin with ``paceline_``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, tuple[Counter, float]] = {}
        for name, note in GAUGES.items():
            self._gauges[name] = self._made(Gauge, name, note)
        for name, note in COUNTERS.items():
            self._counters[name] = (self._made(Counter, name, note), 0.0)
        self.leader_elections = self._made(Counter, "leader_elections_total", "Leader elections by kind", ("kind",))
        self.leader_election_seconds = self._made(
            Histogram, "leader_election_seconds", "Time of one round of elections", buckets=_SLOW
        )
        self.controller_event_seconds = self._made(
            Histogram, "controller_event_seconds", "Handling time of one event", ("event",), buckets=_FAST
        )
        self.controller_takeover_seconds = self._made(
            Histogram,
            "controller_takeover_seconds",
            "From elected to all requests queued; warm: no state read again, behind: some, cold: all",
            ("kind",),
            buckets=_SLOW,
        )
        self.zk_request_seconds = self._made(
            Histogram, "zk_request_seconds", "ZooKeeper requests, from submit to answer", buckets=_FAST
        )
        self.event_loop_lag_seconds = self._made(
            Histogram, "event_loop_lag_seconds", "How late the event loop runs a timer", buckets=_FAST
        )
        self.request_seconds = self._made(
            Histogram, "request_seconds", "Served calls, long polls included", ("method",), buckets=_FAST
        )
        self.request_errors = self._made(
            Counter, "request_errors_total", "Calls that ended with a status, by reason", ("reason",)
        )
        build = self._made(Gauge, "build_info", "Always 1; the version is the label", ("version",))
        build.labels(__version__).set(1)
        self._requests: dict[str, Any] = {}
        self._server: Any = None

    def observe_request(self, method: str, seconds: float, reason: str | None) -> None:
        """Count a finished call; this is the `RequestObserver` of the servers."""
        series = self._requests.get(method)
        if series is None:
            series = self._requests[method] = self.request_seconds.labels(method.rpartition("/")[2])
        series.observe(seconds)
        if reason is not None:
            self.request_errors.labels(reason).inc()

    def refresh(self, snapshot: Mapping[str, float]) -> None:
        """Take over what a core counts; keys are metric names with or without ``paceline_``.

        A counter that went back (the core began anew) counts on from there. Names nobody declared become counters
        when they end in ``_total``, else gauges.
        """
        for key, value in snapshot.items():
            name = key.removeprefix("paceline_")
            if name.endswith("_total"):
                if name not in self._counters:
                    self._counters[name] = (self._made(Counter, name, name.replace("_", " ")), 0.0)
                counter, before = self._counters[name]
                counter.inc(max(value - before, 0.0))
                self._counters[name] = (counter, value)
                continue
            gauge = self._gauges.get(name)
            if gauge is None:
                gauge = self._gauges[name] = self._made(Gauge, name, name.replace("_", " "))
            gauge.set(value)

    def serve(self, host: str, port: int) -> int:
        """Open the endpoint, port 0 on any free port, and return the port.

        Raises:
            MetricsError: the port is in use or the host is not ours.
        """
        try:
            self._server, _ = start_http_server(port, host, self.registry)
        except OSError as failure:
            why = "is in use" if failure.errno == errno.EADDRINUSE else f"cannot be had: {failure.strerror}"
            raise MetricsError(f"metrics port {port} on {host} {why}") from None
        return int(self._server.server_port)

    def close(self) -> None:
        """Close the endpoint."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _made(self, kind: Any, name: str, note: str, labels: tuple[str, ...] = (), **more: Any) -> Any:
        made: MetricWrapperBase = kind(f"paceline_{name}", note, labels, registry=self.registry, **more)
        return made


async def watch_event_loop(metrics: Metrics, period_s: float = 0.5) -> None:
    """Measure the loop's lag until cancelled."""
    while True:
        begin = time.perf_counter()
        await asyncio.sleep(period_s)
        metrics.event_loop_lag_seconds.observe(max(0.0, time.perf_counter() - begin - period_s))
