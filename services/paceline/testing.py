"""A cluster for the tests of an application, as a pytest fixture. Needs Java 17 and `pip install 'paceline[testing]'`.

``pytest_plugins = ["paceline.testing"]`` in ``conftest.py`` gives every test the fixture `cluster`:

    def test_orders_are_billed(cluster: Cluster) -> None:
        orders = cluster.topic("orders", partitions=2)
        with Producer(cluster.bootstrap) as producer:
            producer.send(orders, b"42")
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from paceline.coordination.errors import JavaNotFoundError, ZooKeeperJarsNotFoundError
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, settings_of_few
from paceline.dev.ports import free_plan
from paceline_client import Admin, NewTopic

PATIENT: Final = {
    "zookeeper.session.timeout.ms": "30000",
    "controller.broker.lease.ms": "30000",
    "replica.lag.time.max.ms": "15000",
}
"""Long timeouts: a slow machine must not cause elections or shrink an ISR in a test that stops no broker."""


class Cluster:
    """A running cluster of `run_cluster`."""

    def __init__(self, local: LocalCluster) -> None:
        self.local: Final = local
        """The processes; ``local.kill(local.broker(1))`` and ``local.restart(local.broker(1))`` test a failure."""
        self.bootstrap: Final = local.bootstrap
        """Addresses for `Producer`, `Consumer` and `Admin`."""
        self._numbers = itertools.count(1)

    def topic(self, name: str = "topic", partitions: int = 1, **configs: str | int) -> str:
        """Create an empty topic and return its name, which is ``name`` with a number unique in this cluster.

        ``configs`` are topic keys with underscores for dots: ``cleanup_policy="compact"``.

        Raises:
            PacelineError: the topic was refused.
        """
        unique = f"{name}-{next(self._numbers)}"
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        with Admin(self.bootstrap, tls=self.local.client_tls) as admin:
            admin.create_topics([NewTopic(unique, partitions, configs=settings)])
        return unique


@contextmanager
def run_cluster(directory: Path, brokers: int = 1, controllers: int = 1, **options: Any) -> Iterator[Cluster]:
    """Run a cluster on free ports of this machine; with fewer than three brokers topics have that many replicas.

    ``options`` are those of `LocalCluster`, for example ``secure=True`` and ``settings={"message.max.bytes": "9000"}``.

    Raises:
        JavaNotFoundError, ZooKeeperJarsNotFoundError: Java or PySpark, which has ZooKeeper, is missing.
        LocalClusterError: a process did not start; the message ends with its log.
    """
    settings = {**PATIENT, **settings_of_few(brokers), **options.pop("settings", {})}
    ports = free_plan(controllers, brokers)
    local = LocalCluster(directory, CONFIG_FILE, brokers, controllers, settings, ports=ports, heap_mib=64, **options)
    local.start()
    try:
        yield Cluster(local)
    finally:
        local.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give all tests of a session one cluster with one broker; each test uses its own topics and group ids."""
    try:
        with run_cluster(tmp_path_factory.mktemp("paceline")) as running:
            yield running
    except (JavaNotFoundError, ZooKeeperJarsNotFoundError) as error:
        pytest.fail(f"the fixture cluster cannot start: {error}", pytrace=False)
