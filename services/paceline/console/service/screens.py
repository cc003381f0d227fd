"""The screens of a live cluster: gather facts in a worker thread; `paceline.console.pages` makes a screen of them."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

import grpc
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.console.pages import activity as activity_pages
from paceline.console.pages import cluster as cluster_pages
from paceline.console.pages import groups as group_pages
from paceline.console.pages import messages as message_pages
from paceline.console.pages import topics as topic_pages
from paceline.console.pages.view import paged
from paceline.console.service.cluster import Cluster, Picture, UnreachableError, is_silence
from paceline.console.service.records import read, read_one
from paceline.console.service.source import LiveSource
from paceline.findings.explain import Finding, explain
from paceline.findings.service.gather import gather
from paceline.model.errors import GroupIdNotFoundError, PacelineError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.operations.group_offsets import group_lag
from paceline.operations.reassign_progress import sizes_of
from paceline_client import Admin

_DISKS_FRESH_S: Final = 5.0
_HEALTH_FRESH_S: Final = 5.0
_MOVES_FRESH_S: Final = 5.0
"""Shortest time over which the speed of a move is measured: a throttled follower fetches in bursts."""
_MOST_EXPLAINED: Final = 50
"""Partitions with a problem whose brokers are asked for one page."""
_FIRST_S, _PAUSE_S = 3.0, 0.05
_DOWNLOAD_S: Final = 5.0
_BROKER_EVENTS: Final = ("broker-suspected", "broker-up", "broker-down", "broker-registered")


Shown = tuple[dict[str, Any], str]
"""The JSON twin of a screen, and why it is old; the latter is empty when it is not."""


class Render(Protocol):
    """Makes a page of a screen."""

    def __call__(self, request: Request, template: str, data: dict[str, Any], trouble: str) -> Response:
        """Return the page."""


def wants_json(request: Request) -> bool:
    """Return whether a request accepts JSON and not HTML."""
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


@contextmanager
def answered() -> Iterator[None]:
    """Turn the errors of a request into the answers that a browser gets."""
    try:
        yield
    except UnreachableError as error:
        raise HTTPException(503, f"The cluster does not answer: {error}") from error
    except (UnknownTopicOrPartitionError, GroupIdNotFoundError) as error:
        raise HTTPException(404, str(error)) from error
    except (PacelineError, ValueError) as error:
        raise HTTPException(503 if is_silence(error) else 400, str(error)) from error
    except grpc.RpcError as error:
        raise HTTPException(503, f"The cluster does not answer: {error}") from error


class Screens:
    """The handlers of the screens."""

    def __init__(self, source: LiveSource, cluster: Cluster, render: Render) -> None:
        self._source = source
        self._cluster = cluster
        self._admin, self._get = cluster.admin, cluster.pictures.get
        self._render = render

    def routes(self) -> list[Route]:
        """Return the routes; all handlers run in worker threads, because they wait for the cluster."""
        screens: dict[str, tuple[str, Callable[[Request], Shown]]] = {
            "/": ("cluster.html", self._overview),
            "/brokers": ("brokers.html", self._brokers),
            "/topics": ("topics.html", self._topics),
            "/topics/{topic}": ("topic.html", self._topic),
            "/topics/{topic}/messages": ("messages.html", self._messages),
            "/topics/{topic}/settings": ("topic.html", self._settings),
            "/topics/{topic}/groups": ("topic.html", self._readers),
            "/groups": ("groups.html", self._groups),
            "/group": ("group.html", self._group),
            "/reassignments": ("reassignments.html", self._reassignments),
            "/events": ("events.html", self._events),
        }
        routes = [Route(path, self._answer(*screen)) for path, screen in screens.items()]
        return [*routes, Route("/topics/{topic}/record", self._record)]

    def _answer(self, template: str, make: Callable[[Request], Shown]) -> Callable[[Request], Response]:
        def handler(request: Request) -> Response:
            with answered():
                data, trouble = make(request)
            self._source.follow()
            if wants_json(request):
                return JSONResponse({**data, "trouble": trouble})
            return self._render(request, template, data, trouble)

        return handler

    # Overview and brokers

    def _metadata(self) -> tuple[Any, list[Any], int]:
        """Return the last reading of the collector; waits for its first answer."""
        deadline = time.monotonic() + _FIRST_S
        while (found := self._source.metadata()) is None:
            if time.monotonic() > deadline:
                raise UnreachableError(self._source.trouble.removeprefix("The picture is old: ") or "no answer yet")
            time.sleep(_PAUSE_S)
        return found

    def _overview(self, request: Request) -> Shown:
        cluster, topics, taken_ms = self._metadata()
        found = self._findings(cluster_pages.worst_first(topics, request.query_params)[0])
        health: Picture[list[Finding]] = self._get("health", self._cluster.health, _HEALTH_FRESH_S, [])
        data = cluster_pages.overview(cluster, topics, found, taken_ms, request.query_params)
        return data | {"findings": cluster_pages.finding_rows(health.value)}, self._source.trouble

    def _findings(self, shown: Sequence[tuple[Any, Any]]) -> dict[TopicPartition, Finding]:
        """Ask the brokers of the first partitions with a problem for the worst finding about each, if they answer."""
        problems: dict[str, tuple[Any, ...]] = {}
        for topic, one in [pair for pair in shown if not cluster_pages.is_whole(pair[1])][:_MOST_EXPLAINED]:
            problems[topic.name] = (*problems.get(topic.name, (topic,)), one)
        found: dict[TopicPartition, Finding] = {}
        for name, (topic, *partitions) in problems.items():
            key = ("findings", name, tuple((one.partition, one.leader_epoch, one.isr) for one in partitions))
            ask = partial(_explained, self._cluster.admin, replace(topic, partitions=tuple(partitions)))
            found |= self._get(key, ask, otherwise={}).value  # without an answer, the metadata alone explains it
        return found

    def _brokers(self, _request: Request) -> Shown:
        cluster, topics, _ = self._metadata()
        disks = self._get("disks", self._admin.describe_log_dirs, _DISKS_FRESH_S, [])
        addresses = {one.broker_id: one.address for one in cluster.brokers}
        silences = self._get("silences", partial(self._cluster.controller_silences, addresses))
        with self._source.timeline() as timeline:
            told = {
                who: cluster_pages.event_text(one.value, timeline.header.began_ms + one.t)
                for one in timeline.cluster.entries
                if one.value.get("kind") in _BROKER_EVENTS and (who := _broker_of(one.value)) is not None
            }
        data = cluster_pages.brokers(cluster, topics, disks.value, silences.value, told)
        return data, self._source.trouble or disks.trouble

    # Topics

    def _topics(self, request: Request) -> Shown:
        return topic_pages.topic_list(self._metadata()[1], request.query_params), self._source.trouble

    def _described(self, request: Request) -> Picture[Any]:
        """Return the topic of the path."""
        name = request.path_params["topic"]
        return self._get(("topic", name), lambda: self._admin.describe_topics([name])[0])

    def _topic(self, request: Request) -> Shown:
        described, (cluster, _, _) = self._described(request), self._metadata()
        topic = described.value
        shown, numbers = paged(topic.partitions, request.query_params)
        part, key = replace(topic, partitions=tuple(shown)), (topic.name, numbers["page"])
        where = [(topic.name, one.partition) for one in shown]
        views = self._get(("views", *key), lambda: self._admin.describe_leaders([part]), otherwise={})
        disks = self._get(("sizes", *key), lambda: self._admin.describe_log_dirs(None, where), _DISKS_FRESH_S, [])
        found, sizes = self._findings([(topic, one) for one in shown]), sizes_of(disks.value)
        now_ms = described.taken_ms
        data = topic_pages.topic_page(topic, request.query_params, cluster, views.value, sizes, found, now_ms)
        return data, described.trouble or views.trouble or disks.trouble

    def _settings(self, request: Request) -> Shown:
        name = request.path_params["topic"]
        entries = self._get(("settings", name), lambda: self._admin.describe_configs(name)[name])
        return topic_pages.settings(name, entries.value), entries.trouble

    # Groups

    def _readers(self, request: Request) -> Shown:
        topic, lags = self._described(request), self._cluster.lags
        rows = lags.of_topic(topic.value.name)
        return topic_pages.readers(topic.value.name, rows, request.query_params, lags.taken_ms), topic.trouble

    def _groups(self, request: Request) -> Shown:
        groups, lags = self._get("groups", self._admin.list_groups), self._cluster.lags
        data = group_pages.group_list(groups.value, lags.totals(), lags.left_out, request.query_params)
        return data, groups.trouble

    def _group(self, request: Request) -> Shown:
        name = request.query_params.get("id", "")
        picture = self._get(("group", name), partial(group_lag, self._admin, name))
        described, rows = picture.value
        if described.state == "Dead" and not rows:
            raise GroupIdNotFoundError(f"there is no group {name}")
        data = group_pages.group_page(described, rows, self._cluster.lags.series(name), request.query_params)
        return data, picture.trouble

    # Reassignments and events

    def _reassignments(self, request: Request) -> Shown:
        moves = self._get("moves", self._cluster.moves, _MOVES_FRESH_S)
        return activity_pages.reassignments(moves.value, request.query_params), moves.trouble

    def _events(self, request: Request) -> Shown:
        with self._source.timeline() as timeline:
            return activity_pages.events(timeline, request.query_params), self._source.trouble

    # Records

    def _messages(self, request: Request) -> Shown:
        wish = message_pages.wish_of(request.query_params)
        if wish.text and not self._cluster.show_records:
            raise ValueError("a search shows the contents of records: start the console with --show-records")
        topic = self._described(request)
        known = [one.partition for one in topic.value.partitions]
        with self._cluster.reader() as consumer:
            found = read(consumer, topic.value.name, known, wish)
        name = topic.value.name
        decoder, shows = self._cluster.decoders.get(name), self._cluster.show_records
        return message_pages.messages(name, wish, found, decoder, shows), topic.trouble

    def _record(self, request: Request) -> Response:
        """Return the whole key or value of a record as a file."""
        if not self._cluster.show_records:
            raise HTTPException(403, "The contents of records are hidden: start the console with --show-records.")
        with answered():
            topic = self._described(request).value.name
            partition, offset, part = message_pages.place_of(request.query_params)
            with self._cluster.reader() as consumer:
                record = read_one(consumer, TopicPartition(topic, partition), offset, _DOWNLOAD_S)
        data = record.key if part == "key" else record.value
        if data is None:
            raise HTTPException(404, f"The {part} of this record is null.")
        name = f"{topic}.{partition}.{offset}.{part}"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(bytes(data), media_type="application/octet-stream", headers=headers)


def _explained(admin: Admin, topic: Any) -> dict[TopicPartition, Finding]:
    """Return the worst finding about each partition of a topic."""
    facts, now_ms = gather(admin, topic), int(time.time() * 1000)
    return {TopicPartition(one.topic, one.partition): explain(one, now_ms)[0] for one in facts}


def _broker_of(event: dict[str, Any]) -> int | None:
    """Return the broker that an event of the cluster is about."""
    if event.get("replica") is not None:
        return int(event["replica"])
    number = str(event.get("who", "")).removeprefix("broker-")
    return int(number) if number.isdecimal() else None
