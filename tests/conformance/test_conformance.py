"""Every client whose tools are installed plays every scenario."""

from collections.abc import Callable, Iterator

import pytest

from paceline.coordination.errors import JavaNotFoundError
from paceline.runtime.embedded_zookeeper import java_path
from tests.conformance.__main__ import play
from tests.conformance.clusters import Cluster, RealCluster
from tests.conformance.driver import Driver, ToolchainMissingError, known_drivers
from tests.conformance.results import FAILED
from tests.conformance.scenarios import all_scenarios

DRIVERS = known_drivers()
REAL = [one.name for one in all_scenarios() if one.cluster == "real"]
CORE = (
    "null and empty keys and values and headers survive a real broker",
    "the leader dies during produce and nothing is lost or doubled",
    "one member gets every partition and the next one begins at its commit",
    "two members share the partitions by range",
)
"""Scenarios of real processes that Go and Java play in each run; Python plays all."""


@pytest.fixture(scope="module")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Cluster]]:
    """Return a function that creates the real cluster for the first scenario that needs it."""
    clusters: list[RealCluster] = []

    def make() -> Cluster:
        if not clusters:
            clusters.append(RealCluster(tmp_path_factory.mktemp("conformance")))
        return clusters[0]

    yield make
    for cluster in clusters:
        cluster.stop()


def _marks(language: str, name: str) -> tuple[pytest.MarkDecorator, ...]:
    return () if language == "python" or name in CORE else (pytest.mark.slow,)


@pytest.fixture(scope="module", params=sorted(DRIVERS))
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A driver; a language without its tools is skipped."""
    try:
        running = Driver(DRIVERS[request.param])
    except ToolchainMissingError as error:
        pytest.skip(str(error))
    yield running
    running.close()


def test_the_client_passes_the_scenarios_of_a_scripted_cluster(driver: Driver) -> None:
    failures = []
    for scenario in all_scenarios():
        if scenario.cluster != "real":
            outcome = play(driver, scenario, _no_cluster)
            if outcome.verdict == FAILED:
                failures.append(f"{scenario.name}: {outcome.why}")
    assert not failures, "\n".join(failures)


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.parametrize(
    ("driver", "name"),
    [
        pytest.param(language, name, id=f"{language}-{name}", marks=_marks(language, name))
        for language in sorted(DRIVERS)
        for name in REAL
    ],
    indirect=["driver"],
)
def test_the_client_passes_a_scenario_of_real_processes(
    driver: Driver, real_cluster: Callable[[], Cluster], name: str
) -> None:
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    scenario = next(one for one in all_scenarios() if one.name == name)
    outcome = play(driver, scenario, real_cluster)
    assert outcome.verdict != FAILED, outcome.why


def _no_cluster() -> Cluster:
    raise AssertionError("a scenario of a scripted cluster asked for a real one")
