"""The screens of the console on a running cluster: every page and its JSON twin."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from paceline.console.service.cluster import Cluster
from paceline.console.service.pages import Pages
from paceline.console.service.source import LiveSource
from paceline.dev.local_cluster import LocalCluster
from paceline_client import Admin, NewTopic, Producer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

DEADLINE_S = 60.0
JSON = {"accept": "application/json"}
TOPIC = "screened"


@pytest.fixture(scope="module")
def browser(local_cluster: LocalCluster) -> Iterator[TestClient]:
    with Admin(local_cluster.bootstrap) as admin, Producer(local_cluster.bootstrap) as producer:
        admin.create_topics([NewTopic(TOPIC, assignments=[[1, 2, 3], [2, 3, 1]])])
        for number in range(5):
            producer.send(TOPIC, b'{"n": %d}' % number, key=b"\x00\xff", partition=0).result(DEADLINE_S)
    source = LiveSource(lambda: Admin(local_cluster.bootstrap), "a test")
    cluster = Cluster(local_cluster.bootstrap, show_records=True)
    browser = TestClient(Pages(source, cluster).application())
    yield browser
    source.close()
    cluster.close()


@pytest.mark.parametrize("path", ["/", "/brokers"])
def test_every_page_and_its_twin_answer(browser: TestClient, path: str) -> None:
    page, twin = browser.get(path), browser.get(path, headers=JSON)
    assert (page.status_code, twin.status_code) == (200, 200), page.text
    assert twin.json()["title"] in page.text and not twin.json()["trouble"]


def test_the_overview_has_each_partition_with_its_state(browser: TestClient) -> None:
    def states() -> dict[str, str]:
        rows = browser.get("/", headers=JSON).json()["partitions"]
        return {one["name"]: one["severity"] for one in rows if one["topic"] == TOPIC}

    wanted = {f"{TOPIC}/0": "ok", f"{TOPIC}/1": "ok"}
    assert eventually(lambda: states() == wanted, DEADLINE_S, "the partitions of the new topic")


def test_brokers_are_up_with_their_bytes_and_contact(browser: TestClient) -> None:
    rows = browser.get("/brokers", headers=JSON).json()["brokers"]
    assert [(one["broker"], one["state"]) for one in rows] == [(1, "up"), (2, "up"), (3, "up")]
    assert all(one["bytes"] > 0 and one["controller_silent_ms"] is not None for one in rows)
