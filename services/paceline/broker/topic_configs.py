"""Topic settings as ZooKeeper has them: read when a topic comes here, and again when somebody changes them.

A partition whose topic's settings are not known yet commits nothing (nobody knows its ``min.insync.replicas``), and
produce requests to it wait; both last one read. Changes are announced below ``/config/changes``; a new session may
have missed some, so it reads everything again. Source: spec/zookeeper.md sections 1, 2.11, 2.12 and 8.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError, SessionLostError
from paceline.coordination.interface import Check, GetChildren, GetData, Multi, Response, ZkCode, ZooKeeper
from paceline.coordination.recipes import expect
from paceline.log.log_config import LogConfig
from paceline.model.errors import InvalidConfigError
from paceline.runtime.flow import Flow, FlowRun, Zk
from paceline.runtime.ports import Cancellable, Scheduler

RETRY_MS: Final = 1_000
_READS_AT_ONCE: Final = 500
_ANNOUNCEMENT: Final = re.compile(znodes.CONFIG_CHANGE_PREFIX.rpartition("/")[2] + "[0-9]+")


class TopicConfigs:
    """Settings of the topics this broker hosts. ``on_change`` is told of every topic whose settings were read.

    ``on_broker_announced`` is told whose settings have changed when they are no topic's: ``3`` or ``<default>``.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        scheduler: Scheduler,
        defaults: LogConfig,
        on_change: Callable[[str, LogConfig], None],
        on_broker_announced: Callable[[str], None] = lambda _broker: None,
    ) -> None:
        self._zookeeper = zookeeper
        self._scheduler = scheduler
        self._defaults = defaults
        self._on_change = on_change
        self._on_broker_announced = on_broker_announced
        self._known: dict[str, LogConfig] = {}
        self._wanted: dict[str, None] = {}
        self._waiting: list[_Waiting] = []
        self._reading = False
        self._asked: set[str] = set()
        """Topics that the read under way speaks of; one that was forgotten since may be another topic's by now."""
        self._listing = False
        self._list_again = False
        self._applied: str | None = None
        """Name of the last announcement that was applied; names sort by their sequence number."""
        self._stopped = False

    def get(self, topic: str) -> LogConfig | None:
        """Return a topic's settings, None while they are not known."""
        return self._known.get(topic)

    def unknown_among(self, topics: Iterable[str]) -> dict[str, None]:
        """Return those topics whose settings are on their way for the first time."""
        if not self._wanted:
            return {}
        return {topic: None for topic in topics if topic in self._wanted and topic not in self._known}

    def want(self, topics: Iterable[str]) -> None:
        """Read the settings of topics that are not known yet."""
        for topic in topics:
            if topic not in self._known:
                self._wanted[topic] = None
        self._read()

    def forget(self, topic: str) -> None:
        """Drop a topic that is not hosted any more; made anew, it may have other settings."""
        self._known.pop(topic, None)
        self._asked.discard(topic)
        if self._wanted.pop(topic, True) is None:
            self._release_ready()

    def wait_for(self, unknown: dict[str, None], timeout_ms: float, then: Callable[[], None]) -> None:
        """Call ``then`` once the settings of these topics, from `unknown_among`, are known, or after ``timeout_ms``."""
        waiting = _Waiting(unknown, then)
        waiting.timer = self._scheduler.call_later(timeout_ms, lambda: self._release(waiting))
        self._waiting.append(waiting)

    def connected(self, new_session: bool) -> None:
        """A connection is there, and with it no watch: list announcements again, in a new session read everything."""
        if new_session:
            self._wanted = {**dict.fromkeys(self._known), **self._wanted}
        self._read()
        self._list()

    def announced(self) -> None:
        """The list of announcements has changed."""
        self._list()

    def stop(self) -> None:
        """Read nothing more and let everybody go on."""
        self._stopped = True
        for waiting in tuple(self._waiting):
            self._release(waiting)

    # Settings

    def _read(self) -> None:
        if self._reading or self._stopped or not self._wanted:
            return
        self._reading = True
        topics = list(self._wanted)[:_READS_AT_ONCE]
        self._asked = set(topics)
        FlowRun(_read_configs(topics), self._zookeeper, self._scheduler, self._have_read, self._read_failed).start()

    def _have_read(self, found: Mapping[str, Mapping[str, str]]) -> None:
        self._reading = False
        for topic, properties in found.items():
            if topic in self._wanted and topic in self._asked:
                del self._wanted[topic]
                self._known[topic] = config = _config(properties, self._defaults)
                self._on_change(topic, config)
        self._release_ready()
        self._read()

    def _release_ready(self) -> None:
        for waiting in tuple(self._waiting):
            if not self.unknown_among(waiting.topics):
                self._release(waiting)

    def _read_failed(self, error: Exception) -> None:
        self._reading = False
        if not isinstance(error, SessionLostError):
            self._scheduler.call_later(RETRY_MS, self._read)

    def _release(self, waiting: "_Waiting") -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            if waiting.timer is not None:
                waiting.timer.cancel()
            waiting.then()

    # Announcements

    def _list(self) -> None:
        if self._listing or self._stopped:
            self._list_again = True
            return
        self._listing = True
        self._list_again = False
        FlowRun(
            _read_announcements(self._applied), self._zookeeper, self._scheduler, self._have_listed, self._list_failed
        ).start()

    def _have_listed(self, found: tuple[str | None, tuple[tuple[str, str], ...]]) -> None:
        self._listing = False
        self._applied, entities = found
        for kind, name in entities:
            if kind == "brokers":
                self._on_broker_announced(name)
            elif kind == "topics" and name in self._known:
                self._wanted[name] = None
        self._read()
        if self._list_again:
            self._list()

    def _list_failed(self, error: Exception) -> None:
        self._listing = False
        if not isinstance(error, SessionLostError):
            self._scheduler.call_later(RETRY_MS, self._list)


class _Waiting:
    __slots__ = ("then", "timer", "topics")

    def __init__(self, topics: dict[str, None], then: Callable[[], None]) -> None:
        self.topics = topics
        self.then = then
        self.timer: Cancellable | None = None


def _config(properties: Mapping[str, str], defaults: LogConfig) -> LogConfig:
    """Return the settings; a key or value that makes no sense here is left at its default, the others count."""
    try:
        return LogConfig.from_properties(properties, defaults)
    except InvalidConfigError:
        config = defaults
        for key in sorted(properties):
            try:
                config = LogConfig.from_properties({key: properties[key]}, config)
            except InvalidConfigError:
                continue
        return config


def _read_configs(topics: list[str]) -> Flow[dict[str, Mapping[str, str]]]:
    paths = [znodes.topic_config_path(topic) for topic in topics]
    responses: list[Response] = yield Zk([GetData(path) for path in paths])
    missing = [index for index, response in enumerate(responses) if response.code is ZkCode.NO_NODE]
    if missing:
        # Created with the topic, so the server asked may lag behind; a check, which is a write, brings it up to date.
        (checked,) = yield Zk([Multi((Check(paths[missing[0]], 0),))])
        expect(checked, paths[missing[0]], ZkCode.NO_NODE, ZkCode.BAD_VERSION)
        again: list[Response] = yield Zk([GetData(paths[index]) for index in missing])
        for index, response in zip(missing, again, strict=True):
            responses[index] = response
    found: dict[str, Mapping[str, str]] = {}
    for topic, path, response in zip(topics, paths, responses, strict=True):
        expect(response, path, ZkCode.NO_NODE)
        try:
            found[topic] = znodes.decode_config(path, response.data) if response.ok else {}
        except MalformedZnodeError:
            found[topic] = {}
    return found


def _read_announcements(applied: str | None) -> Flow[tuple[str | None, tuple[tuple[str, str], ...]]]:
    """Return the newest announcement's name and what was announced after ``applied``, with a watch for more."""
    (listed,) = yield Zk([GetChildren(znodes.CONFIG_CHANGES, watch=True)])
    expect(listed, znodes.CONFIG_CHANGES)
    # A foreign name would count as later than every announcement to come.
    announced = sorted(child for child in listed.children if _ANNOUNCEMENT.fullmatch(child))
    if applied is not None and (not announced or announced[-1] < applied):
        # The latest are never cleaned up: somebody has deleted the node, and its numbers begin anew.
        applied = None
    fresh = [child for child in announced if applied is None or child > applied]
    if not fresh:
        return applied, ()
    paths = [f"{znodes.CONFIG_CHANGES}/{child}" for child in fresh]
    responses = yield Zk([GetData(path) for path in paths])
    entities: dict[tuple[str, str], None] = {}
    for path, response in zip(paths, responses, strict=True):
        expect(response, path, ZkCode.NO_NODE)
        if not response.ok:
            continue
        try:
            entity_type, _, name = znodes.decode_config_change(path, response.data).partition("/")
        except MalformedZnodeError:
            continue
        entities[entity_type, name] = None
    return fresh[-1], tuple(entities)
