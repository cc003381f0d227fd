"""Draw bars and lines as inline SVG. Every text is escaped; a plot without data shows "no data"."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

WIDTH: Final = 720
ROW: Final = 26
LABEL: Final = 220
MOST_DOTS: Final = 60
COLORS: Final = ("#3b6ea5", "#d98032", "#5b9a5b", "#a34a5b", "#7a6aa8", "#8a8a4a")


def bars(rows: Sequence[tuple[str, float]], unit: str) -> str:
    """Return horizontal bars, one per row."""
    return stacked([(label, {unit: value}) for label, value in rows], [unit], unit)


def stacked(rows: Sequence[tuple[str, Mapping[str, float]]], parts: Sequence[str], unit: str) -> str:
    """Return horizontal bars made of parts, in the order of ``parts``, with a legend when there are several."""
    if not rows:
        return '<p class="none">no data</p>'
    largest = max(sum(max(values.get(part, 0), 0) for part in parts) for _, values in rows) or 1
    scale = (WIDTH - LABEL - 130) / largest
    drawn = []
    for number, (label, values) in enumerate(rows):
        top, left = number * ROW, float(LABEL)
        drawn.append(f'<text x="{LABEL - 8}" y="{top + 17}" text-anchor="end">{escape(label[:32])}</text>')
        for color, part in zip(COLORS, parts, strict=False):
            value = max(values.get(part, 0), 0)
            title = f"{label}, {part}: {_number(value)} {unit}"
            drawn.append(
                f'<rect x="{left:.1f}" y="{top + 4}" width="{value * scale:.1f}" height="{ROW - 8}" fill="{color}">'
                f"<title>{escape(title)}</title></rect>"
            )
            left += value * scale
        total = sum(max(values.get(part, 0), 0) for part in parts)
        drawn.append(f'<text x="{left + 6:.1f}" y="{top + 17}">{escape(_number(total))} {escape(unit)}</text>')
    legend = _legend(parts) if len(parts) > 1 else ""
    return _svg(len(rows) * ROW, "".join(drawn)) + legend


def line(points: Sequence[tuple[float, float]], unit: str) -> str:
    """Return a line through (x, y) points; x is in milliseconds since the epoch."""
    if not points:
        return '<p class="none">no data</p>'
    height = 160
    first, last = points[0][0], points[-1][0]
    largest = max(y for _, y in points) or 1
    wide = max(last - first, 1)
    spots = " ".join(
        f"{50 + (x - first) / wide * (WIDTH - 70):.1f},{height - 20 - y / largest * (height - 40):.1f}"
        for x, y in points
    )
    # Mark the points, because a line through one or a few points does not show them.
    dots = "".join(
        f'<circle cx="{spot.split(",")[0]}" cy="{spot.split(",")[1]}" r="3" fill="{COLORS[0]}"/>'
        for spot in (spots.split() if len(points) <= MOST_DOTS else ())
    )
    drawn = (
        f'<line x1="50" y1="{height - 20}" x2="{WIDTH - 20}" y2="{height - 20}" stroke="#bbb"/>'
        f'<polyline points="{spots}" fill="none" stroke="{COLORS[0]}" stroke-width="2"/>{dots}'
        f'<text x="46" y="26" text-anchor="end">{_number(largest)}</text>'
        f'<text x="46" y="{height - 16}" text-anchor="end">0</text>'
        f'<text x="50" y="{height - 4}">{_minute(first)}</text>'
        f'<text x="{WIDTH / 2}" y="{height - 4}" text-anchor="middle">{escape(unit)}</text>'
        f'<text x="{WIDTH - 20}" y="{height - 4}" text-anchor="end">{_minute(last) if last > first else ""}</text>'
    )
    return _svg(height, drawn)


def _minute(time_ms: float) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%m-%d %H:%M")


def _svg(height: int, content: str) -> str:
    return f'<svg role="img" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">{content}</svg>'


def _legend(parts: Sequence[str]) -> str:
    marks = "".join(
        f'<span><i style="background:{color}"></i>{escape(part)}</span>'
        for color, part in zip(COLORS, parts, strict=False)
    )
    return f'<p class="legend">{marks}</p>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
