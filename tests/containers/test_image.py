"""Properties of the images: an unprivileged user, a read-only root file system, a size budget, a health check."""

import json

import pytest

from paceline import __version__
from tests.containers.compose import run

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

IMAGE = "paceline:dev"
SIZE_BUDGET_MB = 250
"""Debian and Python use 125 to 150 MB of the budget."""

_RUN = ["docker", "run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL", "--tmpfs", "/tmp"]


@pytest.fixture(autouse=True)
def built(images: None) -> None:
    """Build the images before the first test of this module."""


def test_the_image_keeps_to_its_size_budget() -> None:
    (details,) = json.loads(run(["docker", "image", "inspect", IMAGE]))
    assert details["Size"] / 1e6 < SIZE_BUDGET_MB


def test_the_image_is_labelled_with_its_version_and_commit() -> None:
    labels = json.loads(run(["docker", "image", "inspect", "--format", "{{json .Config.Labels}}", IMAGE]))
    commit = run(["git", "rev-parse", "HEAD"]).strip()
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.revision"].removesuffix("-dirty") == commit


def test_processes_run_as_a_dedicated_user() -> None:
    assert run([*_RUN, IMAGE, "sh", "-c", "id -u; id -g"]).split() == ["10001", "10001"]


def test_only_the_data_folder_can_be_written_under_a_read_only_root() -> None:
    script = (
        "touch /var/lib/paceline/mine && ! touch /opt/paceline/mine 2>/dev/null && ! touch /etc/mine 2>/dev/null"
        " && echo kept"
    )
    assert run([*_RUN, IMAGE, "sh", "-c", script]).strip() == "kept"


def test_the_image_has_the_services_and_not_spark_or_the_tests() -> None:
    script = (
        "import importlib.util as u, paceline.v1.log_service_pb2;"
        "print([n for n in ('paceline', 'kazoo', 'structlog', 'pyspark', 'pytest', 'hatchling') if u.find_spec(n)])"
    )
    assert run([*_RUN, IMAGE, "python", "-c", script]).strip() == "['paceline', 'kazoo', 'structlog']"


def test_the_health_check_of_a_process_that_does_not_run_fails() -> None:
    script = "python -m paceline.runtime.healthcheck; echo $?"
    assert run([*_RUN, IMAGE, "sh", "-c", script]).strip() == "1"


@pytest.mark.parametrize("service", ["broker", "controller"])
def test_a_service_without_settings_names_the_missing_ones(service: str) -> None:
    script = f"python -m paceline.{service} 2>&1; echo exit $?"
    answer = run([*_RUN, IMAGE, "sh", "-c", script])
    assert "zookeeper.connect" in answer
    assert "exit 2" in answer or "exit 1" in answer
