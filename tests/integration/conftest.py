"""Fixtures of the tests with real processes."""

from collections.abc import Iterator

import pytest

from paceline.coordination.errors import JavaNotFoundError
from paceline.dev.local_cluster import LocalCluster
from paceline.runtime.embedded_zookeeper import java_path
from paceline.testing import run_cluster


@pytest.fixture(scope="package")
def local_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Start two controllers and three brokers that no test breaks; each test uses its own topics."""
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    with run_cluster(tmp_path_factory.mktemp("cluster"), brokers=3, controllers=2) as running:
        yield running.local
