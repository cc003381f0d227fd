"""A console as a process, its screens, and what must be true of each of them in a browser."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.browser.tools import AXE, ROOT
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

TOPIC = "rides"
"""A topic with three replicas of the live cluster."""
LIVE = {
    "index": "/",
    "lens": f"/partition/{TOPIC}/0",
    "brokers": "/brokers",
    "topics": "/topics",
    "topic": f"/topics/{TOPIC}",
    "settings": f"/topics/{TOPIC}/settings",
    "readers": f"/topics/{TOPIC}/groups",
    "messages": f"/topics/{TOPIC}/messages",
    "groups": "/groups",
    "reassignments": "/reassignments",
    "events": "/events",
}
"""Screens of a running cluster, by name. A test of each walks this list."""
RECORDED = {"index": "/", "lens": "/partition/t/0?t=4700", "error": "/no"}
"""Screens of the recording `LESSON`."""
LESSON = ROOT / "docs" / "lessons" / "dead-leader.ndjson.gz"
DEADLINE_MS = 30_000
NARROW, WIDE = 360, 3840


@dataclass(frozen=True)
class Console:
    """A running console."""

    address_file: Path

    @property
    def address(self) -> str:
        """The address that lets one more browser in, on loopback."""
        return self.address_file.read_text(encoding="utf-8").strip().replace("console.example", "127.0.0.1")

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}"


@contextmanager
def replaying(folder: Path, *options: str) -> Iterator[Console]:
    """Run a console that plays `LESSON`."""
    path = folder / "address"
    command = [sys.executable, "-m", "paceline.cli", "console", "--replay", str(LESSON), "--port", "0"]
    with subprocess.Popen([*command, "--address-file", str(path), *options], stdout=subprocess.DEVNULL) as process:
        try:
            eventually(path.exists, 60.0, "the console listens")
            yield Console(path)
        finally:
            process.terminate()


def enter(browser: "Browser", console: Console, **options: Any) -> "BrowserContext":
    """Return a new browser with the cookie of the console."""
    context = browser.new_context(**options)
    context.set_default_timeout(DEADLINE_MS)
    page = context.new_page()
    answer = page.goto(console.address)
    assert answer is not None and answer.ok, answer and answer.text()
    page.close()
    return context


def shown(page: "Page", part: str) -> str:
    """Return the text of a panel."""
    return page.locator(f'[data-part="{part}"]').inner_text()


def check_axe(page: "Page") -> None:
    """Check that axe finds no violation; the content security policy keeps it from being loaded as a script."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run().then(result => result.violations)")
    lines = [f"{one['id']}: {node['html']} {node['failureSummary']}" for one in found for node in one["nodes"]]
    assert not lines, "\n".join([page.url, *lines])


DRAWN_S = 10.0


def check_width(page: "Page") -> None:
    """Check that the page does not scroll sideways and that no text of a picture is cut off."""
    for details in page.locator("details").all():
        details.evaluate("element => { element.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0, page.url
    cut_off = """() => [...document.querySelectorAll(".lens text")].filter(text => {
        const box = text.getBoundingClientRect(), panel = text.closest("[data-part], figure").getBoundingClientRect();
        return box.width && (box.right > panel.right + 1 || box.left < panel.left - 1);
    }).map(text => text.textContent)"""
    # The page draws again after a change of its size.
    eventually(lambda: not page.evaluate(cut_off), DRAWN_S, f"{page.url} at {page.viewport_size} cuts off no text")
