"""A browser without scripts, for tests of a console that runs as a process."""

import json
import urllib.request
from http.cookiejar import CookieJar
from typing import Any
from urllib.parse import urljoin


class ConsoleVisitor:
    """Enters the console by an address that it has printed, and keeps the cookie."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self._opener.addheaders = [("accept", "application/json")]
        self._opener.open(address, timeout=30).close()

    def get(self, path: str = "/") -> dict[str, Any]:
        """Return the JSON twin of a page."""
        with self._opener.open(urljoin(self._address, path), timeout=30) as answer:
            return dict(json.load(answer))

    def partitions(self) -> list[str]:
        """Return the partitions of the overview, as ``topic/partition``."""
        return [f"{row['topic']}/{row['partition']}" for row in self.get()["partitions"]]
