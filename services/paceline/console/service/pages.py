"""The web pages: overview, lens of a partition, verdict, and the stream that tells of news. All are GET.

Every page has a JSON twin at the same address, for requests that accept ``application/json`` and not ``text/html``.
"""

import asyncio
import gzip
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from paceline.console import drawing, tables
from paceline.console.lag_drawing import lag_svg
from paceline.console.lens import OLD_MS, Frame, clock_text, frame_at
from paceline.console.moments import worst
from paceline.console.pages import view
from paceline.console.pages.view import lens_path
from paceline.console.service.changes import Changes
from paceline.console.service.cluster import Cluster
from paceline.console.service.lags import EVERY_MS
from paceline.console.service.screens import Screens
from paceline.console.service.screens import wants_json as _wants_json
from paceline.console.service.source import LiveSource, Source
from paceline.console.timeline import Timeline
from paceline.model.identifiers import TopicPartition

_HERE = Path(__file__).parent
_NEWS_S: Final = 0.5
_KEEPALIVE_S: Final = 10.0
_CACHED: Final = 64
_MOST_ROWS: Final = 500
"""Partitions of the overview; further ones are counted."""
_LOOKED_THROUGH: Final = 20
"""Partitions of a recording whose worst moment the overview shows."""
_NAVIGATION: Final = (
    ("Overview", "/"),
    ("Brokers", "/brokers"),
    ("Topics", "/topics"),
    ("Groups", "/groups"),
    ("Reassignments", "/reassignments"),
    ("Events", "/events"),
)


class Pages:
    """The pages of one source."""

    def __init__(self, source: Source, cluster: Cluster | None = None) -> None:
        """``cluster`` gives the screens of a live cluster; without it there is only the lens."""
        self._source = source
        self._cluster = cluster
        self._bodies: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True
        )
        self._templates.filters |= {"lens_path": lens_path, "show": view.show, "link": view.link}
        self._templates.filters |= {"page_link": _page_link, "lag_picture": _lag_picture}

    def application(self) -> Starlette:
        """Return the ASGI application, without access control."""
        screens: list[Route] = []
        if self._cluster is not None and isinstance(self._source, LiveSource):
            screens = Screens(self._source, self._cluster, self._screen).routes()
            screens += Changes(self._cluster, self._screen).routes()
        return Starlette(
            routes=[
                *screens,
                Route("/", self._overview),
                Route("/partition/{topic}/{partition:int}", self._lens),
                Route("/partition/{topic}/{partition:int}/parts", self._parts),
                Route("/verdict", self._verdict),
                Route("/stream", self._stream),
                Route("/static/lens.css", _lens_style),
                Mount("/static", StaticFiles(directory=_HERE / "static")),
            ],
            exception_handlers={HTTPException: self._failed},
        )

    # Pages

    def _overview(self, request: Request) -> Response:
        partitions = self._source.partitions()  # before the lock, which the source needs, too
        with self._source.timeline() as timeline:
            t = _asked_time(request, timeline)
            rows = [_overview_row(frame_at(timeline, each, t)) for each in partitions[:_MOST_ROWS]]
            about = self._about(timeline, t)
        for row, each in list(zip(rows, partitions, strict=False))[:_LOOKED_THROUGH]:
            row["worst"] = None if (found := worst(self._source.moments(each))) is None else asdict(found)
        if _wants_json(request):
            return JSONResponse({**about, "partitions": rows, "left_out": max(len(partitions) - _MOST_ROWS, 0)})
        return self._page("overview.html", rows=rows, left_out=max(len(partitions) - _MOST_ROWS, 0), **about)

    def _lens(self, request: Request) -> Response:
        topic_partition = self._partition(request)
        with self._source.timeline() as timeline:
            t = _asked_time(request, timeline)
            frame = frame_at(timeline, topic_partition, t)
            about = self._about(timeline, t)
        moments = self._source.moments(topic_partition)
        if _wants_json(request):
            return JSONResponse({**about, **asdict(frame), "moments": [asdict(one) for one in moments]})
        marks = self._marks(frame)
        return self._page("lens.html", frame=frame, parts=self._drawn(frame), marks=marks, moments=moments, **about)

    async def _parts(self, request: Request) -> Response:
        """Return the moving parts of the lens page as HTML, for the script of that page.

        All browsers ask at the same time, when there is something new: the first answer is made for all of them, on the
        event loop, so that no other request makes it meanwhile.
        """
        topic_partition = self._partition(request)
        key = (topic_partition, request.query_params.get("t"), self._source.version, self._source.trouble)
        if (body := self._bodies.get(key)) is None:
            with self._source.timeline() as timeline:
                frame = frame_at(timeline, topic_partition, _asked_time(request, timeline))
            found = {
                "t": frame.t,
                "begin": frame.begin,
                "end": frame.end,
                "clock": frame.clock,
                "trouble": self._source.trouble,
                "marks": self._marks(frame),
                "parts": self._drawn(frame),
            }
            body = self._bodies[key] = gzip.compress(json.dumps(found).encode(), compresslevel=1)
            while len(self._bodies) > _CACHED:
                self._bodies.popitem(last=False)
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(gzip.decompress(body), media_type="application/json")
        return Response(body, media_type="application/json", headers={"content-encoding": "gzip"})

    def _verdict(self, request: Request) -> Response:
        with self._source.timeline() as timeline:
            verdict, about = timeline.verdict, self._about(timeline, timeline.end)
        if verdict is None:
            raise HTTPException(404, "This recording has no verdict: only a simulated run has one.")
        if _wants_json(request):
            return JSONResponse(verdict)
        return self._page("verdict.html", verdict=verdict, **about)

    async def _stream(self, _request: Request) -> Response:
        return StreamingResponse(self._news(), media_type="text/event-stream")

    async def _news(self) -> AsyncIterator[str]:
        """Yield an event when the timeline has new entries, at most twice a second."""
        version, spoke = None, 0.0
        while True:
            if (now := self._source.version) != version:
                version, spoke = now, time.monotonic()
                yield f"data: {json.dumps({'trouble': self._source.trouble})}\n\n"
            elif time.monotonic() - spoke > _KEEPALIVE_S:
                spoke = time.monotonic()
                yield ": nothing new\n\n"
            await asyncio.sleep(_NEWS_S)

    async def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if _wants_json(request):
            return JSONResponse({"error": error.detail}, error.status_code)
        with self._source.timeline() as timeline:
            about = self._about(timeline, timeline.end)
        return self._page("error.html", error.status_code, message=error.detail, code=error.status_code, **about)

    def _screen(self, request: Request, template: str, data: dict[str, Any], trouble: str) -> Response:
        """Return the page of a screen."""
        with self._source.timeline() as timeline:
            about = self._about(timeline, timeline.end)
        path = request.scope["raw_path"].partition(b"?")[0].decode("latin-1")
        about |= {"trouble": trouble, "path": path, "query": dict(request.query_params)}
        allows = self._cluster is not None and self._cluster.allow_changes
        return self._page(template, data=data, allow_changes=allows, **about)

    # Helpers

    def _partition(self, request: Request) -> TopicPartition:
        asked = TopicPartition(request.path_params["topic"], request.path_params["partition"])
        if asked not in self._source.partitions():
            raise HTTPException(404, f"There is no partition {asked.topic}/{asked.partition} here.")
        self._source.look_at(asked)
        return asked

    def _about(self, timeline: Timeline, t: int) -> dict[str, Any]:
        header = timeline.header
        return {
            "title": header.title,
            "origin": header.origin,
            "made_by": header.made_by,
            "steps": [{"t": at, "clock": clock_text(header.began_ms, at), "text": text} for at, text in header.steps],
            "live": self._source.is_live,
            "trouble": self._source.trouble,
            "has_verdict": timeline.verdict is not None,
            "navigation": _NAVIGATION if self._cluster is not None else (("Overview", "/"),),
            "t": t,
            "clock": clock_text(header.began_ms, t),
        }

    def _marks(self, frame: Frame) -> list[int]:
        """Return the times to which the buttons for the next and the previous change lead."""
        found = self._source.moments(TopicPartition(frame.topic, frame.partition))
        return sorted({one.begin for one in frame.spans} | {t for t, _ in frame.faults} | {one.t for one in found})

    def _drawn(self, frame: Frame) -> dict[str, str]:
        """Return the parts of the lens page."""
        link = _link_of(frame)
        return {
            "explain": self._render(
                "findings.html", frame=frame, is_old=(frame.sample_age_ms or 0) > OLD_MS, live=self._source.is_live
            ),
            "offsets": Markup(drawing.offsets_svg(frame)),
            "offsets-table": self._table([tables.offsets_table(frame)]),
            "strip": Markup(drawing.strip_svg(frame, link)),
            "strip-table": self._table([tables.strip_table(frame), tables.faults_table(frame)]),
            "controllers": Markup(drawing.controllers_svg(frame)),
            "controllers-table": self._table([tables.controllers_table(frame)]),
            "requests": Markup(drawing.exchange_svg(frame)),
            "requests-table": self._table([tables.requests_table(frame)]),
            "events-table": self._table([tables.events_table(frame)]),
        }

    def _table(self, given: Iterable[tables.Table]) -> Markup:
        return self._render("table.html", tables=list(given))

    def _render(self, template: str, **values: Any) -> Markup:
        return Markup(self._templates.get_template(template).render(**values))

    def _page(self, template: str, status: int = 200, **values: Any) -> Response:
        return HTMLResponse(self._render(template, **values), status)


def _link_of(frame: Frame) -> drawing.Link:
    return lambda t: f"{lens_path(frame.topic, frame.partition)}?t={t}"


def _asked_time(request: Request, timeline: Timeline) -> int:
    """Return ``?t=`` within the timeline; without it a recording begins at its first step, a live cluster is now."""
    text = request.query_params.get("t")
    begin = timeline.begin or 0
    if text is None:
        return timeline.header.steps[0][0] if timeline.header.steps else timeline.end
    try:
        t = int(text)
    except ValueError:
        raise HTTPException(400, "t must be a whole number of milliseconds since the beginning.") from None
    return min(max(t, begin), max(timeline.end, begin))


def _overview_row(frame: Frame) -> dict[str, Any]:
    severity, sentence, _ = frame.findings[0] if frame.findings else ("note", "There is no sample yet.", "")
    return {
        "topic": frame.topic,
        "partition": frame.partition,
        "leader": frame.leader,
        "leader_epoch": frame.leader_epoch,
        "isr": list(frame.isr),
        "high_watermark": frame.high_watermark,
        "severity": severity,
        "sentence": sentence,
    }


def _lag_picture(samples: list[dict[str, int]]) -> Markup:
    series = [(one["ms"], one["lag"]) for one in reversed(samples)]
    return Markup(lag_svg(series, int(time.time() * 1000), EVERY_MS))


def _page_link(page: int, query: dict[str, str]) -> str:
    return f"?{urlencode({**query, 'page': page})}"


def _lens_style(_request: Request) -> Response:
    return Response(drawing.SHARED_STYLE, media_type="text/css")
