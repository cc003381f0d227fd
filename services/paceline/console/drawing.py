"""The lens as SVG: pure functions from a frame to the text of a picture.

The server draws, so that pages, pictures in documents and reports come from the same code, and tests read the result
without a browser. Horizontal places are percentages: a picture fits any width, and its text keeps its size.
"""

from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Any, Final

from paceline.console.lens import Frame, ReplicaFrame, clock_text

Link = Callable[[int], str]
"""Returns the address of another time."""

LABELS: Final = 84
"""Width left of the plot for the labels, which have negative places; the style sheet pads the picture by as much."""
_MARGIN = 16
_LEAST_SPAN = 40
_ROW, _BAR = 46, 16
_STRIP_ROW, _STRIP_BAR = 24, 12
_EXCHANGE_ROW = 38
_TOP, _BOTTOM = 22, 40
_LIGHT: Final = """--ink:#1b2733;--dim:#5c6b7a;--line:#c6ced6;--solid:#2f6db0;
--soft:#cfe0f2;--warn:#b3261e;--good:#2a7d46;--band:#e9eef3;--paper:#fff"""
_DARK: Final = """--ink:#e6edf3;--dim:#9aa7b4;--line:#3a4652;--solid:#5b9be0;--soft:#24405f;--warn:#ff8a80;
--good:#6fcf8e;--band:#222c36;--paper:#11171d"""
SHARED_STYLE: Final = """
.lens text{fill:var(--ink);font-size:12px}.lens .dim{fill:var(--dim);font-size:11px}.lens .bad{fill:var(--warn)}
.lens .fine{fill:var(--good)}.lens .mid{text-anchor:middle}.lens .end{text-anchor:end}.lens .strong{font-weight:600}
.lens .over{paint-order:stroke;stroke:var(--paper);stroke-width:4px}
.lens .grid{stroke:var(--line)}.lens .track{fill:var(--band)}.lens .solid{fill:var(--solid)}
.lens .soft{fill:var(--soft);stroke:var(--solid)}.lens .hatched{fill:url(#hatch);stroke:var(--solid)}
.lens .lone{fill:url(#cross);stroke:var(--warn)}.lens .ghost{fill:none;stroke:var(--dim);stroke-dasharray:4 3}
.lens .cut{fill:none;stroke:var(--warn);stroke-dasharray:2 2}.lens .hw{stroke:var(--ink);stroke-width:2}
.lens .acked{stroke:var(--good);stroke-width:2;stroke-dasharray:6 3}
.lens .now{stroke:var(--warn);stroke-width:1.5}
.lens .epoch{fill:var(--band);stroke:var(--line)}.lens .arrow{stroke:var(--solid);stroke-width:1.5}
.lens .refused{stroke:var(--warn);stroke-width:1.5;stroke-dasharray:5 3}
.lens pattern path{stroke:var(--solid);stroke-width:2}
.lens pattern .red{stroke:var(--warn)}.lens marker path{fill:var(--solid)}
"""
_DEFS: Final = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path d="M0 0V6"/></pattern><pattern id="cross" width="7" height="7" patternUnits="userSpaceOnUse">'
    '<path class="red" d="M0 0L7 7M7 0L0 7"/></pattern><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" '
    'markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z"/></marker></defs>'
)


def picture(svg: str, width: int = 960) -> str:
    """Return a drawing as a file of its own: with its style, for documents and reports."""
    style = (
        f"<style>svg{{font:12px system-ui,sans-serif}}{palette('svg')}{SHARED_STYLE}.paper{{fill:var(--paper)}}</style>"
    )
    head, _, rest = svg.partition(">")
    head = head.replace("<svg", f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}"', 1)
    inner = (
        f'<svg x="{LABELS}" width="{width - LABELS - _MARGIN}" overflow="visible">{rest.removesuffix("</svg>")}</svg>'
    )
    return f'{head}>{style}<rect class="paper" width="100%" height="100%"/>{inner}</svg>\n'


def palette(selector: str) -> str:
    """Return the style of an element that gives the pictures inside it their colours, light or dark."""
    dark = f"@media(prefers-color-scheme:dark){{{selector}{{{_DARK}}}}}"
    return f"{selector}{{color-scheme:light dark;{_LIGHT}}}\n{dark}\n"


def _tag(name: str, text: str = "", **attributes: Any) -> str:
    """Return an element; ``class_`` becomes class, ``x_`` in a name a hyphen."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    return f"<{name}{given}>{text}</{name}>"


def _text(x: float | str, y: float, text: object, class_: str = "", title: str = "") -> str:
    inside = escape(str(text)) + (_tag("title", escape(title)) if title else "")
    return _tag("text", inside, x=_place(x), y=y, class_=class_)


def _place(x: float | str) -> str:
    return x if isinstance(x, str) else f"{x:.2f}%"


def _line(x1: float, y1: float, x2: float, y2: float, class_: str, **more: Any) -> str:
    return _tag("line", x1=_place(x1), y1=y1, x2=_place(x2), y2=y2, class_=class_, **more)


def _rect(x: float, y: float, width: float, height: float, class_: str, title: str = "") -> str:
    inside = _tag("title", escape(title)) if title else ""
    return _tag("rect", inside, x=_place(x), y=y, width=_place(max(width, 0.15)), height=height, class_=class_)


def _svg(height: float, label: str, labels: Iterable[str], plot: Iterable[str], role: str = "img") -> str:
    return _tag(
        "svg",
        _DEFS + "".join(plot) + "".join(labels),
        class_="lens",
        height=height,
        role=role,
        aria_label=label,
    )


def _anchor(x: float, margin: float = 5) -> str:
    """Return the class that keeps a label at place ``x`` inside the picture; long labels need a wide margin."""
    return "end" if x > 100 - margin else "" if x < margin else "mid"


def nice_step(span: float, count: int) -> int:
    """Return the smallest of 1, 2, 5, 10, ... that divides ``span`` into at most ``count`` steps."""
    step, factors = 1, (2, 2.5, 2)
    index = 0
    while span / step > count:
        step = int(step * factors[index % 3])
        index += 1
    return step


# Offsets --------------------------------------------------------------------------------------------------------------


def domain(frame: Frame) -> tuple[int, int]:
    """Return the offsets at both ends of the axis: the ends of all replicas, with some records before them."""
    points = [frame.high_watermark, frame.acknowledged]
    for one in frame.replicas:
        points += [one.high_watermark, one.log_end_offset, one.truncated_from]
    known = [point for point in points if point is not None] or [0]
    low, high = min(known), max(known)
    span = max(high - low, _LEAST_SPAN, high // 50)  # a growing log must not make the axis run
    step = nice_step(span, 5)
    begin = max(min(low - span // 4, high - span), 0) // step * step
    # The last eighth is room for the numbers behind the bars.
    return begin, max(-(-(high + (high - begin) // 7 + 1) // step) * step, begin + 4 * step)


def offsets_svg(frame: Frame) -> str:
    """Draw one bar for each replica on one offset axis, with the high watermark and the last acknowledged offset."""
    low, high = domain(frame)
    bottom = _TOP + _ROW * max(len(frame.replicas), 1)

    def x(offset: float) -> float:
        return min(max(100 * (offset - low) / (high - low), 0), 100)

    def plot() -> Iterator[str]:
        step = nice_step(high - low, 8)
        for offset in range(low, high + 1, step):
            yield _line(x(offset), _TOP, x(offset), bottom, "grid")
            if (offset - low) // step % 2 == 0:
                yield _text(x(offset), bottom + 14, f"{offset:,}", f"dim {_anchor(x(offset))}")
        for index, replica in enumerate(frame.replicas):
            yield from _bar(replica, _TOP + index * _ROW, x, low)
        if frame.high_watermark is not None:
            at = x(frame.high_watermark)
            yield _line(at, _TOP - 6, at, bottom, "hw")
            yield _text(at, _TOP - 10, f"high watermark {frame.high_watermark:,}", f"strong {_anchor(at, 30)}")
        if frame.acknowledged is not None:
            at = x(frame.acknowledged)
            yield _line(at, _TOP, at, bottom + 18, "acked")
            yield _text(at, bottom + 30, f"acknowledged {frame.acknowledged:,}", f"fine strong {_anchor(at, 30)}")

    def labels() -> Iterator[str]:
        for index, one in enumerate(frame.replicas):
            y = _TOP + index * _ROW
            yield _text(f"{-LABELS}", y + 15, f"{'●' if one.in_isr else '○'} broker {one.broker_id}", "strong")
            bad = " bad" if one.state in ("dead", "does not answer", "paused") else ""
            epoch = "" if one.applied_leader_epoch is None else f" e{one.applied_leader_epoch}"
            state = one.state.replace("does not", "no")  # the label has to end before the bar
            yield _text(f"{-LABELS}", y + 31, f"{'★ ' if one.state == 'leads' else ''}{state}{epoch}", f"dim{bad}")

    return _svg(bottom + _BOTTOM, f"Offsets of {frame.topic}/{frame.partition}", labels(), plot())


def _bar(replica: ReplicaFrame, y: float, x: Callable[[float], float], low: int) -> Iterator[str]:
    start, end = replica.log_start_offset, replica.log_end_offset
    if start is None or end is None:
        yield _text(0, y + 16, "its log is not known", "dim")
        return
    committed = min(max(replica.high_watermark or start, start), end)
    is_old = replica.state in ("dead", "does not answer")
    title = f"broker {replica.broker_id}: {start:,} to {end:,}, high watermark {committed:,}"
    yield _rect(x(start), y + 4, x(committed) - x(start), _BAR, "ghost" if is_old else "solid", title)
    if end > committed:
        kind = "ghost" if is_old else "hatched"
        yield _rect(x(committed), y + 4, x(end) - x(committed), _BAR, kind, f"not committed: {committed:,} to {end:,}")
    if replica.truncated_from is not None and replica.truncated_from > end:
        title = f"truncated from {replica.truncated_from:,}"
        yield _rect(x(end), y + 4, x(replica.truncated_from) - x(end), _BAR, "cut", title)
        at = (x(end) + x(replica.truncated_from)) / 2
        yield _text(at, y + 17, f"✂ {replica.truncated_from - end:,}", "bad mid")
    for epoch, first, last in replica.epochs:
        if last > low:
            yield _rect(
                x(first), y + 23, x(last) - x(first), 12, "epoch", f"leader epoch {epoch}: {first:,} to {last:,}"
            )
            if x(last) - x(first) > 4:
                yield _text((x(first) + x(last)) / 2, y + 33, f"e{epoch}", "dim mid")
    if start < low:
        yield _text("-9", y + 17, "‹", "strong")
    after = x(replica.truncated_from) if replica.truncated_from else x(end)
    yield _text(after + 0.6 if after < 88 else x(end) - 0.6, y + 16, f"{end:,}", "dim" if after < 88 else "dim end")


# Time -----------------------------------------------------------------------------------------------------------------


def _times(frame: Frame, height: float) -> tuple[Callable[[int], float], list[str]]:
    """Return the place of a time, and axis, gaps and the present."""
    begin, end = frame.window

    def x(t: int) -> float:
        return min(max(100 * (t - begin) / max(end - begin, 1), 0), 100)

    parts = []
    step = nice_step((end - begin) / 1000, 6) * 1000
    for t in range(-(-begin // step) * step, end + 1, step):
        parts.append(_line(x(t), 0, x(t), height, "grid"))
        parts.append(_text(x(t), height + 13, clock_text(frame.began_ms, t)[3:8], f"dim {_anchor(x(t))}"))
    for since, until, why in frame.gaps:
        if until > begin and since < end:
            parts.append(_rect(x(since), 0, x(until) - x(since), height, "lone", f"not recorded: {why}"))
    parts.append(_line(x(frame.t), 0, x(frame.t), height + 2, "now"))
    return x, parts


def _linked(link: Link | None, t: int, inside: str, label: str) -> str:
    return inside if link is None else _tag("a", inside, href=link(t), aria_label=label)


def strip_svg(frame: Frame, link: Link | None = None) -> str:
    """Draw ISR and leader over time, with their changes, the truncations and the faults."""
    brokers = sorted({one.broker_id for one in frame.replicas} | {one for span in frame.spans for one in span.isr})
    height = _STRIP_ROW * (len(brokers) + 2)
    x, axis = _times(frame, height)
    begin, end = frame.window
    ends = [one.begin for one in frame.spans[1:]] + [frame.end]

    def plot() -> Iterator[str]:
        yield from axis
        labelled = -100.0
        for span, until in zip(frame.spans, ends, strict=True):
            if until < begin or span.begin > end:
                continue
            left, width = x(span.begin), x(until) - x(span.begin)
            for row, broker in enumerate(brokers):
                y = _STRIP_ROW * (row + 1)
                if broker == span.leader:
                    yield _rect(left, y + 3, width, _STRIP_BAR + 6, "solid", f"broker {broker} leads")
                elif broker in span.isr:
                    yield _rect(left, y + 6, width, _STRIP_BAR, "soft", f"broker {broker} is in the ISR")
            who = "none" if span.leader is None else span.leader
            about = (
                f"{clock_text(frame.began_ms, span.begin)} epoch {span.leader_epoch} leader {who} ISR {_ids(span.isr)}"
            )
            if span.begin >= begin:
                # Changes that are close to each other have one label.
                name, labelled = (f"▾e{span.leader_epoch}", left) if left - labelled > 4 else ("▾", labelled)
                mark = _text(left, 15, name, "strong", about)
                yield _linked(link, span.begin, mark, about)
        for t, broker, text in frame.truncations:
            if begin <= t <= end and broker in brokers:
                y = _STRIP_ROW * (brokers.index(broker) + 1) + 17
                mark = _text(x(t), y, "✂", "bad strong mid", f"{clock_text(frame.began_ms, t)} {text}")
                yield _linked(link, t, mark, text)
        for t, text in frame.faults:
            if begin <= t <= end:
                mark = _text(x(t), height - 7, "✕", "bad strong mid", f"{clock_text(frame.began_ms, t)} {text}")
                yield _linked(link, t, mark, text)

    def labels() -> Iterator[str]:
        yield _text(f"{-LABELS}", 15, "change", "dim")
        for row, broker in enumerate(brokers):
            yield _text(f"{-LABELS}", _STRIP_ROW * (row + 1) + 16, f"broker {broker}")
        yield _text(f"{-LABELS}", height - 7, "fault", "dim")

    # Links inside an image cannot be reached by a screen reader.
    return _svg(height + 20, "ISR over time", labels(), plot(), "img" if link is None else "group")


def controllers_svg(frame: Frame) -> str:
    """Draw the times in which controllers took themselves for active, and the controller epochs brokers applied."""
    controllers = sorted({one.controller for one in frame.controllers})
    rows = len(controllers) + len(frame.applied)
    height = _STRIP_ROW * max(rows, 1)
    x, axis = _times(frame, height)
    begin, end = frame.window

    def plot() -> Iterator[str]:
        yield from axis
        for span in frame.controllers:
            y = _STRIP_ROW * controllers.index(span.controller)
            until = frame.end if span.end is None else span.end
            if until >= begin and span.begin <= end:
                left, right = x(span.begin), x(until)
                yield _rect(
                    left, y + 4, right - left, 16, "soft", f"{span.controller} active, epoch {span.controller_epoch}"
                )
                yield _text(left + 0.5, y + 16, f"epoch {span.controller_epoch}")
        for row, (broker, steps) in enumerate(frame.applied, len(controllers)):
            for epoch, t in steps:
                if t <= end:
                    title = f"broker {broker} applied controller epoch {epoch} at {clock_text(frame.began_ms, t)}"
                    yield _rect(x(t), _STRIP_ROW * row + 6, 0.3, 12, "solid", title)
                    yield _text(x(t) + 0.8, _STRIP_ROW * row + 17, epoch, "dim")

    def labels() -> Iterator[str]:
        for row, name in enumerate(controllers):
            yield _text(f"{-LABELS}", _STRIP_ROW * row + 16, name.replace("controller-", "ctrl "))
        for row, (broker, _) in enumerate(frame.applied, len(controllers)):
            yield _text(f"{-LABELS}", _STRIP_ROW * row + 16, f"broker {broker}")

    return _svg(height + 20, "Active controller and applied controller epochs", labels(), plot())


def exchange_svg(frame: Frame) -> str:
    """Draw the latest control requests as arrows from the controller to the broker, each above its text."""
    left = sorted({sender_of(one) for one in frame.requests})
    right = sorted({str(one.get("who", "")) for one in frame.requests})
    columns = {name: 3 + index * 94 / max(len(left) + len(right) - 1, 1) for index, name in enumerate([*left, *right])}
    height = 26 + _EXCHANGE_ROW * max(len(frame.requests), 1)

    def plot() -> Iterator[str]:
        for name, at in columns.items():
            yield _line(at, 20, at, height, "grid")
            yield _text(at, 12, name.replace("controller-", "c").replace("broker-", "b"), "dim mid", name)
        for row, one in enumerate(frame.requests):
            y = 34 + _EXCHANGE_ROW * row
            ok = is_applied(one)
            begin, end = columns[sender_of(one)], columns[str(one.get("who", ""))]
            yield _line(begin, y, end, y, "arrow" if ok else "refused", marker_end="url(#head)")
            # Below the arrow it has the whole width, of which a telephone has little.
            yield _text(f"{-LABELS}", y + 18, request_text(one), "over" if ok else "over bad")

    def labels() -> Iterator[str]:
        for row, one in enumerate(frame.requests):
            yield _text(f"{-LABELS}", 38 + _EXCHANGE_ROW * row, str(one["clock"])[3:], "dim")

    return _svg(height + 4, "Control requests", labels(), plot())


def sender_of(request: dict[str, Any]) -> str:
    """Return the controller that sent a request."""
    return f"controller-{request.get('controller_id', '?')}"


def is_applied(request: dict[str, Any]) -> bool:
    """Whether the broker applied a request."""
    return request.get("kind") == "control-request" and not request.get("error")


def request_text(request: dict[str, Any]) -> str:
    """Return a control request and its answer in a few words."""
    what = str(request.get("request", "request"))
    if is_applied(request):
        leader = request.get("leader")
        more = f", leader {'none' if leader is None or leader < 0 else leader}" if "leader" in request else ""
        epoch = request.get("leader_epoch", -1)
        return f"✓ {what}{f' e{epoch}' if epoch >= 0 else ''}{more}"
    if request.get("error") == "BROKER_NOT_AVAILABLE":
        return f"… {what} deferred"
    for name in ("controller", "broker"):
        sent, known = request.get(f"{name}_epoch"), request.get(f"known_{name}_epoch")
        if sent is not None and known is not None and sent < known:
            return f"✗ {what} refused: {name} epoch {sent} < {known}"
    sent, known = request.get("leader_epoch"), request.get("known_leader_epoch")
    if sent is not None and known is not None and 0 <= sent <= known:
        return f"✗ {what} not new: leader epoch {sent} ≤ {known}"
    return f"✗ {what} refused: {request.get('error') or request.get('cause', '')}"


def _ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))
