"""The report is one page that needs no network and shows names of strangers as text."""

import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from html.parser import HTMLParser

from paceline.pipeline.jobs.analyse.job import analyse
from paceline.pipeline.jobs.report.page import make_page
from paceline.pipeline.jobs.report.plots import bars, line, stacked
from tests.unit.pipeline.jobs.analyse.test_metrics import HISTORY, killed_leader

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
FINDING = {
    "topic": "<script>alert(1)</script>", "partition": 0, "broker": 3, "start_offset": 0, "end_offset": 9,
    "difference": "gap", "message": "a & b",
}  # fmt: skip
VERIFIED = {"findings": [FINDING], "partitions": 1, "records": 9, "stored_bytes": 100}


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_has_its_plots_and_loads_nothing() -> None:
    page = make_page(analyse([*killed_leader(), *HISTORY]), VERIFIED, NOW)
    tags = Tags(page)
    assert tags.tags.count("svg") >= 4 and tags.links == [] and "script" not in tags.tags
    assert "broker failure" in page and "orders/0" in page and "1 difference<" in page
    assert "&lt;script&gt;" in page and "a &amp; b" in page


def test_a_cluster_without_events_has_a_page_too() -> None:
    page = make_page(analyse([]), None, NOW)
    assert "no events" in page and "no data" in page


def test_plots_are_well_formed_and_survive_odd_numbers() -> None:
    for svg in (bars([("a<b", 0), ("c", 1e12)], "x"), line([(0, 1.5)], "y"), bars([("only", 0)], "z")):
        ET.fromstring(svg)
    assert "<circle" in line([(0, 1.5)], "one point would be no line")
    assert stacked([], ["a"], "ms") == line([], "ms")
