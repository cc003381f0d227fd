"""Report of `make run`: a summary on the terminal, and the same facts as a page with pictures and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.stamp import headline
from examples.flights.moments import Moment
from examples.flights.page import DELAYS_TITLE, make_page
from examples.flights.reading import Reading
from examples.flights.story import Facts
from examples.flights.verify import Verdict

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


@dataclass(frozen=True, slots=True)
class StreamTotals:
    """Totals of the producer."""

    records_sent: int
    records_acked: int
    failures: tuple[str, ...]
    stream_s: float
    stalls: tuple[tuple[float, float], ...] = ()
    """Times without an acknowledgement, from and to, in seconds since the first record."""

    @property
    def records_per_second(self) -> float:
        """Mean rate over the stream."""
        return self.records_acked / self.stream_s if self.stream_s else 0.0


def facts_as_json(
    about: dict[str, Any], totals: StreamTotals, facts: Facts, reading: Reading, verdict: Verdict, elapsed_s: float
) -> dict[str, Any]:
    """Return the report as a JSON object; the keys are stable. ``about`` is the origin of the run."""
    shrinks = facts.isr_shrink_after_ms.values()
    read_again = reading.read_again_ms(facts.killed_at_s, facts.resumed_at)
    pauses = [band for band in facts.bands if band.kind == "pause"]
    stalls = [to - since for since, to in totals.stalls for band in pauses if since < band.to_s and to > band.from_s]
    return {
        **about,
        "records_sent": totals.records_sent,
        "records_acked": totals.records_acked,
        "records_read": verdict.records_read,
        "lost": verdict.lost,
        "duplicated": verdict.duplicated,
        "out_of_order": verdict.out_of_order,
        "keys_on_two_partitions": verdict.keys_on_two_partitions,
        "failures": list(totals.failures[:10]),
        "leaderless_ms": {str(partition): ms for partition, ms in sorted(facts.leaderless_ms.items())},
        "leaderless_ms_max": max(facts.leaderless_ms.values(), default=0),
        "micro_batches": len(reading.batches),
        "micro_batch_ms_median": reading.median_ms,
        "read_during_stream": sum(batch.rows for batch in reading.batches if batch.at_s <= totals.stream_s),
        "read_before_kill": sum(batch.rows for batch in reading.batches if batch.at_s <= facts.killed_at_s),
        "read_again_after_kill_ms": {str(partition): ms for partition, ms in read_again.items()},
        "read_again_after_kill_ms_max": max(read_again.values(), default=0),
        "longest_pause_of_table_ms": reading.longest_pause_ms,
        "isr_shrink_after_ms": max(shrinks, default=0),
        "isr_shrink_after_ms_min": min(shrinks, default=0),
        "isr_shrink_after_ms_by_partition": {
            str(partition): ms for partition, ms in sorted(facts.isr_shrink_after_ms.items())
        },
        "lag_time_max_ms": facts.lag_time_max_ms,
        "no_ack_during_pause_ms": round(1000 * max(stalls, default=0.0)),
        "isr_grown_after_resume_ms": facts.isr_grown_after_resume_ms,
        "full_isr_after_restart_ms": facts.full_isr_after_restart_ms,
        "paused_broker": facts.paused_broker,
        "killed_broker": facts.killed_broker,
        "killed_leaders": facts.killed_leaders,
        "stream_s": round(totals.stream_s, 3),
        "records_per_second": round(totals.records_per_second),
        "events": [
            {"at_s": round(mark.at_s, 3), "event": mark.label} for mark in sorted(facts.marks, key=lambda m: m.at_s)
        ],
        "elapsed_s": round(elapsed_s, 1),
    }


def write_report(directory: Path, report: dict[str, Any], moments: Sequence[Moment], verdict: Verdict) -> list[Path]:
    """Write ``report.html`` and ``report.json`` and return their paths."""
    page, facts_file = directory / "report.html", directory / "report.json"
    victims = f"broker {report['paused_broker']} paused, broker {report['killed_broker']} killed"
    subject = f"{report['records_acked']:,} flights; {victims}"
    caption = f"{subject} · 3 replicas · min.insync.replicas 2 · acks=all · seed {report['seed']}"
    facts_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    about = f"Paceline {report['version']}  {headline(report)}".replace("  ", " · ")
    rows, delays = report_rows(report), delay_rows(verdict)
    text = make_page(conclusion(report), about, rows, caption, moments, delays)
    page.write_text(text, encoding="utf-8")
    return [page, facts_file]


def succeeded(report: dict[str, Any]) -> bool:
    """Whether every record was acknowledged and is in the table once and in order."""
    faults = ("lost", "duplicated", "out_of_order", "keys_on_two_partitions", "failures")
    sent, acked = report["records_sent"], report["records_acked"]
    return sent == acked == report["records_read"] and not any(report[fault] for fault in faults)


def conclusion(report: dict[str, Any]) -> str:
    """Return the result of the run as a sentence, the headline of the page."""
    if not succeeded(report):
        return "Failed: records were lost, duplicated, reordered or not acknowledged"
    sentence = f"{report['records_read']:,} flights, none lost, none duplicated"
    if not report["read_before_kill"]:
        return f"{sentence}. Spark read no record before the leader was killed, so it read through no failover"
    if not report["read_again_after_kill_ms"]:
        return f"{sentence}. No record was left for the new leaders, so Spark's stream read none of theirs"
    return f"{sentence}. Spark's stream was reading when the leader was killed, and read on from the new leaders"


def print_report(console: Console, report: dict[str, Any], verdict: Verdict) -> None:
    """Print the delay table and the facts."""
    header, *rows = delay_rows(verdict)
    delays = Table(title=DELAYS_TITLE, title_justify="left", box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in header:
        delays.add_column(name, justify="left" if name == header[0] else "right")
    for row in rows:
        delays.add_row(*row)
    console.print(delays)
    table = Table(title="What happened", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    for name, text in report_rows(report):
        table.add_row(name, Text(text, style=("green" if succeeded(report) else "red") if name == "checked" else ""))
    console.print(table)


def report_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts as pairs of a name and a sentence."""
    killed, paused = report["killed_broker"], report["paused_broker"]
    return [
        ("records", f"{report['records_sent']:,} sent · {report['records_acked']:,} acked · "
                    f"{report['records_read']:,} read by Spark's stream"),
        ("checked", f"{report['lost']} lost · {report['duplicated']} duplicated · "
                    f"{report['out_of_order']} out of order"),
        ("paused follower", f"{report['no_ack_during_pause_ms']} ms without acknowledgement: acks=all waits for every "
                            f"in-sync replica, and paused broker {paused} is one until it has not caught up for "
                            f"replica.lag.time.max.ms ({report['lag_time_max_ms']} ms). Records of the partitions that "
                            "it leads wait until it is resumed"),
        ("ISR shrank", f"{report['isr_shrink_after_ms_min']} to {report['isr_shrink_after_ms']} ms after paused broker "
                       f"{paused} had last caught up; full again {report['isr_grown_after_resume_ms']} ms after it was "
                       "resumed"),
        ("without a leader", f"{_by_partition(report['leaderless_ms'])} after broker {killed} was killed"),
        ("in Spark's table again", _read_again(report)),
        ("back in every ISR", f"{report['full_isr_after_restart_ms']} ms after the restart of broker {killed}"),
        ("Spark's stream", f"{report['micro_batches']} micro-batches, median {report['micro_batch_ms_median']} ms; "
                           f"longest time without a new row {report['longest_pause_of_table_ms']} ms; "
                           f"{report['read_during_stream']:,} records were in the table when the last was acked"),
        ("throughput", f"{report['records_per_second']:,} records/s over {report['stream_s']:.1f} s (paced)"),
    ]  # fmt: skip


def _by_partition(times_ms: dict[str, int]) -> str:
    return ", ".join(f"partition {partition}: {ms} ms" for partition, ms in times_ms.items()) or "not measured"


def _read_again(report: dict[str, Any]) -> str:
    times_ms = report["read_again_after_kill_ms"]
    read = [f"{_by_partition(times_ms)} after the same kill, with records of the new leader"] if times_ms else []
    unread = [f"partition {each}: no later record" for each in report["leaderless_ms"] if each not in times_ms]
    return "; ".join([*read, *unread])


def delay_rows(verdict: Verdict) -> list[list[str]]:
    """Return the header and the rows of the delay table."""
    rows = [["carrier", *_MONTHS]]
    for carrier, months in sorted(verdict.delays.items()):
        rows.append([carrier, *(f"{months[m]:.1f}" if m in months else "" for m in range(1, 13))])
    return rows
