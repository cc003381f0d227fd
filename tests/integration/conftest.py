"""Fixtures of the tests with real processes."""

from collections.abc import Iterator

import pytest

from paceline.coordination.embedded import java_path
from paceline.coordination.errors import JavaNotFoundError
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan


@pytest.fixture(scope="package")
def local_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two controllers and three brokers that nobody breaks; each test uses topics of its own."""
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"), CONFIG_FILE, ports=free_plan(2, 3), heap_mib=64)
    cluster.start()
    yield cluster
    cluster.stop()
