"""The console plays a recording in a browser: slider, keys, accessibility, widths and access."""

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from examples.flights.moments import Moment
from examples.flights.page import make_page
from paceline.console.lens import frame_at
from paceline.console.recording import read_recording
from paceline.console.timeline import Timeline
from paceline.model.identifiers import TopicPartition
from tests.browser import console as consoles
from tests.browser.console import LESSON, RECORDED, Console, check_axe, check_width, enter, replaying
from tests.browser.tools import MARKS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = list(MARKS)

LENS = RECORDED["lens"]
PANELS = ("explain", "offsets", "offsets-table", "strip", "controllers", "requests", "requests-table", "events-table")


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with replaying(tmp_path_factory.mktemp("console"), "--name", "console.example") as running:
        yield running


@pytest.fixture(scope="module")
def context(browser: "Browser", console: Console) -> "Iterator[BrowserContext]":
    entered = enter(browser, console, base_url=console.origin)
    yield entered
    entered.close()


@pytest.fixture
def page(context: "BrowserContext") -> "Iterator[Page]":
    opened = context.new_page()
    yield opened
    opened.close()


@pytest.mark.parametrize("name", RECORDED)
def test_axe_finds_no_violation_and_no_page_scrolls_sideways(
    context: "BrowserContext", page: "Page", name: str
) -> None:
    answer = page.goto(RECORDED[name])
    assert answer is not None and answer.ok is (name != "error")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        check_axe(page)
    for width in (consoles.NARROW, 380, 1280, consoles.WIDE):
        page.set_viewport_size({"width": width, "height": 900})
        check_width(page)


def clock(page: "Page") -> str:
    return page.locator("#clock").inner_text()


def await_moment(page: "Page", t: int) -> None:
    """Wait until every panel shows what the server draws of this moment."""
    wanted = page.evaluate(
        "t => fetch(`${location.pathname}/parts?t=${t}`).then(answer => answer.json())",
        t,
    )
    page.wait_for_function("wanted => document.getElementById('clock').textContent === wanted", arg=wanted["clock"])
    for name in PANELS:
        page.wait_for_function(
            """([name, wanted]) => {
                const place = document.querySelector(`[data-part="${name}"]`), right = document.createElement("div");
                right.innerHTML = wanted;
                return place.innerHTML === right.innerHTML;
            }""",
            arg=[name, wanted["parts"][name]],
        )


def test_the_slider_moves_all_panels_and_the_address(page: "Page") -> None:
    page.goto(LENS)
    before = {name: page.locator(f'[data-part="{name}"]').inner_html() for name in ("offsets", "strip", "controllers")}
    slider = page.locator("#t")
    slider.evaluate("(slider, t) => { slider.value = t; slider.dispatchEvent(new Event('input')); }", 8_524)
    await_moment(page, 8_524)
    for name, html in before.items():
        assert page.locator(f'[data-part="{name}"]').inner_html() != html, name
    assert "truncates" in page.locator('[aria-current="step"]').inner_text()
    page.wait_for_url("**?t=8524")
    page.reload()
    await_moment(page, 8_524)


def test_keys_move_all_panels(page: "Page") -> None:
    page.goto(LENS)
    slider = page.locator("#t")
    begin, end = int(slider.get_attribute("min") or 0), int(slider.get_attribute("max") or 0)
    marks = page.evaluate("JSON.parse(document.getElementById('lens').dataset.marks)")
    later = next(mark for mark in marks if mark > 4_700)
    for key, t in (
        ("ArrowRight", 5_200),
        ("ArrowLeft", 4_700),
        ("]", later),
        ("[", max(mark for mark in marks if mark < later)),
        ("Home", begin),
        ("Shift+ArrowRight", begin + 5_000),
        ("End", end),
    ):
        page.keyboard.press(key)
        await_moment(page, t)
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    assert page.locator('[data-do="play"]').get_attribute("aria-pressed") == "true"
    page.wait_for_function("begin => Number(document.getElementById('t').value) > begin + 500", arg=begin)
    page.keyboard.press("Space")
    assert page.locator('[data-do="play"]').get_attribute("aria-pressed") == "false"


def test_every_control_is_reached_by_tab_in_the_order_of_the_page(page: "Page") -> None:
    page.goto(LENS)
    seen = []
    for _ in range(15):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert seen[:4] == ["Skip to the content", "Paceline", "Overview", "t"]
    assert [one for one in seen if one.startswith(("▶", "−", "+", "‹", "change"))] == [
        "‹ change",
        "−½ s",
        "▶ play",
        "+½ s",
        "change ›",
    ]


def test_a_click_on_a_change_leads_to_its_moment_without_loading_a_page(page: "Page") -> None:
    page.goto(LENS)
    page.evaluate("window.same = true")
    link = page.locator('[data-part="strip"] a').last
    t = int((link.get_attribute("href") or "").partition("?t=")[2])
    link.click()
    await_moment(page, t)
    assert page.evaluate("window.same")


def test_no_request_leaves_this_machine_and_nothing_is_refused(context: "BrowserContext", console: Console) -> None:
    asked: list[str] = []
    failed: list[str] = []
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: failed.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: failed.append(str(error)))
    for path in RECORDED.values():
        page.goto(path, wait_until="networkidle")
    page.close()
    assert {url for url in asked if not url.startswith(f"{console.origin}/")} == set()
    assert any(url.endswith("/static/lens.js") for url in asked)
    assert [one for one in failed if "404" not in one] == []  # the screen `error` is one


def test_the_report_of_make_run_is_accessible_and_fits(page: "Page") -> None:
    with gzip.open(LESSON, "rt", encoding="utf-8") as lines:
        recording = read_recording(lines)
    timeline = Timeline(recording.header, recording.entries)
    moments = [Moment(text, frame_at(timeline, TopicPartition("t", 0), t)) for t, text in recording.header.steps]
    delays = [["carrier", *map(str, range(12))], ["AA", *["1.5"] * 12]]
    page.set_content(make_page("336,776 flights", "today", [("records", "all")], "the run", moments, delays))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        check_axe(page)
    for width in (consoles.NARROW, consoles.WIDE):
        page.set_viewport_size({"width": width, "height": 900})
        check_width(page)


# Access


def test_a_token_lets_one_browser_in_and_its_cookie_is_hidden_from_scripts(
    browser: "Browser", console: Console
) -> None:
    address = console.address
    first = enter(browser, console)
    page = first.new_page()
    page.goto(console.origin + LENS)
    assert page.evaluate("document.cookie") == ""
    (cookie,) = first.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    with_token = browser.new_context()
    second = with_token.new_page()
    for again in (address, console.origin + LENS):
        answer = second.goto(again)
        assert answer is not None and answer.status == 401
    assert "Open the address that" in second.inner_text("body")
    assert with_token.cookies() == []
    first.close()
    with_token.close()


def test_only_the_given_host_names_are_answered(browser: "Browser", console: Console) -> None:
    named = browser.new_context()
    page = named.new_page()
    port = console.origin.rpartition(":")[2]
    token = console.address.partition("?")[2]
    answer = page.goto(f"http://console.example:{port}/?{token}")
    assert answer is not None and answer.ok
    answer = page.goto(f"http://evil.example:{port}/")
    assert answer is not None and answer.status == 403
    named.close()


@contextmanager
def another_site() -> Iterator[str]:
    """Serve an empty page on another origin."""

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>another site</title>")

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://evil.example:{server.server_port}/"
        server.shutdown()


def test_another_site_gets_nothing_even_in_a_browser_that_has_the_cookie(page: "Page", console: Console) -> None:
    with another_site() as address:
        page.goto(address)
        refused: list[int] = []
        page.on("response", lambda response: refused.append(response.status))
        page.evaluate("to => fetch(to, {mode: 'no-cors', credentials: 'include'}).catch(() => 0)", console.origin + "/")
        page.evaluate(
            "to => { const i = document.createElement('iframe'); i.src = to; document.body.append(i); }",
            console.origin + "/",
        )
        page.wait_for_function("frames.length === 1")
        page.goto(address)
        page.evaluate("to => { location = to; }", console.origin + LENS)
        page.wait_for_url(console.origin + LENS)
        assert "Open the address that" in page.inner_text("body"), "the cookie is strict"
    assert refused and set(refused) - {200} <= {401, 403}
