"""The page of `make run` says what happened in this run, also when Spark was too slow to read through the failover."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from examples.flights.chart import Band, Mark, make_key, progress_chart
from examples.flights.reading import Batch, Reading
from examples.flights.report import StreamTotals, conclusion, facts_as_json, report_rows, succeeded, write_report
from examples.flights.story import Facts
from examples.flights.verify import Verdict

SVG = "{http://www.w3.org/2000/svg}"
ABOUT = {
    "seed": 1,
    "version": "0.1.0",
    "date": "2026-11-28T12:00:00+00:00",
    "commit": "abc1234",
    "machine": {"cpus": 2, "cpu": "A CPU", "memory_gib": 7.6, "python": "3.11.2", "grpcio": "1.70.0"},
}
FACTS = Facts(
    bands=[Band(5.0, 8.0, "pause"), Band(16.0, 18.0, "down")],
    lag_time_max_ms=2_000,
    paused_broker=2,
    killed_broker=3,
    killed_at_s=16.0,
    leaderless_ms={0: 150, 1: 150},
    resumed_at={0: 10, 1: 5},
)
TOTALS = StreamTotals(30, 30, (), 40.0, ((0.5, 60.0), (40.0, 0.0)), ((5.1, 7.6), (16.0, 17.0)))
VERDICT = Verdict(30, 30, 0, 0, 0, 0, {})
BEFORE, AFTER = Batch(12.0, 200, 10, {0: 10}), Batch(44.0, 200, 20, {0: 30})


def report(*batches: Batch, totals: StreamTotals = TOTALS, verdict: Verdict = VERDICT) -> dict[str, Any]:
    return facts_as_json(ABOUT, totals, FACTS, Reading(batches), verdict, 60.0)


def test_the_headline_says_that_spark_read_on_only_if_it_was_reading() -> None:
    assert conclusion(report(BEFORE, AFTER)).endswith("read on from the new leaders")
    late = report(replace(AFTER, rows=30))
    assert succeeded(late)
    assert "Spark read no record before the leader was killed" in conclusion(late)
    unread = report(BEFORE, replace(BEFORE, at_s=44.0, rows=20))
    assert "No record was left for the new leaders" in conclusion(unread)


def test_a_partition_without_a_later_record_is_named() -> None:
    rows = dict(report_rows(report(BEFORE, AFTER)))
    assert rows["without a leader"].startswith("partition 0: 150 ms, partition 1: 150 ms after")
    again = rows["in Spark's table again"]
    assert again.startswith("partition 0: 28000 ms after") and again.endswith("; partition 1: no later record")


@pytest.mark.parametrize(
    "faults",
    [
        {"totals": replace(TOTALS, records_acked=29)},
        {"totals": replace(TOTALS, failures=("DeliveryFailedError: late",))},
        {"verdict": replace(VERDICT, records_read=29)},
        {"verdict": replace(VERDICT, lost=1)},
        {"verdict": replace(VERDICT, keys_on_two_partitions=1)},
    ],
)
def test_a_run_with_a_fault_has_failed(faults: dict[str, Any]) -> None:
    assert conclusion(report(BEFORE, AFTER, **faults)).startswith("Failed")


def test_the_page_explains_the_stall_and_has_date_version_and_machine(tmp_path: Path) -> None:
    facts = report(BEFORE, AFTER)
    page, _ = write_report(tmp_path, facts, TOTALS, FACTS, Reading([BEFORE, AFTER]), VERDICT)
    text = page.read_text()
    chart = text[text.index("<svg") : text.index("</svg>") + 6]
    assert "2500 ms without acknowledgement" in text, "the stall of the kill is another"
    assert "replica.lag.time.max.ms (2000 ms)" in text
    assert "Paceline 0.1.0 · 2026-11-28T12:00:00+00:00 · commit abc1234 · 2 x A CPU" in text
    assert "last record in Spark's table" in texts(chart)
    axis = [float(each.split(" ")[0]) for each in texts(chart) if each.endswith(" s")]
    assert max(axis) >= 40.0, "the axis includes Spark's last micro-batch"


def test_sparks_line_is_zero_until_a_micro_batch_is_in_the_table() -> None:
    late = Reading([Batch(62.0, 55_000, 85_000, {0: 85_000}), Batch(76.0, 14_000, 15_000, {0: 100_000})])
    assert late.samples() == ((0.0, 0), (62.0, 0), (62.0, 85_000), (76.0, 85_000), (76.0, 100_000))


def test_a_label_that_does_not_fit_on_the_right_of_its_line_ends_at_the_line() -> None:
    chart = progress_chart("flights", {"acked": [(0.0, 0), (40.0, 9)]}, [Mark(40.0, "last record in Spark's table")])
    label = next(each for each in ElementTree.fromstring(chart).iter(f"{SVG}text") if each.get("class") == "event")
    line = next(each for each in ElementTree.fromstring(chart).iter(f"{SVG}line") if each.get("stroke-dasharray"))
    assert label.get("text-anchor") == "end"
    assert float(label.get("x", "")) == float(line.get("x1", "")) - 4


def test_a_line_that_cannot_be_drawn_has_no_colour_in_the_key() -> None:
    key = ElementTree.fromstring(f"<p>{make_key({'acked': [(0.5, 1.0), (1.0, 2.0)], 'read': Reading().samples()})}</p>")
    assert ["".join(each.itertext()) for each in key] == ["\u2501\u2501 acked", "read: nothing to draw"]
    assert len(key.findall("span/span")) == 1


def texts(chart: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(chart).iter(f"{SVG}text")]
