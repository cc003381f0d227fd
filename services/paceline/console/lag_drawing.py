"""The lag of a group over two hours as SVG. Horizontal places are percentages, as in `drawing`."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from paceline.console.drawing import LABELS, nice_step
from paceline.console.pages.view import moment_text

WINDOW_MS: Final = 7_200_000
_HEIGHT, _TOP, _STEPS = 140, 8, 4
_TICK_MS: Final = 1_800_000


def lag_svg(series: Sequence[tuple[int, int]], now_ms: int, every_ms: int) -> str:
    """Draw samples as (Unix time in ms, lag), oldest first; a gap of more than three samples stays open."""
    begin = now_ms - WINDOW_MS
    step = nice_step(max((lag for _, lag in series), default=0) or 1, _STEPS)
    high = step * _STEPS

    def x(ms: int) -> float:
        return min(max(100 * (ms - begin) / WINDOW_MS, 0), 100)

    def y(lag: int) -> float:
        return _TOP + _HEIGHT * (1 - min(lag / high, 1))

    def parts() -> Iterator[str]:
        for lag in range(0, high + 1, step):
            yield _line(0, y(lag), 100, y(lag), "grid")
            yield f'<text x="-{LABELS - 4}" y="{y(lag) + 4:.1f}" class="dim">{lag:,}</text>'
        for ms in range(-(-begin // _TICK_MS) * _TICK_MS, now_ms + 1, _TICK_MS):
            anchor = "end" if x(ms) > 95 else "" if x(ms) < 5 else "mid"
            text = moment_text(ms)[11:16]
            yield f'<text x="{x(ms):.2f}%" y="{_TOP + _HEIGHT + 16}" class="dim {anchor}">{text}</text>'
        before: tuple[int, int] | None = None
        for ms, lag in series:
            if before is not None and ms - before[0] <= 3 * every_ms:
                yield _line(x(before[0]), y(before[1]), x(ms), y(lag), "curve")
            else:  # a sample without a neighbour is a dot
                yield _line(x(ms), y(lag), x(ms) + 0.2, y(lag), "curve")
            before = ms, lag

    label = escape(f"Lag over two hours, now {series[-1][1]:,} records" if series else "No lag has been sampled yet")
    height = _TOP + _HEIGHT + 22
    return f'<svg class="lens" height="{height}" role="img" aria-label="{label}">{"".join(parts())}</svg>'


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    return f'<line x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}" class="{class_}"/>'
