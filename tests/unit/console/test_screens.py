"""The screens over HTTP, with a made-up cluster: the page, its JSON twin, and bad input."""

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from paceline.console.service.cluster import Cluster
from paceline.console.service.collector import Collector
from paceline.console.service.pages import Pages
from paceline.console.service.source import LiveSource
from paceline.findings.explain import Finding, FindingKind, Severity
from paceline.model.errors import UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline_client.errors import BootstrapError
from tests.unit.console.metadata import MARKUP, cluster, topics

HEALTH = [
    Finding(
        "broker 2", Severity.CRITICAL, FindingKind.DISK, f"refuses requests for {MARKUP}", "it is full", "make room"
    ),
    Finding("a/0", Severity.WARNING, FindingKind.TAIL, "is in the table of partitions"),
]
JSON = {"accept": "application/json"}


class FakeAdmin:
    """A client of a cluster that answers until it is told not to."""

    def __init__(self) -> None:
        self.is_silent = False

    def answer(self, value: Any) -> Any:
        if self.is_silent:
            raise BootstrapError("no address answered: host:9001 refused")
        return value

    def describe_cluster(self, *_: Any) -> Any:
        return self.answer(cluster(1, 2))

    def describe_hosts(self, *_: Any, **__: Any) -> Any:
        return self.answer({})

    def describe_configs(self, name: str, *_: Any, **__: Any) -> Any:
        return self.answer({name: []})

    def past_events(self, **_: Any) -> Any:
        return self.answer([])

    def describe_log_dirs(self, *_: Any, **__: Any) -> Any:
        return self.answer([])

    def describe_topics(self, names: list[str]) -> Any:
        found = [one for one in topics() if one.name in names]
        if names and not found:
            raise UnknownTopicOrPartitionError(f"no topic {names[0]}")
        return self.answer(found)

    def describe_leaders(self, *_: Any) -> Any:
        return self.answer({})

    def list_groups(self) -> Any:
        row = SimpleNamespace(group_id=MARKUP, state="Empty", member_count=0, coordinator=1, protocol_type="consumer")
        return self.answer([row])

    def describe_groups(self, ids: list[str]) -> Any:
        known = {"group_id": ids[0], "state": "Empty" if ids[0] == MARKUP else "Dead", "coordinator": 1}
        return self.answer([SimpleNamespace(**known, generation=1, protocol="", leader="", members=())])

    def group_offsets(self, group: str) -> Any:
        offset = SimpleNamespace(offset=3, metadata="")
        return self.answer({TopicPartition("a", 0): offset} if group == MARKUP else {})

    def list_partition_reassignments(self) -> Any:
        return self.answer([])

    def close(self) -> None:
        """Do nothing."""


class FakeSource(LiveSource):
    """A source whose collector has read the made-up cluster."""

    def metadata(self) -> Any:
        return cluster(1, 2), topics(), 0


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def browser(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(Cluster, "controller_silences", lambda *_: {1: 5})
    monkeypatch.setattr(Cluster, "health", lambda *_: HEALTH)
    monkeypatch.setattr(Collector, "start", lambda _: None)
    shown = Cluster("127.0.0.1:1")
    shown.admin.close()
    shown.admin = admin  # type: ignore[assignment]
    source = FakeSource(lambda: admin, "a test")  # type: ignore[arg-type, return-value]
    yield TestClient(Pages(source, shown).application(), "http://127.0.0.1:8090", follow_redirects=False)
    source.close()


NAME = quote(MARKUP, safe="")
PATHS = ["/", "/brokers", "/topics", "/topics/a", "/topics/a/settings", "/topics/a/groups", "/groups"]
PATHS += [f"/group?id={NAME}", "/reassignments", "/events"]


@pytest.mark.parametrize("path", PATHS)
def test_a_page_escapes_names_and_has_no_inline_script_or_style(browser: TestClient, path: str) -> None:
    page = browser.get(path).text
    assert "<b>t" not in page
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", page)
    assert 'aria-current="page"' in page


@pytest.mark.parametrize("path", PATHS)
def test_a_page_and_its_json_twin_have_the_same_rows(browser: TestClient, path: str) -> None:
    page, twin = browser.get(path).text, browser.get(path, headers=JSON).json()
    for name in set(re.findall(r'data-panel="(\w+)"', page)) - {"facts"}:
        body = page.split(f'data-panel="{name}"')[1].split("</tbody>")[0].split("<tbody>")[1]
        assert body.count('<th scope="row">') == len(twin[name])


def test_the_overview_begins_with_the_findings_about_processes(browser: TestClient) -> None:
    (found,) = browser.get("/", headers=JSON).json()["findings"]
    assert found["sentence"] == f"broker 2 refuses requests for {MARKUP}, because it is full."
    page = browser.get("/").text
    assert page.index("because it is full.") < page.index("brokers up")
    assert "<code>make room</code>" in page and "is in the table of partitions" not in page


def test_the_overview_leads_to_the_lens_of_a_partition(browser: TestClient) -> None:
    page = browser.get("/").text
    assert 'href="/partition/a/1"' in page and 'href="/partition/%3Cb%3Et%3C%2Fb%3E/0"' in page


def test_without_any_picture_the_page_says_which_address_does_not_answer(browser: TestClient, admin: FakeAdmin) -> None:
    admin.is_silent = True
    for path in ("/groups", "/topics/a", "/reassignments"):
        answer = browser.get(path)
        assert answer.status_code == 503 and "host:9001 refused" in answer.text
        assert "host:9001 refused" in browser.get(path, headers=JSON).json()["error"]


def test_a_page_lacks_only_what_did_not_answer_and_says_so(browser: TestClient, admin: FakeAdmin) -> None:
    admin.is_silent = True
    page = browser.get("/brokers")
    assert page.status_code == 200 and "The picture is old: no address answered: host:9001 refused" in page.text
    assert browser.get("/", headers=JSON).json()["partitions"][0]["severity"] == "critical"


def test_topics_are_found_by_a_part_of_their_name(browser: TestClient) -> None:
    rows = browser.get("/topics?q=B%3E", headers=JSON).json()["topics"]
    assert [one["topic"] for one in rows] == [MARKUP]
    assert "no topic has such a name" in browser.get("/topics?q=zzz").text


def test_a_group_that_does_not_exist_is_not_found(browser: TestClient) -> None:
    assert browser.get("/group?id=no").status_code == 404
    assert browser.get("/group", headers=JSON).status_code == 404


def test_a_topic_that_does_not_exist_is_not_found(browser: TestClient) -> None:
    for path in ("/topics/no", "/topics/no/messages"):
        assert browser.get(path).status_code == 404
        assert browser.get(path, headers=JSON).json() == {"error": "no topic no"}


@pytest.mark.parametrize("query", ["n=0", "at=x", "q=secret"])
def test_a_bad_wish_is_refused_before_anything_is_read(browser: TestClient, query: str) -> None:
    assert browser.get(f"/topics/a/messages?{query}", headers=JSON).status_code == 400


def test_the_contents_of_records_are_refused_without_show_records(browser: TestClient) -> None:
    answer = browser.get("/topics/a/record?partition=0&offset=0")
    assert answer.status_code == 403 and "--show-records" in answer.text


def test_changes_are_refused_unless_they_are_allowed(browser: TestClient) -> None:
    for answer in (browser.get("/changes/produce"), browser.post("/changes/produce", data={"topic": "a"})):
        assert answer.status_code == 403 and "--allow-changes" in answer.text
    for path in PATHS:
        assert "/changes/" not in browser.get(path).text


@pytest.mark.parametrize("path", ["/?page=x", "/?page=-1"])
def test_a_bad_page_number_is_answered_in_both_forms(browser: TestClient, path: str) -> None:
    assert browser.get(path).status_code == 400
    assert "whole number" in browser.get(path, headers=JSON).json()["error"]
