"""The end of `make run`: a short report on the terminal, the same facts as JSON, and the chart."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from examples.flights.chart import throughput_chart
from examples.flights.story import Facts
from examples.flights.verify import Verdict

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


@dataclass(frozen=True, slots=True)
class StreamTotals:
    """What the producer saw."""

    records_sent: int
    records_acked: int
    failures: tuple[str, ...]
    stream_s: float
    samples: tuple[tuple[float, float], ...]
    """(seconds since the first record, records acknowledged per second)"""

    @property
    def records_per_second(self) -> float:
        """Mean rate over the stream."""
        return self.records_acked / self.stream_s if self.stream_s else 0.0


def facts_as_json(seed: int, totals: StreamTotals, facts: Facts, verdict: Verdict, elapsed_s: float) -> dict[str, Any]:
    """Return the report as a JSON object; the keys are stable."""
    shrinks = facts.isr_shrink_after_ms.values()
    return {
        "seed": seed,
        "records_sent": totals.records_sent,
        "records_acked": totals.records_acked,
        "records_read": verdict.records_read,
        "lost": verdict.lost,
        "duplicated": verdict.duplicated,
        "out_of_order": verdict.out_of_order,
        "failures": list(totals.failures[:10]),
        "leaderless_ms": {str(partition): ms for partition, ms in sorted(facts.leaderless_ms.items())},
        "leaderless_ms_max": max(facts.leaderless_ms.values(), default=0),
        "isr_shrink_after_ms": max(shrinks, default=0),
        "isr_shrink_after_ms_min": min(shrinks, default=0),
        "isr_shrink_after_ms_by_partition": {
            str(partition): ms for partition, ms in sorted(facts.isr_shrink_after_ms.items())
        },
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


def write_report(directory: Path, report: dict[str, Any], totals: StreamTotals, facts: Facts) -> tuple[Path, Path]:
    """Write ``report.json`` and ``throughput.svg`` and return their paths."""
    report_path, chart_path = directory / "report.json", directory / "throughput.svg"
    report_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    chart_path.write_text(
        throughput_chart(
            f"{totals.records_acked:,} flights through a cluster that loses a leader",
            f"3 replicas · min.insync.replicas 2 · acks=all · seed {report['seed']}",
            totals.samples,
            facts.marks,
            facts.bands,
        ),
        encoding="utf-8",
    )
    return report_path, chart_path


def print_report(console: Console, report: dict[str, Any], verdict: Verdict) -> None:
    """Print the delay table and the facts."""
    console.print(_delay_table(verdict))
    table = Table(title="What happened", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("records", f"{report['records_sent']:,} sent · {report['records_acked']:,} acked · "
                             f"{report['records_read']:,} read")  # fmt: skip
    bad = report["lost"] or report["duplicated"] or report["out_of_order"]
    colour = "red" if bad else "green"
    table.add_row("checked", f"[{colour}]{report['lost']} lost · {report['duplicated']} duplicated · "
                             f"{report['out_of_order']} out of order[/]")  # fmt: skip
    table.add_row(
        "ISR shrank",
        f"{report['isr_shrink_after_ms_min']}-{report['isr_shrink_after_ms']} ms after the last catch-up of paused "
        f"broker {report['paused_broker']}, full again {report['isr_grown_after_resume_ms']} ms after it went on",
    )
    leaderless = ", ".join(f"{partition}: {ms} ms" for partition, ms in report["leaderless_ms"].items())
    table.add_row("without a leader", f"{leaderless} after broker {report['killed_broker']} was killed")
    table.add_row("back in every ISR", f"{report['full_isr_after_restart_ms']} ms after its restart")
    table.add_row("throughput", f"{report['records_per_second']:,} records/s over {report['stream_s']:.1f} s (paced)")
    console.print(table)


def _delay_table(verdict: Verdict) -> Table:
    title = "Mean departure delay in minutes, 2013, by carrier and month"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("carrier")
    for month in _MONTHS:
        table.add_column(month, justify="right")
    for carrier, months in sorted(verdict.delays.items()):
        table.add_row(carrier, *(f"{months[m]:.1f}" if m in months else "" for m in range(1, 13)))
    return table
