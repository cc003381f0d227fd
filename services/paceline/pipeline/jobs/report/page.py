"""The page: figures of the events, then of the verification, as HTML with inline style and SVG only."""

from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from paceline.pipeline.jobs.analyse.metrics import PHASES
from paceline.pipeline.jobs.report.plots import bars, line, stacked

MOST_ROWS: Final = 15
"""Bars of one plot: the largest."""
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
        now: when the page is made.
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
            + _spans_table(analysed["failover_ms"]),
        ),
        _section(
            "Changes of in-sync sets",
            bars(
                _largest({name: each["shrinks"] + each["expands"] for name, each in details["churn"].items()}),
                "changes",
            ),
        ),
        _section(
            "Time under-replicated",
            bars(
                _largest({n: each["total_ms"] / 60_000 for n, each in details["under_replicated"].items()}), "minutes"
            ),
        ),
        _section(
            "Leaders per broker",
            bars(
                [(f"broker {b}", n) for b, n in (details["leaders"] or [{"leaders": {}}])[-1]["leaders"].items()],
                "leaders",
            )
            + line(
                [(each["minute_ms"], each["ratio"]) for each in details["leaders"]], "most leaders relative to the mean"
            ),
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


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _largest(values: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(values.items(), key=lambda item: (-item[1], item[0]))[:MOST_ROWS]


def _figures(analysed: Mapping[str, Any]) -> str:
    names = (
        "events", "failovers", "isr_shrinks", "isr_expands", "isr_flaps", "under_replicated_minutes",
        "still_under_replicated", "leader_imbalance", "leader_imbalance_worst", "negative_spans",
    )  # fmt: skip
    rows = "".join(
        f'<tr><td>{escape(name.replace("_", " "))}</td><td class="n">{escape(str(_shown(analysed[name])))}</td></tr>'
        for name in names
    )
    period = f"{_moment(analysed['from_ms'])} to {_moment(analysed['to_ms'])}" if analysed["events"] else "no events"
    return _section("Events", f"<p>{period}</p><table>{rows}</table>")


def _spans_table(failover_ms: Mapping[str, Mapping[str, Mapping[str, int]]]) -> str:
    rows = "".join(
        f'<tr><td>{escape(cause)}</td><td>{escape(phase)}</td><td class="n">{values["p50"]}</td>'
        f'<td class="n">{values["p95"]}</td><td class="n">{values["p99"]}</td></tr>'
        for cause, spans in failover_ms.items()
        for phase, values in spans.items()
    )
    if not rows:
        return ""
    return f"<table><tr><th>cause</th><th>span</th><th>p50 ms</th><th>p95 ms</th><th>p99 ms</th></tr>{rows}</table>"


def _verification(verified: Mapping[str, Any]) -> str:
    count = len(verified["findings"])
    verdict = f'<p class="bad">{count} differences</p>' if count else "<p>Every replica agrees.</p>"
    rows = "".join(
        f"<tr><td>{escape(each['topic'])}-{each['partition']}</td><td>broker {each['broker']}</td>"
        f"<td>{each['start_offset']} to {each['end_offset']}</td><td>{escape(each['difference'])}</td>"
        f"<td>{escape(each['message'])}</td></tr>"
        for each in verified["findings"][:100]
    )
    done = (
        f"<p>{verified['partitions']} partitions, {verified['records']} records, {verified['stored_bytes']} bytes.</p>"
    )
    return verdict + done + (f"<table>{rows}</table>" if rows else "")


def _shown(value: Any) -> Any:
    return "-" if value is None else value


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
