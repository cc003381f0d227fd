"""Write the report of a run as one HTML page that contains the chart and loads no other file."""

from collections.abc import Sequence
from html import escape

DELAYS_TITLE = "Mean departure delay in minutes, 2013, by carrier and month"
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:66em;margin:2em auto;padding:0 1em;color:#222}"
    "h1,h2{font-weight:600}h2{margin-top:1.6em}table{border-collapse:collapse}"
    "td,th{padding:.25em .9em .25em 0;text-align:left;vertical-align:top;border-bottom:1px solid #ddd}"
    ".facts th{font-weight:400;color:#666;white-space:nowrap}"
    ".delays td+td,.delays th+th{text-align:right}svg{max-width:100%;height:auto}"
)


def make_page(title: str, facts: Sequence[tuple[str, str]], chart: str, delays: Sequence[Sequence[str]]) -> str:
    """Return the page.

    Args:
        title: its heading.
        facts: pairs of a name and a sentence.
        chart: an SVG element.
        delays: the header and the rows of the delay table.
    """
    said = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in facts)
    header, *rows = delays
    heads = "".join(f"<th>{escape(name)}</th>" for name in header)
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(title)}</h1>"
        f'<table class="facts">{said}</table>'
        f"<h2>Producer and Spark's stream, second by second</h2>{chart}"
        f"<p>Shaded: broker paused (yellow) and broker down (red). Each line ends at the last sample.</p>"
        f'<h2>{DELAYS_TITLE}</h2><table class="delays"><tr>{heads}</tr>{cells}</table>'
        "<p>Computed by Spark from the table that its stream wrote.</p></body></html>\n"
    )
