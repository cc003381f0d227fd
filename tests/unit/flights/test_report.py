"""The page of `make run` says what happened in this run, also when Spark was too slow to read through the failover."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from examples.flights.moments import Moment, read_moments
from examples.flights.reading import Batch, Reading
from examples.flights.report import StreamTotals, conclusion, facts_as_json, report_rows, succeeded, write_report
from examples.flights.story import Band, Facts
from examples.flights.verify import Verdict
from paceline.console.recording import Header, RecordingWriter
from tests.unit.console.history import history

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
TOTALS = StreamTotals(30, 30, (), 40.0, ((5.1, 7.6), (16.0, 17.0)))
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


@pytest.fixture
def moments(tmp_path: Path) -> list[Moment]:
    """Broker 1 leads partition 0 of topic t, dies at 1.2 s of the recording, and is in sync again at 3 s."""
    path = tmp_path / "run.ndjson"
    with path.open("w", encoding="utf-8") as file:
        writer = RecordingWriter(file.write, Header(title="a run", origin="cluster", began_ms=0))
        for entry in history():
            writer.add(entry)
    facts = Facts(
        bands=[Band(0.1, 0.2, "pause"), Band(0.7, 1.5, "down")],
        killed_broker=1,
        leaderless_ms={0: 400},
        full_isr_after_restart_ms=1_000,
    )
    return read_moments(path, "t", facts, began_t=500)


def test_the_lens_shows_the_partition_before_during_and_after_the_death(moments: list[Moment]) -> None:
    assert [one.heading for one in moments] == [
        "Before broker 1 is killed",
        "While it is dead",
        "When it is in sync again",
    ]
    frames = [one.frame for one in moments]
    assert [(one.t, one.leader, one.isr) for one in frames] == [
        (1_200, 1, (1, 2)),
        (2_000, 2, (2,)),
        (3_000, 2, (1, 2)),
    ]
    assert [one.state for one in frames[1].replicas] == ["dead", "leads"]


def test_a_run_whose_victim_led_no_partition_has_no_lens(tmp_path: Path) -> None:
    assert read_moments(tmp_path / "none", "t", Facts(bands=[Band(0.0, 1.0, "down")]), 0) == []
    page, _ = write_report(tmp_path, report(BEFORE, AFTER), [], VERDICT)
    assert "<svg" not in page.read_text()


def test_the_page_has_the_lens_and_explains_the_stall_with_date_version_and_machine(
    tmp_path: Path, moments: list[Moment]
) -> None:
    page, _ = write_report(tmp_path, report(BEFORE, AFTER), moments, VERDICT)
    text = page.read_text()
    assert "2500 ms without acknowledgement" in text, "the stall of the kill is another"
    assert "replica.lag.time.max.ms (2000 ms)" in text
    assert "Paceline 0.1.0 · 2026-11-28T12:00:00+00:00 · commit abc1234 · 2 x A CPU" in text
    pictures = [ElementTree.fromstring(each).get("aria-label") for each in re.findall(r"<svg.*?</svg>", text, re.S)]
    assert pictures == ["Offsets of t/0"] * 3 + ["ISR over time", "Control requests"]
    assert "<b>While it is dead</b>, 00:00:02.000 UTC. t/0 takes no acks=all writes since" in text
    assert not re.search(r"(src|href)=|url\((?!#)", text), "it loads no other file"
