"""Changes that viewers may make: each is prepared, shown, and carried out once when the viewer confirms it.

The confirmation names the prepared change by a random token, so that exactly the shown change happens, and once.
"""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.console.pages.view import link, number_of, topic_path
from paceline.console.service.cluster import CALL_MS, Cluster
from paceline.console.service.screens import Render, answered, wants_json
from paceline.model.errors import InvalidRequestError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from paceline.model.identifiers import INTERNAL_TOPICS
from paceline.operations import group_offsets
from paceline_client import ConfigChange, NewTopic, Producer

Given = dict[str, str]
_MOST_BYTES: Final = 4 << 20
_MOST_PENDING: Final = 100
_PENDING_S: Final = 600.0
_MAX_RECORD_BYTES: Final = 1_000_000
_MOST_ROWS: Final = 500


@dataclass(frozen=True, slots=True)
class Plan:
    """A prepared change."""

    sentence: str
    """The effects that the page shows before it asks."""
    rows: list[dict[str, Any]]
    carry_out: Callable[[], str]
    """Makes the change and returns a sentence about it."""
    back: str
    """Page that shows the outcome."""
    loses: bool = False
    """Whether records are lost for ever."""


def create_topic(cluster: Cluster, given: Given) -> Plan:
    """Prepare a new topic."""
    partitions, replicas = (_optional(given, name) for name in ("partitions", "replication_factor"))
    wanted = NewTopic(given["topic"], partitions, replicas, configs=dict(_pairs(given.get("configs", ""))))
    (made,) = cluster.admin.create_topics([wanted], validate_only=True)
    rows = [{"partition": index, "replicas": list(brokers)} for index, brokers in enumerate(made.assignments)]

    def carry_out() -> str:
        cluster.admin.create_topics([wanted])
        return f"Topic {wanted.name} was created."

    sentence = f"Creates topic {wanted.name} with {len(rows):,} partitions, for example on these brokers."
    return Plan(sentence, rows, carry_out, topic_path(wanted.name))


def alter_topic(cluster: Cluster, given: Given) -> Plan:
    """Prepare a change of one setting; without a value it gets its default again."""
    topic, key, value = given["topic"], given["key"], given.get("value", "")
    (before,) = cluster.admin.describe_configs(topic, [key])[topic]
    changes = {topic: [ConfigChange(key, "set", value) if value else ConfigChange(key, "delete")]}
    cluster.admin.alter_configs(changes, validate_only=True)
    row = {"key": key, "before": before.value, "origin": before.source, "after": value or "(default)"}

    def carry_out() -> str:
        cluster.admin.alter_configs(changes)
        return f"{key} of topic {topic} was changed."

    return Plan(f"Changes {key} of topic {topic}.", [row], carry_out, topic_path(topic, "settings"))


def trim_topic(cluster: Cluster, given: Given) -> Plan:
    """Prepare the deletion of the first records of a partition; without an offset, of all committed ones."""
    topic, partition = given["topic"], number_of(given, "partition")
    (view,) = cluster.admin.describe_replicas(topic, [partition])
    asked = _optional(given, "before")
    before = view.high_watermark if asked is None else asked
    if before > view.high_watermark:
        raise OffsetOutOfRangeError(f"offset {before} is beyond the high watermark {view.high_watermark}")
    lost = max(0, before - view.log_start_offset)
    row = {"partition": f"{topic}/{partition}", "log_start": view.log_start_offset, "before": before, "records": lost}

    def carry_out() -> str:
        (done,) = cluster.admin.delete_records({(topic, partition): before})
        return f"{topic}/{partition} begins at offset {done.low_watermark:,} now."

    sentence = f"Permanently deletes {lost:,} records of {topic}/{partition}, all before offset {before:,}."
    return Plan(sentence, [row], carry_out, topic_path(topic), loses=True)


def delete_topic(cluster: Cluster, given: Given) -> Plan:
    """Prepare the deletion of a topic; a topic of the same name that is created meanwhile is not deleted."""
    topic = _own(given["topic"])
    (found,) = cluster.admin.describe_topics([topic], from_controller=True)
    views = cluster.admin.describe_leaders([found])
    rows = [
        {"partition": str(where), "records": view.high_watermark - view.log_start_offset}
        for where, view in sorted(views.items())
    ]
    records = sum(view.high_watermark - view.log_start_offset for view in views.values())

    def carry_out() -> str:
        (now,) = cluster.admin.describe_topics([topic], from_controller=True)
        if now.topic_id != found.topic_id:
            raise InvalidRequestError(f"topic {topic} was deleted and created again since; nothing was changed")
        cluster.admin.delete_topics([topic])
        return f"Topic {topic} was deleted."

    sentence = f"Permanently deletes topic {topic}: {len(found.partitions):,} partitions with {records:,} records."
    return Plan(sentence, rows[:_MOST_ROWS], carry_out, "/topics", loses=True)


def produce(cluster: Cluster, given: Given) -> Plan:
    """Prepare a record of text."""
    topic, text = _own(given["topic"]), given.get("value", "").replace("\r\n", "\n")  # a browser sends \r\n
    value = None if given.get("is_null") else text.encode()
    key, headers = given["key"].encode() if given.get("key") else None, _pairs(given.get("headers", ""))
    partition = _optional(given, "partition")
    (found,) = cluster.admin.describe_topics([topic])
    if partition is not None and partition not in [one.partition for one in found.partitions]:
        raise UnknownTopicOrPartitionError(f"topic {topic} has {len(found.partitions)} partitions, no {partition}")
    if len(key or b"") + len(value or b"") > _MAX_RECORD_BYTES:
        raise InvalidRequestError(f"key and value have more than {_MAX_RECORD_BYTES:,} bytes")
    chosen = "by its key" if key else "any"
    row = {
        "partition": chosen if partition is None else partition,
        "key": given.get("key") or None,
        "value_bytes": None if value is None else len(value),
        "headers": [f"{name}={text}" for name, text in headers],
    }

    def carry_out() -> str:
        limits = {"max_block_ms": CALL_MS, "delivery_timeout_ms": CALL_MS, "request_timeout_ms": CALL_MS}
        with Producer(cluster.bootstrap, **limits) as producer:  # type: ignore[arg-type]
            pairs = [(name, text.encode()) for name, text in headers]
            done = producer.send(topic, value, key, partition, pairs).result(2 * CALL_MS / 1000)
        return f"The record was written to {topic}/{done.partition} at offset {done.offset:,}."

    return Plan(f"Writes one record to topic {topic}.", [row], carry_out, topic_path(topic, "messages"))


def reset_group(cluster: Cluster, given: Given) -> Plan:
    """Prepare new committed offsets of a group without members."""
    group, target = given["group"], group_offsets.parse_target(given["to"])
    (described,) = cluster.admin.describe_groups([group])
    if described.members:
        raise InvalidRequestError(f"group {group} has {len(described.members)} members; stop them first")
    committed = group_offsets.committed_offsets(cluster.admin, group)
    name, _, index = given.get("topic", "").partition("/")
    which = [(name, _optional({"partition": index}, "partition"))] if name else []
    partitions = group_offsets.partitions_to_reset(cluster.admin, group, which, committed)
    with cluster.consumer() as consumer:
        offsets = group_offsets.reset_offsets(consumer, partitions, committed, target)

    def carry_out() -> str:
        cluster.admin.alter_group_offsets(group, offsets)
        return f"{len(offsets):,} offsets of group {group} were set."

    rows = group_offsets.reset_rows(group, committed, offsets)[:_MOST_ROWS]
    sentence = f"Sets {len(offsets):,} committed offsets of group {group}."
    return Plan(sentence, rows, carry_out, link({"group": group}, "group"))


Kind = tuple[str, Callable[[Cluster, Given], Plan], tuple[str, ...]]
"""Title, preparation and required fields of a change."""
KINDS: Final[dict[str, Kind]] = {
    "create-topic": ("Create a topic", create_topic, ("topic",)),
    "alter-topic": ("Change a setting", alter_topic, ("topic", "key")),
    "trim-topic": ("Trim a partition", trim_topic, ("topic", "partition")),
    "delete-topic": ("Delete a topic", delete_topic, ("topic",)),
    "produce": ("Produce a record", produce, ("topic",)),
    "reset-group": ("Reset offsets", reset_group, ("group", "to")),
}


class Changes:
    """The handlers of changes."""

    def __init__(self, cluster: Cluster, render: Render) -> None:
        self._cluster = cluster
        self._render = render
        self._lock = threading.Lock()
        self._pending: OrderedDict[str, tuple[float, Plan]] = OrderedDict()

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/changes/{kind}", self._form, methods=["GET"]),
            Route("/changes/{kind}", self._post, methods=["POST"]),
        ]

    def _form(self, request: Request) -> Response:
        title, _, required = self._kind(request)
        given = dict(request.query_params)
        return self._answer(request, {"title": title, "given": given, "required": required})

    async def _post(self, request: Request) -> Response:
        kind = self._kind(request)
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MOST_BYTES:
                raise HTTPException(413, f"A change has at most {_MOST_BYTES >> 20} MiB.")
        given = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
        work = self._confirm if "token" in given else self._prepare
        return await run_in_threadpool(work, request, kind, given)

    def _prepare(self, request: Request, kind: Kind, given: Given) -> Response:
        title, prepare, required = kind
        if missing := [name for name in required if name not in given or (name != "group" and not given[name])]:
            raise HTTPException(400, f"Give {' and '.join(missing)}.")
        with answered():
            plan = prepare(self._cluster, given)
        token = secrets.token_urlsafe(24)
        with self._lock:
            self._pending[token] = time.monotonic(), plan
            while len(self._pending) > _MOST_PENDING:
                self._pending.popitem(last=False)
        data = {"title": title, "sentence": plan.sentence, "rows": plan.rows, "loses_records": plan.loses}
        return self._answer(request, {**data, "token": token, "back": plan.back})

    def _confirm(self, request: Request, kind: Kind, given: Given) -> Response:
        with self._lock:
            at, plan = self._pending.pop(given["token"], (0.0, None))
        if plan is None or time.monotonic() - at > _PENDING_S:
            raise HTTPException(409, "This change was made already, or prepared too long ago: prepare it again.")
        with answered():
            done = plan.carry_out()
        return self._answer(request, {"title": kind[0], "done": done, "back": plan.back})

    def _kind(self, request: Request) -> Kind:
        if not self._cluster.allow_changes:
            raise HTTPException(403, "The console is read-only: start it with --allow-changes.")
        if (kind := KINDS.get(request.path_params["kind"])) is None:
            raise HTTPException(404, f"There is no such change; there are {', '.join(KINDS)}.")
        return kind

    def _answer(self, request: Request, data: dict[str, Any]) -> Response:
        if wants_json(request):
            return JSONResponse(data)
        return self._render(request, "change.html", data | {"kind": request.path_params["kind"]}, "")


def _own(topic: str) -> str:
    if topic in INTERNAL_TOPICS:
        raise InvalidRequestError(f"{topic} has the state of all groups; the console does not write to it")
    return topic


def _optional(given: Given, name: str) -> int | None:
    return number_of(given, name) if given.get(name) else None


def _pairs(text: str) -> list[tuple[str, str]]:
    """Parse lines of KEY=VALUE."""
    pairs = [line.partition("=") for line in text.splitlines() if line.strip()]
    if wrong := [key for key, equals, _ in pairs if not key.strip() or not equals]:
        raise ValueError(f"{wrong[0]!r} is not KEY=VALUE")
    return [(key.strip(), value) for key, _, value in pairs]
