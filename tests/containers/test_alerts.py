"""The profile `obs`: Prometheus reads every process, and an alert of its rules reaches Alertmanager."""

import json
import urllib.request

import pytest

from paceline.dev.ports import free_ports
from tests.containers.compose import ComposeCluster, run
from tests.support.waiting import eventually

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800), pytest.mark.slow]

DEADLINE_S = 180.0
UNREACHABLE = "AlertmanagerDoesNotAnswer"
ENDS = {"PacelineProcessDown", UNREACHABLE}


def get(port: int, path: str) -> object:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.load(answer)


def test_a_killed_broker_reaches_alertmanager_and_the_alert_ends_after_its_return(cluster: ComposeCluster) -> None:
    prometheus, alertmanager = free_ports(2, "127.0.0.1")
    cluster.environment |= {"PORT_PROMETHEUS": str(prometheus), "PORT_ALERTMANAGER": str(alertmanager)}
    run(["scripts/images.sh", "obs"], timeout_s=1700.0)
    cluster.compose("up", "-d", "--no-build", "--no-deps", "prometheus", "alertmanager")

    def down() -> list[str]:
        try:
            targets = get(prometheus, "/api/v1/targets?state=active")
        except OSError:
            return ["prometheus"]
        assert isinstance(targets, dict)
        return [one["labels"]["instance"] for one in targets["data"]["activeTargets"] if one["health"] != "up"]

    def alerts() -> set[tuple[str, str]]:
        try:
            found = get(alertmanager, "/api/v2/alerts?active=true")
        except OSError:
            return {(UNREACHABLE, "")}
        assert isinstance(found, list)
        return {(one["labels"]["alertname"], one["labels"].get("instance", "")) for one in found}

    try:
        eventually(lambda: not down(), DEADLINE_S, "Prometheus reads all processes")
        cluster.kill("broker-3")
        eventually(lambda: ("PacelineProcessDown", "broker-3") in alerts(), DEADLINE_S, "the alert is at Alertmanager")
        cluster.start("broker-3")
        eventually(lambda: not {name for name, _ in alerts()} & ENDS, 420.0, "the alert has ended")
    finally:
        cluster.compose("rm", "--stop", "--force", "prometheus", "alertmanager")
