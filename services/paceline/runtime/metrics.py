"""Prometheus metrics under the names of docs/operations.md, and the endpoint that serves them.

Counters of the cores are read as a snapshot periodically (`Metrics.refresh`); requests and the event loop's lag are
observed in the service layer.
"""

import asyncio
import errno
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase

from paceline import __version__
from paceline.model.node_description import NodeDescription
from paceline.rpc.admission.listener_limits import ListenerLimits
from paceline.runtime.lifecycle import ExitCode, StartupError
from paceline.runtime.metrics_endpoint import MetricsEndpoint

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_SLOW = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

GAUGES: Final = {
    "under_replicated_partitions": "Partitions led here whose in-sync set is smaller than the assignment",
    "offline_partitions": "Partitions without a leader, counted by the active controller",
    "active_controller": "1 on the active controller, else 0",
    "standby_in_sync": "1 on a standby controller with an up-to-date copy of the active controller's state",
    "controller_queue_size": "Events waiting in the controller's queue",
    "replica_lag_records": "Largest lag of a follower on this broker, in records",
    "under_min_isr_partitions": "Partitions led here with fewer in-sync replicas than min.insync.replicas",
    "at_min_isr_partitions": "Partitions led here with exactly min.insync.replicas in-sync replicas",
    "offline_replicas": "Replicas here whose log directory has failed",
    "reassigning_partitions": "Partitions led here that are being reassigned",
    "failed_partitions": "Partitions that replica fetchers have stopped copying until the next LeaderAndIsr",
    "offline_log_directories": "Log directories that have failed",
    "moving_replicas": "Replicas that move between log directories or wait for it",
    "produce_purgatory_size": "Produce requests that wait for replication",
    "fetch_purgatory_size": "Fetches that wait for data",
    "waiting_fetches_per_connection": "Fetches in progress of the client connection that has most of them",
    "delete_records_purgatory_size": "Deletions of records that wait for the replicas",
    "partitions_without_series": "Partitions beyond metrics.partitions.max, which have no series of their own",
    "preferred_replica_imbalance": "Partitions not led by their preferred replica",
    "topics": "Topics, counted by the active controller",
    "partitions": "Partitions that have had a leader, counted by the active controller",
    "topics_to_delete": "Topics that wait for their deletion",
    "replicas_to_delete": "Replicas of those topics that are not deleted yet",
    "topics_ineligible_to_delete": "Topics whose deletion has to wait",
    "replicas_ineligible_to_delete": "Replicas that cannot be deleted at the moment",
    "controller_request_queue_size": "Unanswered control requests of all brokers",
    "watchers": "Streams that watch events",
    "unreadable_access_lists": "Resources whose access rules cannot be parsed, which refuse all but super users",
    "group_members": "Members of the consumer groups coordinated here",
    "committed_offsets": "Committed offsets of the consumer groups coordinated here",
    "group_partitions_loading": "Partitions of __consumer_offsets whose groups are being loaded",
    "leader_partitions": "Partitions led here",
    "hosted_partitions": "Partitions with a replica here",
    "leader_throttled_bytes_per_second": "Rate at which all throttled replicas together fetch from this broker",
    "follower_throttled_bytes_per_second": "Rate at which throttled replicas on this broker fetch",
    "fetch_sessions": "Incremental fetch sessions (KIP-227) that the broker keeps",
    "replica_fetchers": "Replica fetchers, each of which copies partitions from a leader",
    "damaged_logs": "Logs with missing records between start and end, on which the broker must not lead",
    "logs_set_aside": "Logs that were renamed because a topic with the same name and another id owns the partition",
    "log_cleaner_max_dirty_percent": "Dirty part of the dirtiest log that is compacted",
    "uncleanable_partitions": "Logs whose compaction has failed",
    "gateway_members": "Groups, and readers without a group, that the gateway reads for",
    "gateway_streams": "Subscribe streams; the Pull callers of a group count as one",
    "gateway_partitions": "Partitions that the gateway's members hold",
    "gateway_unacknowledged_records": "Records delivered and not acknowledged",
    "gateway_unanswered_bytes": "Bytes of published records without a result",
    "broker_removed": "1 on a broker that an operator has removed from the cluster; it is idle and not registered",
    "undecided_partitions": "Partitions without a leader that wait for a decision of an operator (unclean_members)",
    "stuck_reassignments": "Reassignments that do not continue without help, at most 100",
    "topics_with_unknown_settings": "Topics whose settings could not be read for more than a minute",
}
FAMILIES: Final = {
    "controller_broker_queue_size": (("broker",), "Unanswered control requests of a broker"),
    "controller_broker_requests_total": (("broker",), "Control requests sent to a broker"),
    "controller_broker_queue_seconds_total": (("broker",), "Time that control requests to a broker waited unsent"),
    "group_lag_records": (("group",), "Committed records that a group coordinated here has not read yet"),
    "groups": (("state",), "Consumer groups coordinated here, by state"),
    "group_limit_used": (("limit",), "Use of a limit by the group that uses most of it, in the unit of the setting"),
    "zk_session_state": (("state",), "1 for the present state of the ZooKeeper session"),
    "zk_session_events_total": (("state",), "Number of times that the ZooKeeper session entered a state"),
    "zk_session_state_seconds": ((), "Time for which the ZooKeeper session has been in its present state"),
    "clock_seconds": ((), "Clock of the process, seconds since the epoch"),
    "certificate_not_after_seconds": (
        ("path",),
        "End of the validity of a certificate, seconds since the epoch",
    ),
    "peer_unanswered_seconds": (("kind", "peer"), "Age of the oldest unanswered request to a process"),
    "log_directory_offline": (("directory",), "1 for a log directory that has failed"),
    "log_directory_free_bytes": (("directory",), "Bytes that the broker may still write to the disk of the directory"),
    "log_directory_total_bytes": (("directory",), "Size of the disk of the directory"),
    "log_directory_min_free_bytes": (("directory",), "Free bytes below which produce requests are refused"),
    "log_directory_reserve_bytes": (("directory",), "Free bytes below which followers pause"),
    "log_directory_room": (("directory",), "1: room for all, 2: produce requests are refused, 3: followers pause"),
    "replica_fetcher_requests_total": (("leader", "fetcher"), "Fetches one replica fetcher has sent"),
    "replica_fetcher_unanswered_seconds": (("leader", "fetcher"), "Time since the first fetch without an answer"),
    "topic_messages_in_total": (("topic",), "Records appended for producers"),
    "topic_bytes_in_total": (("topic",), "Bytes appended for producers"),
    "topic_bytes_rejected_total": (("topic",), "Bytes of batches that were refused"),
    "topic_bytes_out_total": (("topic",), "Bytes answered to consumers"),
    "topic_produce_requests_total": (("topic",), "Batches of producers, one for each partition of a request"),
    "topic_produce_failures_total": (("topic",), "Batches of producers that were refused"),
    "topic_fetch_requests_total": (("topic",), "Partitions read for consumers' fetches"),
    "topic_fetch_failures_total": (("topic",), "Partitions whose fetch was refused"),
    "topic_replication_bytes_in_total": (("topic",), "Bytes copied from leaders"),
    "topic_replication_bytes_out_total": (("topic",), "Bytes answered to followers"),
    "topic_reassignment_bytes_in_total": (("topic",), "Bytes copied by replicas that a reassignment adds"),
    "topic_reassignment_bytes_out_total": (("topic",), "Bytes answered to replicas that a reassignment adds"),
    "topic_invalid_crc_total": (("topic",), "Batches of producers whose checksum did not match"),
    "client_throttle_seconds_total": (("user", "quota"), "Time for which callers above a quota were told to wait"),
    "partition_under_replicated": (("topic", "partition"), "1 where led here with too small an in-sync set"),
    "partition_in_sync_replicas": (("topic", "partition"), "In-sync replicas, where led here"),
    "partition_under_min_isr": (("topic", "partition"), "1 where led here and below min.insync.replicas"),
    "partition_at_min_isr": (("topic", "partition"), "1 where led here and at min.insync.replicas"),
    "partition_replicas": (("topic", "partition"), "Assigned replicas"),
    "partition_last_stable_offset_lag": (("topic", "partition"), "High watermark minus last stable offset"),
    "partition_log_segments": (("topic", "partition"), "Segments of the log"),
    "partition_log_start_offset": (("topic", "partition"), "First offset in the log"),
    "partition_log_end_offset": (("topic", "partition"), "End of the log, exclusive"),
    "partition_high_watermark": (("topic", "partition"), "End of the committed records, exclusive"),
    "partition_log_size_bytes": (("topic", "partition"), "Size of the log"),
    "partition_replica_lag_records": (("topic", "partition"), "Lag of a replica that follows; -1 when not known yet"),
}
"""Series whose labels appear and disappear with brokers, topics and partitions; counters end in ``_total``."""
COUNTERS: Final = {
    "isr_shrinks_total": "In-sync set shrinks committed",
    "isr_expands_total": "In-sync set expansions committed",
    "failed_isr_updates_total": "In-sync set changes that were refused or whose result was not known",
    "messages_in_total": "Records appended for producers",
    "bytes_in_total": "Bytes appended for producers",
    "bytes_rejected_total": "Bytes of producers' batches that were refused",
    "bytes_out_total": "Bytes answered to consumers",
    "produce_requests_total": "Produce requests",
    "produce_failures_total": "Batches of producers that were refused",
    "fetch_requests_total": "Fetches, of consumers and followers",
    "fetch_failures_total": "Partitions of consumers' fetches that were refused",
    "replication_bytes_in_total": "Bytes copied from leaders",
    "replication_bytes_out_total": "Bytes answered to followers",
    "reassignment_bytes_in_total": "Bytes copied by replicas that a reassignment adds",
    "reassignment_bytes_out_total": "Bytes answered to replicas that a reassignment adds",
    "invalid_crc_total": "Batches of producers whose checksum did not match",
    "replica_fetch_requests_total": "Fetches sent to leaders",
    "offset_commits_total": "Offsets committed by consumer groups, one for each partition of a commit",
    "offset_expirations_total": "Committed offsets removed because their group has not used them for too long",
    "group_rebalances_total": "Generations of consumer groups that have begun",
    "group_loads_total": "Partitions of __consumer_offsets whose groups were loaded",
    "group_load_seconds_total": "Time of these loads",
    "produce_expirations_total": "Produce requests that were not replicated in time",
    "fetch_expirations_total": "Fetches whose wait ended without enough data",
    "proof_waits_total": "Requests that waited until the leadership was proved",
    "damaged_reads_total": "Reads that found a damaged record",
    "replicas_moved_total": "Completed moves of replicas between log directories",
    "moved_bytes_total": "Bytes copied between log directories",
    "gateway_published_records_total": "Published records with a result that is no error",
    "log_cleaner_runs_total": "Compactions of one log",
    "log_cleaner_bytes_total": "Bytes read and written by compaction",
    "log_cleaner_bytes_removed_total": "Bytes that compaction removed",
}


def node_families(node: NodeDescription) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the metrics in the description of the process, as label families."""
    return {
        "zk_session_state_seconds": {(): node.zookeeper_state_ms / 1000},
        "clock_seconds": {(): node.clock_ms / 1000},
        "certificate_not_after_seconds": {(one.path,): one.not_after_ms / 1000 for one in node.certificates},
        "peer_unanswered_seconds": {
            (one.kind, str(one.node_id)): one.unanswered_ms / 1000 for one in node.peers if one.kind != "controller"
        },
    }


class Families:
    """Series with variable labels."""

    def __init__(self) -> None:
        self.rows: Mapping[str, Mapping[tuple[str, ...], float]] = {}
        """Present values by family and label values, in the order of `FAMILIES`; replaced as a whole, never changed."""

    def collect(self) -> Iterator[Metric]:
        """Return the families, for a registry; called on the endpoint's thread."""
        for name, rows in self.rows.items():
            labels, note = FAMILIES[name]
            counts = name.endswith("_total")
            made: Any = (CounterMetricFamily if counts else GaugeMetricFamily)(f"paceline_{name}", note, labels=labels)
            for values, number in rows.items():
                made.add_metric(values, number)
            yield made


class Metrics:
    """The metrics registry of a process; names begin with ``paceline_``, standard process metrics with ``process_``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.families = Families()
        self.registry.register(self.families)
        self.is_serving = False
        """Whether the process serves clients, reported by ``/healthz``."""
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, tuple[Counter, float]] = {}
        for name, note in GAUGES.items():
            self._gauges[name] = self._made(Gauge, name, note)
        for name, note in COUNTERS.items():
            self._counters[name] = (self._made(Counter, name, note), 0.0)
        self.connections = self._made(Gauge, "connections", "Connections open at a listener", ("listener",))
        self.connections_max = self._made(
            Gauge,
            "connections_max",
            "Connections a listener accepts: max.connections, or less where the limit of open files is low",
            ("listener",),
        )
        by_limit = ("listener", "limit")
        used = self._made(Gauge, "listener_limit_used", "Use of a limit, by its setting", by_limit)
        refused = self._made(Counter, "listener_limit_refusals_total", "Refusals of a limit, by its setting", by_limit)
        self.listener_limits = ListenerLimits(
            lambda listener, limit, number: used.labels(listener, limit).set(number),
            lambda listener, limit, number: refused.labels(listener, limit).inc(number),
        )
        self.leader_elections = self._made(
            Counter, "leader_elections_total", "Leader elections by kind and cause", ("kind", "cause")
        )
        self.leader_election_seconds = self._made(
            Histogram, "leader_election_seconds", "Time of one round of elections", buckets=_SLOW
        )
        self.controller_event_seconds = self._made(
            Histogram, "controller_event_seconds", "Handling time of an event", ("event",), buckets=_FAST
        )
        self.controller_queue_seconds = self._made(
            Histogram, "controller_queue_seconds", "Time of events in the controller's queue", buckets=_SLOW
        )
        self.log_flush_seconds = self._made(
            Histogram, "log_flush_seconds", "Time of flushes of files to the device", buckets=_SLOW
        )
        self.controller_takeover_seconds = self._made(
            Histogram,
            "controller_takeover_seconds",
            "From the election until all requests are queued; warm: no state was read, behind: some, cold: all",
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
        self._server: MetricsEndpoint | None = None

    def observe_request(self, method: str, seconds: float, reason: str | None) -> None:
        """Count a finished call; this is the `RequestObserver` of the servers."""
        series = self._requests.get(method)
        if series is None:
            series = self._requests[method] = self.request_seconds.labels(method.rpartition("/")[2])
        series.observe(seconds)
        if reason is not None:
            self.request_errors.labels(reason).inc()

    def refresh(self, snapshot: Mapping[str, float]) -> None:
        """Update metrics of `GAUGES` and `COUNTERS` from a core; keys are their names.

        A counter that decreased (a new core) continues from there.
        """
        for name, value in snapshot.items():
            if name in self._gauges:
                self._gauges[name].set(value)
                continue
            counter, before = self._counters[name]
            counter.inc(max(value - before, 0.0))
            self._counters[name] = (counter, value)

    def serve(self, host: str, port: int, config: Callable[[], str] = lambda: "") -> int | None:
        """Open the endpoint and return its port: port 0 means any free port, -1 no endpoint.

        Args:
            host: address to listen on.
            port: ``metrics.port``.
            config: returns the text of ``/config``.

        Raises:
            StartupError: the port is in use or the host is not a local address.
        """
        if port < 0:
            return None
        try:
            self._server = MetricsEndpoint(host, port, self.registry, is_serving=lambda: self.is_serving, config=config)
        except OSError as failure:
            why = "is in use" if failure.errno == errno.EADDRINUSE else f"cannot be opened: {failure.strerror}"
            raise StartupError(f"metrics port {port} on {host} {why}", ExitCode.PORT_IN_USE) from None
        self._server.start()
        return self._server.server_port

    def close(self) -> None:
        """Close the endpoint."""
        if self._server is not None:
            self._server.stop()
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
