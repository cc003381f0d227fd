"""Fixtures of the tests with real processes."""

from collections.abc import Iterator

import pytest

from paceline.coordination.errors import JavaNotFoundError
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.runtime.embedded_zookeeper import java_path
from paceline.testing import run_cluster
from paceline_client.process_channels import close_channels


@pytest.fixture(scope="package")
def java() -> None:
    """Skip the test when this machine has no Java."""
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="package")
def local_cluster(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Start two controllers and three brokers that no test breaks; each test uses its own topics."""
    with run_cluster(tmp_path_factory.mktemp("cluster"), brokers=3, controllers=2) as running:
        yield running.local


@pytest.fixture(scope="package")
def _mortal_cluster(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = LocalCluster(tmp_path_factory.mktemp("mortal"), CONFIG_FILE, ports=free_plan(2, 3), heap_mib=64)
    running.start(timeout_s=240)
    yield running
    running.stop(force=True)


@pytest.fixture(scope="module")
def cluster(_mortal_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Share two controllers and three brokers that a test may kill and restart; each test uses its own topics."""
    yield _mortal_cluster
    close_channels()
    for node in _mortal_cluster.nodes.values():
        if not node.running:
            _mortal_cluster.restart(node)
