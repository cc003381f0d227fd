"""A Chromium per test file: Playwright keeps an event loop, which must end before the asyncio tests of other files."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser import tools

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTS = "MAP console.example 127.0.0.1, MAP evil.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Start Chromium; two names lead to this machine, and no other name leads anywhere."""
    path = tools.chromium()
    if path is None:
        pytest.skip("this machine has no Chromium (Debian: apt-get install chromium)")
    tools.install()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=[f"--host-resolver-rules={HOSTS}"])
        yield found
        found.close()
