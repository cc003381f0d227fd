"""Draw records over time as an SVG, with marks for the events of the cluster, without a plotting library."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle

WIDTH, HEIGHT = 1040, 442
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 132, 56
_PLOT_WIDTH = WIDTH - LEFT - RIGHT
_PLOT_HEIGHT = HEIGHT - TOP - BOTTOM
_LABEL_ROWS = 7
_LABEL_HEIGHT = 16
_CHARACTER_WIDTH = 6.3
_STYLE = """
text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;fill:#1f2933}
.axis{font-size:11px;fill:#52606d}
.event{font-size:11.5px}.halo{stroke:#fff;stroke-width:3px}.grid{stroke:#e4e7eb}.area{fill:#3e7cb1;fill-opacity:.18}.line{fill:none;stroke-width:1.6}
.band-pause{fill:#f0b429;fill-opacity:.16}.band-down{fill:#cf1124;fill-opacity:.10}
"""
_LINES = ("#2a5f8f", "#c05621", "#2f855a")
_COLOURS = {"bad": "#cf1124", "warn": "#b7791f", "good": "#2f855a", "info": "#52606d"}


@dataclass(frozen=True, slots=True)
class Mark:
    """An event of the run, in seconds since the stream began; ``tone`` is bad, warn, good or info."""

    at_s: float
    label: str
    tone: str = "info"


@dataclass(frozen=True, slots=True)
class Band:
    """A span of time to shade: ``kind`` is pause or down."""

    from_s: float
    to_s: float
    kind: str


def make_key(lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return the names of the lines with their colours as HTML.

    A line with fewer than two points has no colour, because it cannot be drawn.
    """
    return " ".join(
        f'<span class="key"><span style="color:{colour}">\u2501\u2501</span> {escape(name)}</span>'
        if len(line) > 1
        else f'<span class="key">{escape(name)}: nothing to draw</span>'
        for (name, line), colour in zip(lines.items(), cycle(_LINES), strict=False)
    )


def progress_chart(
    title: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    marks: Sequence[Mark],
    bands: Sequence[Band] = (),
) -> str:
    """Return an SVG chart; ``lines`` has the points (seconds, number of records) of each line by its name.

    The area below the first line is filled. Labels of neighbouring marks are put on different rows so that they do not
    cover each other. Title and names of the lines (see `make_key`) are not drawn, because the chart may be wider than
    the screen.
    """
    samples = [sample for line in lines.values() for sample in line]
    last = max([at for at, _ in samples] + [mark.at_s for mark in marks] + [1.0])
    peak = _nice_ceiling(max([count for _, count in samples] + [1.0]))

    def x(seconds: float) -> float:
        return LEFT + _PLOT_WIDTH * seconds / last

    def y(count: float) -> float:
        return TOP + _PLOT_HEIGHT * (1 - count / peak)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for band in bands:
        left, right = x(band.from_s), x(min(band.to_s, last))
        parts.append(
            f'<rect class="band-{band.kind}" x="{left:.1f}" y="{TOP}" width="{max(right - left, 0.5):.1f}" '
            f'height="{_PLOT_HEIGHT}"/>'
        )
    for step in range(5):
        count = peak * step / 4
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(count):.1f}" y2="{y(count):.1f}"/>'
            f'<text class="axis" x="{LEFT - 8}" y="{y(count) + 4:.1f}" text-anchor="end">{count:,.0f}</text>'
        )
    tick = _nice_ceiling(last / 10)
    at = 0.0
    while at <= last + 1e-9:
        parts.append(
            f'<text class="axis" x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{at:g} s</text>'
        )
        at += tick
    parts.append(
        f'<text class="axis" x="{LEFT + _PLOT_WIDTH / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">'
        "seconds since the first record · number of records</text>"
    )
    for number, line in enumerate(lines.values()):
        points = " ".join(f"{x(at):.1f},{y(count):.1f}" for at, count in line)
        if number == 0 and line:
            parts.append(f'<polygon class="area" points="{x(line[0][0]):.1f},{y(0):.1f} {points} '
                         f'{x(line[-1][0]):.1f},{y(0):.1f}"/>')  # fmt: skip
        parts.append(f'<polyline class="line" stroke="{_LINES[number % len(_LINES)]}" points="{points}"/>')
    parts.extend(_labels(sorted(marks, key=lambda mark: mark.at_s), x))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _labels(marks: Sequence[Mark], x_of: Callable[[float], float]) -> list[str]:
    ends = [float("-inf")] * _LABEL_ROWS
    lines, texts = [], []
    for mark in marks:
        width = len(mark.label) * _CHARACTER_WIDTH + 10
        at = x_of(mark.at_s)
        fits = at + 4 + width <= WIDTH - RIGHT
        left, anchor = (at + 4, "start") if fits else (at - 4 - width, "end")
        row = next((row for row in range(_LABEL_ROWS) if ends[row] <= left), ends.index(min(ends)))
        ends[row] = left + width
        baseline = TOP - 8 - (_LABEL_ROWS - 1 - row) * _LABEL_HEIGHT
        colour = _COLOURS[mark.tone]
        place = f'x="{at + 4 if fits else at - 4:.1f}" y="{baseline}" text-anchor="{anchor}"'
        lines.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{baseline - 9}" y2="{HEIGHT - BOTTOM}" stroke="{colour}" '
            f'stroke-width="1" stroke-dasharray="3 3"/>'
        )
        texts.append(
            # The white edge is a separate text, because some viewers do not support paint-order.
            f'<text class="event halo" {place}>{escape(mark.label)}</text>'
            f'<text class="event" {place} style="fill:{colour}">{escape(mark.label)}</text>'
        )
    return lines + texts


def _nice_ceiling(value: float) -> float:
    """Return the smallest number that is not below ``value`` and is 1, 2, 2.5, 4 or 5 times a power of ten."""
    scale = 1.0
    while scale * 10 < value:
        scale *= 10
    while scale > value:
        scale /= 10
    for factor in (1, 2, 2.5, 4, 5, 10):
        if scale * factor >= value:
            return scale * factor
    return scale * 10
