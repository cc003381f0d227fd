"""One cluster in containers for all tests here, made whole again before each test, its logs kept when a test fails."""

import subprocess
from collections.abc import Generator, Iterator

import pytest

from tests.containers import faults
from tests.containers.compose import ROOT, ComposeCluster, engine_problem, remove_leftovers
from tests.support.stub_client import StubClient

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note on the test that it failed, for the fixture that keeps the logs."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture(scope="package")
def images() -> None:
    """Images of the code as it is now; skips where there is no engine."""
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
    """The cluster; tests ask for `cluster` instead."""
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
    """The cluster with every process up; whatever a test breaks is mended before the next."""
    whole_run.heal()
    yield whole_run
    if request.node.stash.get(_FAILED, False):
        print(f"logs are in {whole_run.collect(request.node.name)}")


@pytest.fixture
def client(cluster: ComposeCluster) -> Iterator[StubClient]:
    """A client on the EXTERNAL listeners."""
    with cluster.client() as stub_client:
        yield stub_client
