"""Metrics: names, counters from snapshots, the endpoint."""

import socket
import urllib.request

import pytest

from paceline.runtime.lifecycle import ExitCode, StartupError
from paceline.runtime.metrics import Metrics

NAMES = [
    "paceline_under_replicated_partitions",
    "paceline_offline_partitions",
    "paceline_active_controller",
    "paceline_isr_shrinks_total",
    "paceline_isr_expands_total",
    "paceline_leader_elections_total",
    "paceline_leader_election_seconds",
    "paceline_replica_lag_records",
    "paceline_controller_queue_size",
    "paceline_controller_event_seconds",
    "paceline_zk_request_seconds",
    "paceline_event_loop_lag_seconds",
    "paceline_request_seconds",
    "paceline_request_errors_total",
]


def test_the_endpoint_serves_every_documented_name() -> None:
    metrics = Metrics()
    port = metrics.serve("127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    finally:
        metrics.close()
    for name in NAMES:
        assert f"# TYPE {name.removesuffix('_total') if name not in text else name} " in text, name


def test_a_counter_follows_the_core_and_survives_its_restart() -> None:
    metrics = Metrics()

    def shrinks() -> float | None:
        return metrics.registry.get_sample_value("paceline_isr_shrinks_total")

    metrics.refresh({"isr_shrinks_total": 3})
    metrics.refresh({"isr_shrinks_total": 5})
    assert shrinks() == 5
    metrics.refresh({"isr_shrinks_total": 1})
    metrics.refresh({"isr_shrinks_total": 2})
    assert shrinks() == 6


def test_gauges_have_the_last_value() -> None:
    metrics = Metrics()
    metrics.refresh({"under_replicated_partitions": 4, "moving_replicas": 2})
    metrics.refresh({"under_replicated_partitions": 0, "moving_replicas": 1})
    assert metrics.registry.get_sample_value("paceline_under_replicated_partitions") == 0
    assert metrics.registry.get_sample_value("paceline_moving_replicas") == 1


def test_requests_are_counted_by_method_and_errors_by_reason() -> None:
    metrics = Metrics()
    metrics.observe_request("/paceline.v1.LogService/Fetch", 0.2, None)
    metrics.observe_request("/paceline.v1.LogService/Fetch", 0.2, "THROTTLED")
    assert metrics.registry.get_sample_value("paceline_request_seconds_count", {"method": "Fetch"}) == 2
    assert metrics.registry.get_sample_value("paceline_request_errors_total", {"reason": "THROTTLED"}) == 1


def test_a_port_in_use_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StartupError, match="is in use") as raised:
            Metrics().serve("127.0.0.1", taken.getsockname()[1])
    assert raised.value.exit_code is ExitCode.PORT_IN_USE
