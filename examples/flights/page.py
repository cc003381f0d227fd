"""Write the report of a run as one HTML page that contains the chart and loads no other file."""

from collections.abc import Sequence
from html import escape

DELAYS_TITLE = "Mean departure delay in minutes, 2013, by carrier and month"
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:66em;margin:2em auto;padding:0 1em;color:#222}"
    "h1,h2{font-weight:600}h2{margin-top:1.6em}table{border-collapse:collapse}"
    "td,th{padding:.25em .9em .25em 0;text-align:left;vertical-align:top;border-bottom:1px solid #ddd}"
    ".facts th{font-weight:400;color:#666;white-space:nowrap}"
    ".delays td+td,.delays th+th{text-align:right}.about{color:#666}"
    # On a narrow screen chart and delays scroll in their own boxes, so that their text keeps its size.
    ".wide{overflow-x:auto}.wide svg{width:100%;min-width:860px;height:auto}.scroll{display:none;color:#666;margin:0}"
    ".delays tr>:first-child{position:sticky;left:0;background:#fff}.key{display:inline-block;margin-right:1.5em}"
    "@media(max-width:40em){h1{font-size:1.4em}.facts th,.facts td{display:block;border:0;padding:0}"
    ".scroll{display:block}.facts td{padding-bottom:.7em;border-bottom:1px solid #ddd}}"
)
_WIDE = '<p class="scroll">scroll \u2192</p><div class="wide" tabindex="0">'


def make_page(
    title: str,
    about: str,
    facts: Sequence[tuple[str, str]],
    caption: str,
    key: str,
    chart: str,
    delays: Sequence[Sequence[str]],
) -> str:
    """Return the page.

    Args:
        title: its heading.
        about: date, version and machine.
        facts: pairs of a name and a sentence.
        caption: subject and settings of the chart.
        key: HTML that names the lines of the chart.
        chart: an SVG element.
        delays: the header and the rows of the delay table.
    """
    said = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in facts)
    header, *rows = delays
    heads = "".join(f"<th>{escape(name)}</th>" for name in header)
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f'<h1>{escape(title)}</h1><p class="about">{escape(about)}</p>'
        f'<table class="facts">{said}</table>'
        f"<h2>Producer and Spark's stream, second by second</h2><p>{escape(caption)}<br>{key}</p>{_WIDE}{chart}</div>"
        "<p>Shaded: broker paused (yellow) and broker down (red). Each line counts records: the producer's when they "
        "are acknowledged, Spark's when they are in its table. All rows of a micro-batch appear in the table at once, "
        "so Spark's line rises in steps and is level between them.</p>"
        f'<h2>{DELAYS_TITLE}</h2>{_WIDE}<table class="delays"><tr>{heads}</tr>{cells}</table></div>'
        "<p>Computed by Spark from the table that its stream wrote.</p></body></html>\n"
    )
