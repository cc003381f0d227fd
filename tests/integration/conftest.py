"""Fixtures of the tests with real processes."""

from collections.abc import Iterator

import pytest

from paceline.coordination.errors import JavaNotFoundError
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.runtime.embedded_zookeeper import java_path

PATIENT = {
    "zookeeper.session.timeout.ms": "30000",
    "controller.broker.lease.ms": "30000",
    "replica.lag.time.max.ms": "15000",
}
"""Long timeouts: no test breaks this cluster, and a slow machine must not cause elections or shrink an ISR."""


@pytest.fixture(scope="package")
def local_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Start two controllers and three brokers that no test breaks; each test uses its own topics."""
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    cluster = LocalCluster(
        tmp_path_factory.mktemp("cluster"), CONFIG_FILE, settings=PATIENT, ports=free_plan(2, 3), heap_mib=64
    )
    cluster.start()
    yield cluster
    cluster.stop()
