"""One cluster in containers for all tests of this package, repaired before each test; failed tests keep its logs."""

import subprocess
from collections.abc import Generator, Iterator

import pytest

from tests.containers import faults
from tests.containers.compose import ROOT, ComposeCluster, engine_problem, remove_leftovers
from tests.support.stub_client import StubClient

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Mark a failed test, so that the fixture ``cluster`` keeps the logs."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture(scope="package")
def images() -> None:
    """Build the images of the working tree; skip if containers or network faults are impossible on this machine."""
    problem = engine_problem()
    if problem is not None:
        pytest.skip(f"containers cannot be started here: {problem}")
    problem = faults.problem()
    if problem is not None:
        pytest.skip(problem)
    done = subprocess.run(["scripts/images.sh"], cwd=ROOT, capture_output=True, text=True, timeout=1700.0)
    assert done.returncode == 0, f"scripts/images.sh failed:\n{done.stderr}"
    remove_leftovers()


@pytest.fixture(scope="package")
def whole_run(images: None) -> Iterator[ComposeCluster]:
    """Start one cluster for the whole package; tests use the fixture ``cluster``."""
    cluster = ComposeCluster()
    try:
        try:
            cluster.up()
        except BaseException:
            print(f"logs are in {cluster.collect('start')}")
            raise
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def cluster(whole_run: ComposeCluster, request: pytest.FixtureRequest) -> Iterator[ComposeCluster]:
    """Provide the cluster with every container healthy, after repairing the faults of earlier tests."""
    whole_run.heal()
    yield whole_run
    if request.node.stash.get(_FAILED, False):
        print(f"logs are in {whole_run.collect(request.node.name)}")


@pytest.fixture
def client(cluster: ComposeCluster) -> Iterator[StubClient]:
    """Provide a client that bootstraps from the EXTERNAL listeners of all brokers."""
    with cluster.client() as stub_client:
        yield stub_client
