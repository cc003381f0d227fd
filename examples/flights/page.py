"""Write the report of a run as one HTML page that contains its pictures and loads no other file."""

from collections.abc import Iterator, Sequence
from html import escape

from examples.flights.moments import Moment
from paceline.console import drawing

DELAYS_TITLE = "Mean departure delay in minutes, 2013, by carrier and month"
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:66em;margin:2em auto;padding:0 1em;color:var(--ink);"
    "background:var(--paper)}h1,h2{font-weight:600}h2{margin-top:1.6em}table{border-collapse:collapse}"
    "td,th{padding:.25em .9em .25em 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}"
    ".facts th{font-weight:400;color:var(--dim);white-space:nowrap}"
    ".delays td+td,.delays th+th{text-align:right}.about{color:var(--dim)}"
    # On a narrow screen the delays scroll in their own box, so that their text keeps its size.
    ".wide{overflow-x:auto}.scroll{display:none;color:var(--dim);margin:0}"
    ".delays tr>:first-child{position:sticky;left:0;background:var(--paper)}"
    f".lens{{display:block;box-sizing:border-box;width:100%;padding:0 16px 0 {drawing.LABELS}px;overflow:visible}}"
    "figure{margin:1.2em 0;overflow-x:clip}figcaption{margin-bottom:.3em}"
    "@media(max-width:40em){h1{font-size:1.4em}.facts th,.facts td{display:block;border:0;padding:0}"
    ".scroll{display:block}.facts td{padding-bottom:.7em;border-bottom:1px solid var(--line)}}"
)
_STYLE += drawing.palette(":root") + drawing.SHARED_STYLE


def make_page(
    title: str,
    about: str,
    facts: Sequence[tuple[str, str]],
    caption: str,
    moments: Sequence[Moment],
    delays: Sequence[Sequence[str]],
) -> str:
    """Return the page.

    Args:
        title: its heading.
        about: date, version and machine.
        facts: pairs of a name and a sentence.
        caption: subject and settings of the run.
        moments: a partition at three times of the run.
        delays: the header and the rows of the delay table.
    """
    said = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in facts)
    header, *rows = delays
    heads = "".join(f"<th>{escape(name)}</th>" for name in header)
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f'<main><h1>{escape(title)}</h1><p class="about">{escape(about)}</p>'
        f'<table class="facts">{said}</table>{"".join(_lens(caption, moments))}'
        f'<h2>{DELAYS_TITLE}</h2><p class="scroll">scroll \u2192</p><div class="wide" tabindex="0">'
        f'<table class="delays"><tr>{heads}</tr>{cells}</table></div>'
        "<p>Computed by Spark from the table that its stream wrote.</p></main></body></html>\n"
    )


def _lens(caption: str, moments: Sequence[Moment]) -> Iterator[str]:
    """Yield the offsets at each moment, and of the middle one what led to it."""
    if not moments:
        return
    frame = moments[len(moments) // 2].frame
    yield f"<h2>{escape(frame.topic)}/{frame.partition} and the death of its leader</h2><p>{escape(caption)}</p>"
    for moment in moments:
        found = " ".join(sentence for _, sentence, _ in moment.frame.findings)
        about = f"<b>{escape(moment.heading)}</b>, {moment.frame.clock} UTC. {escape(found)}"
        yield f"<figure><figcaption>{about}</figcaption>{drawing.offsets_svg(moment.frame)}</figure>"
    yield (
        "<p>Each bar is a log. Solid: committed. Hatched: written, but not committed. Dashed outline: as it was "
        "before the death. \u25cf in the ISR, \u2605 leader, with the leader epoch that the broker has applied; below "
        "each bar the leader epochs of its records.</p>"
    )
    for heading, svg in (
        ("ISR over time. Dark: leads. Light: in the ISR. \u25be a change, \u2715 a fault", drawing.strip_svg(frame)),
        ("The controller's latest requests about the partition, while the broker is dead", drawing.exchange_svg(frame)),
    ):
        yield f"<figure><figcaption>{heading}</figcaption>{svg}</figure>"
