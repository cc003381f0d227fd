"""The HTML page: metrics of the events, then the verification, with inline style and SVG only."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from paceline.pipeline.jobs.analyse.metrics import PHASES
from paceline.pipeline.jobs.report.plots import bars, line, stacked

MOST_ROWS: Final = 15
"""Maximum number of bars in a plot."""
_FIGURES: Final = {
    "events": "events",
    "failovers": "leader changes",
    "isr_shrinks": "replicas that left an ISR",
    "isr_expands": "replicas that joined an ISR",
    "isr_flaps": "of these, within a minute after leaving",
    "under_replicated_minutes": "under-replicated partition-minutes",
    "still_under_replicated": "partitions under-replicated at the end",
    "leader_imbalance": "most leaders on a broker relative to the mean, at the end",
    "leader_imbalance_worst": "most leaders on a broker relative to the mean, maximum",
    "negative_spans": "negative durations, because clocks differ",
}
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "h1,h2{font-weight:600}h2{margin-top:2em}table{border-collapse:collapse}td,th{padding:.2em 1em .2em 0;"
    "text-align:left;border-bottom:1px solid #ddd}td.n{text-align:right}svg{max-width:100%;height:auto}"
    "svg text{font-size:12px;fill:#333}.none{color:#777}.legend span{margin-right:1.2em}"
    ".legend i{display:inline-block;width:.8em;height:.8em;margin-right:.4em}.bad{color:#a3283c}"
)


def make_page(analysed: Mapping[str, Any], verified: Mapping[str, Any] | None, now: datetime) -> str:
    """Return the page.

    Args:
        analysed: summary of the job ``analyse``.
        verified: summary of the job ``verify``; None leaves that part out.
        now: creation time of the page.
    """
    details = analysed["details"]
    sections = [
        _figures(analysed),
        _section(
            "Failovers by cause, median of each span",
            stacked(
                [
                    (cause, {phase: spans.get(phase, {}).get("p50", 0) for phase in PHASES})
                    for cause, spans in analysed["failover_ms"].items()
                ],
                PHASES,
                "ms",
            )
            + _spans_table(analysed["failover_ms"], details["failovers"]),
            "From the old leader's last heartbeat to the first record committed by its successor.",
        ),
        _section(
            "Changes of in-sync sets",
            bars(
                _largest({name: each["shrinks"] + each["expands"] for name, each in details["churn"].items()}),
                "changes",
            ),
            "Replicas that left or joined, by partition, largest first.",
        ),
        _section(
            "Time under-replicated",
            bars(
                _largest({n: each["total_ms"] / 60_000 for n, each in details["under_replicated"].items()}), "minutes"
            ),
            "Time with fewer in-sync replicas than replicas, by partition, longest first.",
        ),
        _section(
            "Leaders per broker",
            bars(
                [(f"broker {b}", n) for b, n in (details["leaders"] or [{"leaders": {}}])[-1]["leaders"].items()],
                "leaders",
            )
            + line(
                [(each["minute_ms"], each["ratio"]) for each in details["leaders"]],
                "leaders of the fullest broker relative to the mean",
            ),
            "At the end, and minute by minute.",
        ),
    ]
    if verified is not None:
        sections.append(_section("Replicas compared", _verification(verified)))
    made = now.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Paceline report</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>Paceline cluster report</h1><p>Made {made}.</p>{''.join(sections)}</body></html>\n"
    )


def _section(title: str, content: str, meaning: str = "") -> str:
    said = f"<p>{escape(meaning)}</p>" if meaning else ""
    return f"<section><h2>{escape(title)}</h2>{said}{content}</section>"


def _largest(values: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(values.items(), key=lambda item: (-item[1], item[0]))[:MOST_ROWS]


def _figures(analysed: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><td>{escape(label)}</td><td class="n">{escape(str(_shown(analysed[name])))}</td></tr>'
        for name, label in _FIGURES.items()
    )
    period = f"{_moment(analysed['from_ms'])} to {_moment(analysed['to_ms'])}" if analysed["events"] else "no events"
    return _section("Events", f"<p>{period}</p><table>{rows}</table>")


def _spans_table(
    failover_ms: Mapping[str, Mapping[str, Mapping[str, int]]], all_failovers: Sequence[Mapping[str, Any]]
) -> str:
    counts = Counter(each["cause"] for each in all_failovers)
    rows = "".join(
        f'<tr><td>{escape(cause)}</td><td class="n">{counts[cause]}</td><td>{escape(phase)}</td>'
        f'<td class="n">{values["p50"]}</td>'
        f'<td class="n">{values["p95"]}</td><td class="n">{values["p99"]}</td></tr>'
        for cause, spans in failover_ms.items()
        for phase, values in spans.items()
    )
    if not rows:
        return ""
    names = ("cause", "changes", "span", "p50 ms", "p95 ms", "p99 ms")
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>{rows}</table>"


def _verification(verified: Mapping[str, Any]) -> str:
    count = len(verified["findings"])
    verdict = (
        f'<p class="bad">{count} difference{"s" if count > 1 else ""}</p>' if count else "<p>Every replica agrees.</p>"
    )
    rows = "".join(
        f"<tr><td>{escape(each['topic'])}/{each['partition']}</td><td>broker {each['broker']}</td>"
        f"<td>{each['start_offset']} to {each['end_offset']}</td><td>{escape(each['difference'])}</td>"
        f"<td>{escape(each['message'])}</td></tr>"
        for each in verified["findings"][:100]
    )
    done = (
        f"<p>{verified['partitions']} partitions, {verified['records']} records, {verified['stored_bytes']} bytes.</p>"
    )
    head = "".join(f"<th>{name}</th>" for name in ("partition", "replica", "offsets", "difference", "details"))
    return verdict + done + (f"<table><tr>{head}</tr>{rows}</table>" if rows else "")


def _shown(value: Any) -> Any:
    return "-" if value is None else value


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
