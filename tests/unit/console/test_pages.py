"""The pages over HTTP, without a network: content, JSON twins, and access."""

import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from paceline.console.lens import Frame, frame_at
from paceline.console.recording import Recording
from paceline.console.service.access import SECURITY_HEADERS, Access
from paceline.console.service.pages import Pages
from paceline.console.service.source import ReplaySource
from paceline.console.timeline import Timeline
from paceline.model.identifiers import TopicPartition

BASE = "http://127.0.0.1:8090"
JSON = {"accept": "application/json"}


class Visitor:
    """A browser and the tokens that the console has printed."""

    def __init__(self, recording: Recording, allow_changes: bool = False) -> None:
        self.tokens: list[str] = []
        application = Pages(ReplaySource(recording)).application()
        access = Access(application, ("127.0.0.1", "localhost"), 8090, self.tokens.append, allow_changes)
        self.browser = TestClient(access, BASE, follow_redirects=False)

    def enter(self) -> TestClient:
        assert self.browser.get(f"/?token={self.tokens[-1]}").status_code == 303
        return self.browser


@pytest.fixture
def visitor(recording: Recording) -> Visitor:
    return Visitor(recording)


@pytest.fixture
def browser(visitor: Visitor) -> Iterator[TestClient]:
    yield visitor.enter()


# Pages


def test_the_overview_lists_partitions_with_what_is_wrong(browser: TestClient) -> None:
    page = browser.get("/?t=2000")
    assert 'href="/partition/t/0?t=2000"' in page.text
    assert "takes no acks=all writes" in page.text
    (row,) = browser.get("/?t=2000", headers=JSON).json()["partitions"]
    assert (row["leader"], row["isr"], row["severity"]) == (2, [2], "critical")


def test_the_lens_shows_the_asked_moment_and_its_json_twin_the_same(browser: TestClient) -> None:
    page = browser.get("/partition/t/0?t=1000").text
    twin = browser.get("/partition/t/0?t=1000", headers=JSON).json()
    assert twin["t"] == 1_000 and twin["replicas"][0]["log_end_offset"] == 13
    assert "high watermark 10" in page and "would lose 3 records" in page
    assert 'value="1000"' in page and 'max="3000"' in page


def test_without_a_time_a_lesson_begins_at_its_first_step(browser: TestClient) -> None:
    assert browser.get("/partition/t/0", headers=JSON).json()["t"] == 500
    assert "Look at &lt;b&gt;this&lt;/b&gt;." in browser.get("/partition/t/0").text


def test_every_panel_has_a_table_twin(browser: TestClient) -> None:
    parts = browser.get("/partition/t/0/parts?t=3000").json()["parts"]
    pictures = {name for name, html in parts.items() if "<svg" in html}
    assert pictures == {"offsets", "strip", "controllers", "requests"}
    assert all("<table" in parts[f"{name}-table"] for name in pictures)
    assert "10 (truncated from 13)" in parts["offsets-table"]
    assert "broker-1 crashes" in parts["strip-table"]


def test_the_parts_of_a_moment_are_made_once_for_all_browsers(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(timeline: Timeline, topic_partition: TopicPartition, t: int) -> Frame:
        made.append(t)
        return frame_at(timeline, topic_partition, t)

    monkeypatch.setattr("paceline.console.service.pages.frame_at", counted)
    zipped, plain = (browser.get("/partition/t/0/parts?t=3000", headers={"accept-encoding": it}) for it in ("gzip", ""))
    assert zipped.json() == plain.json() and made == [3_000]
    assert (zipped.headers.get("content-encoding"), plain.headers.get("content-encoding")) == ("gzip", None)
    assert browser.get("/partition/t/0/parts?t=1000").json()["t"] == 1_000 and made == [3_000, 1_000]


@pytest.mark.parametrize("t", ["-5", "99999999"])
def test_a_time_outside_the_recording_becomes_its_nearest_end(browser: TestClient, t: str) -> None:
    assert browser.get(f"/partition/t/0?t={t}", headers=JSON).json()["t"] in (0, 3_000)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/partition/t/9", 404), ("/partition/%3Cb%3E/0", 404), ("/partition/t/0?t=x", 400), ("/no", 404)],
)
def test_a_bad_address_is_answered_in_both_forms(browser: TestClient, path: str, status: int) -> None:
    page, twin = browser.get(path), browser.get(path, headers=JSON)
    assert (page.status_code, twin.status_code) == (status, status)
    assert "<b>/" not in page.text and twin.json()["error"]


def test_the_verdict_is_only_where_it_is_asked_for(browser: TestClient) -> None:
    for path in ("/", "/partition/t/0", "/partition/t/0/parts"):
        assert "C1" not in browser.get(path).text
        assert "no loss" not in browser.get(path, headers=JSON).text
    assert "C1: no loss" in browser.get("/verdict").text
    assert "&lt;b&gt;lost" in browser.get("/verdict").text


def test_a_recording_that_was_cut_off_says_so_on_every_page(recording: Recording) -> None:
    recording.cut = "the recording was cut off after line 9"
    browser = Visitor(recording).enter()
    assert "cut off after line 9" in browser.get("/").text
    assert "cut off after line 9" in browser.get("/partition/t/0").text


def test_no_page_has_inline_script_or_style_and_every_named_file_exists(browser: TestClient) -> None:
    for path in ("/", "/partition/t/0", "/verdict", "/no"):
        page = browser.get(path).text
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", page)
        for name in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
            assert browser.get(name).status_code == 200
    for name in ("/static/lens.js", "/static/news.js"):
        assert browser.get(name).headers["content-type"].startswith("text/javascript")


# Access


def test_a_token_is_good_for_one_browser(visitor: Visitor) -> None:
    first = visitor.tokens[0]
    answer = visitor.browser.get(f"/partition/t/0?t=5&token={first}")
    assert answer.headers["location"] == "/partition/t/0?t=5"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    visitor.browser.cookies.clear()
    assert visitor.browser.get(f"/?token={first}").status_code == 401
    assert visitor.browser.get(f"/?token={visitor.tokens[1]}").status_code == 303


@pytest.mark.parametrize(
    "path", ["/", "/partition/t/0", "/verdict", "/stream", "/static/lens.js", "/?token=", "/?token=é"]
)
def test_nothing_is_shown_without_a_cookie(visitor: Visitor, path: str) -> None:
    assert visitor.browser.get(path).status_code == 401
    assert visitor.browser.get(path, headers={"cookie": 'paceline_console_8090=x; "'}).status_code == 401


def test_a_health_check_needs_no_cookie_and_learns_nothing(visitor: Visitor) -> None:
    answer = visitor.browser.get("/healthz")
    assert (answer.status_code, answer.text) == (200, "SERVING\n")
    assert visitor.browser.get("/healthz", headers={"host": "evil.example:8090"}).status_code == 403


@pytest.mark.parametrize("host", ["evil.example:8090", "127.0.0.1", "127.0.0.1:9999", ""])
def test_another_host_name_is_refused(visitor: Visitor, host: str) -> None:
    answer = visitor.enter().get("/", headers={"host": host})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ],
)
def test_requests_of_other_sites_are_refused(browser: TestClient, headers: dict[str, str]) -> None:
    assert browser.get("/", headers=headers).status_code == 403


def test_the_consoles_own_requests_pass(browser: TestClient) -> None:
    assert browser.get("/", headers={"sec-fetch-site": "same-origin", "origin": BASE}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_the_console_is_read_only(browser: TestClient, method: str) -> None:
    assert browser.request(method, "/").status_code == 405


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"origin": BASE}, True),
        ({"origin": BASE, "sec-fetch-site": "same-origin", "sec-fetch-mode": "navigate"}, True),
        ({}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": BASE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, False),
    ],
)
def test_a_form_passes_only_from_a_page_of_the_console(
    recording: Recording, headers: dict[str, str], passes: bool
) -> None:
    visitor = Visitor(recording, allow_changes=True)
    assert visitor.browser.post("/no", headers={"origin": BASE}).status_code == 401
    assert visitor.enter().post("/no", headers=headers).status_code == (404 if passes else 403)
    assert visitor.browser.put("/no", headers=headers).status_code == 405


@pytest.mark.parametrize("path", ["/", "/no", "/static/lens.css", "/?token=wrong"])
def test_every_answer_has_the_security_headers(visitor: Visitor, path: str) -> None:
    for answer in (visitor.browser.get(path), visitor.enter().get(path)):
        assert SECURITY_HEADERS.items() <= dict(answer.headers).items()
        assert "unsafe" not in answer.headers["content-security-policy"]


# Moments


def test_a_recording_lists_the_moments_of_new_findings(browser: TestClient) -> None:
    moments = browser.get("/partition/t/0", headers=JSON).json()["moments"]
    assert [(one["t"], one["severity"]) for one in moments] == [(1_500, "critical"), (2_000, "critical")]
    page = browser.get("/partition/t/0").text
    assert 'href="?t=1500"' in page and "2 moments with" in page
    assert browser.get("/", headers=JSON).json()["partitions"][0]["worst"]["t"] == 1_500
    assert 'href="/partition/t/0?t=1500"' in browser.get("/").text
