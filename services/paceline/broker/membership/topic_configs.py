"""Read topic settings from ZooKeeper when the broker begins to host a topic, and when they change.

A partition whose topic's settings are unknown commits no record (its ``min.insync.replicas`` is unknown), and produce
requests to it wait; both last for the duration of a read. Changes are announced under ``/config/changes``; a new
session may have missed changes, so it reads all settings again.

A topic without a node has the broker's defaults. When a node cannot be parsed, the previous settings stay, or the
broker's defaults before the first read. Until the node can be parsed, no record of the topic is deleted, and the node
is read again every ten seconds.
"""

import logging
import random
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError, SessionLostError
from paceline.coordination.flow import Flow, FlowRun, Zk
from paceline.coordination.interface import Check, GetChildren, GetData, Multi, Response, ZkCode, ZooKeeper
from paceline.coordination.recipes import expect
from paceline.log.log_config import LogConfig
from paceline.model.backoff import Retries
from paceline.model.errors import InvalidConfigError
from paceline.model.scheduler import Cancellable, Scheduler
from paceline.replication.purgatory import Cancel

LOG: Final = logging.getLogger(__name__)
UNREADABLE_RETRY_MS: Final = 10_000
"""Interval at which a node that cannot be parsed is read again; it may be repaired without an announcement."""
LONG_UNKNOWN_MS: Final = 60_000
"""Time for which settings may be unknown before this is logged and counted."""
_READS_AT_ONCE: Final = 500
_DELETION_KEYS: Final = frozenset(
    {
        "cleanup.policy",
        "retention.ms",
        "retention.bytes",
        "delete.retention.ms",
        "min.compaction.lag.ms",
        "max.compaction.lag.ms",
    }
)
"""Settings that control deletion: the broker's default must not replace a value that cannot be parsed."""
_ANNOUNCEMENT: Final = re.compile(znodes.CONFIG_CHANGE_PREFIX.rpartition("/")[2] + "[0-9]+")


class TopicConfigs:
    """Settings of the hosted topics.

    ``on_read`` is called after every read of a topic, with None when its node could not be parsed.
    ``on_broker_announced`` is called for changed settings of brokers, with ``3`` or ``<default>``.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        scheduler: Scheduler,
        defaults: LogConfig,
        on_read: Callable[[str, LogConfig | None], None],
        rng: random.Random,
        on_broker_announced: Callable[[str], None] = lambda _broker: None,
    ) -> None:
        self._zookeeper = zookeeper
        self._scheduler = scheduler
        self._defaults = defaults
        self._on_read = on_read
        self._on_broker_announced = on_broker_announced
        self._retries = Retries(scheduler, rng)
        self._known: dict[str, LogConfig] = {}
        self._wanted: dict[str, None] = {}
        self._unreadable: dict[str, str] = {}
        """Topics whose node, or a value that controls deletion, cannot be parsed, with the reason."""
        self._unknown_since: dict[str, float] = {}
        """Time when a topic's settings were first needed, or found unreadable; until they are known."""
        self._reported: dict[str, None] = {}
        """Topics whose unknown settings were logged."""
        self._retry: Cancellable | None = None
        self._report: Cancellable | None = None
        self._waiting: list[_Waiting] = []
        self._reading = False
        self._asked: set[str] = set()
        """Topics of the read in progress whose answer counts: a topic removed since then may have been re-created, and
        settings announced since then may have changed."""
        self._listing = False
        self._list_again = False
        self._logged = ""
        """Reason in the last warning about a failed read of the announcements."""
        self._applied: str | None = None
        """Name of the last announcement that was applied; names sort by their sequence number."""
        self._stopped = False

    def get(self, topic: str) -> LogConfig | None:
        """Return a topic's settings from the last read, None while they are unknown."""
        return self._known.get(topic)

    def deletion_is_known(self, topic: str) -> bool:
        """Whether all settings that control the deletion of the topic's records are known."""
        return topic in self._known and topic not in self._unreadable

    def is_unread(self, topic: str) -> bool:
        """Whether no read of the topic has completed yet."""
        return topic not in self._known and topic not in self._unreadable

    def long_unknown(self) -> list[str]:
        """Return the topics whose settings have been unknown or unreadable for more than a minute."""
        before_ms = self._scheduler.now_ms() - LONG_UNKNOWN_MS
        return [topic for topic, since_ms in self._unknown_since.items() if since_ms <= before_ms]

    def unknown_among(self, topics: Iterable[str]) -> dict[str, None]:
        """Return the topics whose settings are being read for the first time."""
        if not self._wanted:
            return {}
        return {topic: None for topic in topics if topic in self._wanted and topic not in self._known}

    def must_wait(self, topics: Iterable[str], producer: Hashable) -> bool:
        """Whether a request waits for settings, or for an earlier request of its producer; None is no producer."""
        if not self._wanted and not self._waiting:
            return False
        queued = producer is not None and any(waiting.producer == producer for waiting in self._waiting)
        return queued or bool(self.unknown_among(topics))

    def want(self, topics: Iterable[str]) -> None:
        """Read the settings of topics that are unknown."""
        for topic in topics:
            if self.is_unread(topic):
                self._wanted[topic] = None
                self._note_unknown(topic)
        self._read()

    def forget(self, topic: str) -> None:
        """Remove a topic that is not hosted any more; after its re-creation it may have other settings."""
        self._known.pop(topic, None)
        self._reported.pop(topic, None)
        self._note_known(topic)
        self._asked.discard(topic)
        if self._wanted.pop(topic, True) is None:
            self._release_ready()

    def when_known(
        self, topics: Iterable[str], timeout_ms: float, producer: Hashable, then: Callable[[], Cancel | None]
    ) -> Cancel:
        """Call ``then`` once the settings of these topics are known, at the latest after ``timeout_ms``.

        For a request of which `must_wait` is true. The requests of a producer keep their order. Returns a function that
        cancels this wait, or the wait started by ``then``.
        """
        further: list[Cancel] = []
        cancelled = False

        def release() -> None:
            if not cancelled:
                cancel = then()
                further.extend([] if cancel is None else [cancel])

        def cancel_all() -> None:
            nonlocal cancelled
            cancelled = True
            for cancel in further:
                cancel()
            self._end(waiting)

        waiting = _Waiting(self.unknown_among(topics), producer, release)
        waiting.timer = self._scheduler.call_later(timeout_ms, lambda: self._end(waiting))
        self._waiting.append(waiting)
        return cancel_all

    def connected(self, new_session: bool) -> None:
        """List announcements again after a reconnect, which removes all watches; read all settings in a new session."""
        if new_session:
            self._wanted = {**dict.fromkeys(self._known), **dict.fromkeys(self._unreadable), **self._wanted}
        self._read()
        self._list()

    def announced(self) -> None:
        """Read the changed list of announcements."""
        self._list()

    def stop(self) -> None:
        """Stop reading and release every waiting request."""
        self._stopped = True
        for timer in (self._retry, self._report):
            if timer is not None:
                timer.cancel()
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

    def _have_read(self, found: Mapping[str, "_Settings"]) -> None:
        self._reading = False
        self._retries.reset()
        for topic, settings in found.items():
            if topic in self._wanted and topic in self._asked:
                del self._wanted[topic]
                self._take_over(topic, settings)
        self._release_ready()
        self._read()

    def _take_over(self, topic: str, settings: "_Settings") -> None:
        config, problem = parsed_settings(settings, self._defaults)
        if problem is None:
            self._note_known(topic)
        else:
            if topic not in self._unreadable:
                LOG.warning(
                    "topic settings cannot be parsed, deleting nothing: topic=%s using=%s cause=%s",
                    topic, "the valid keys" if config else "the last known or default settings", problem,
                )  # fmt: skip
            self._unreadable[topic] = problem
            self._note_unknown(topic)
            if self._retry is None:
                self._retry = self._scheduler.call_later(UNREADABLE_RETRY_MS, self._read_unreadable)
        if config is not None:
            self._known[topic] = config
        self._on_read(topic, config)

    def _read_unreadable(self) -> None:
        self._retry = None
        self._wanted.update(dict.fromkeys(self._unreadable))
        self._read()

    def _note_unknown(self, topic: str) -> None:
        self._unknown_since.setdefault(topic, self._scheduler.now_ms())
        if self._report is None:
            self._report = self._scheduler.call_later(LONG_UNKNOWN_MS, self._report_unknown)

    def _note_known(self, topic: str) -> None:
        self._unreadable.pop(topic, None)
        self._unknown_since.pop(topic, None)
        if topic in self._reported:
            del self._reported[topic]
            LOG.info("topic settings are known again: topic=%s", topic)

    def _report_unknown(self) -> None:
        """Log each topic once whose settings have been unknown for a minute, and check the remaining topics later."""
        self._report = None
        for topic in self.long_unknown():
            if topic not in self._reported:
                self._reported[topic] = None
                cause = self._unreadable.get(topic, "ZooKeeper has not answered")
                LOG.warning("topic settings unknown for a minute, deleting nothing: topic=%s cause=%s", topic, cause)
        unreported = [since for topic, since in self._unknown_since.items() if topic not in self._reported]
        if unreported and not self._stopped:
            wait_ms = min(unreported) + LONG_UNKNOWN_MS - self._scheduler.now_ms()
            self._report = self._scheduler.call_later(max(wait_ms, 1), self._report_unknown)

    def _release_ready(self) -> None:
        held: set[Hashable] = set()
        for waiting in tuple(self._waiting):
            if waiting.producer in held or self.unknown_among(waiting.topics):
                if waiting.producer is not None:
                    held.add(waiting.producer)
            else:
                self._release(waiting)

    def _end(self, waiting: "_Waiting") -> None:
        """Release a request whose time is over or that was cancelled, and the requests that wait for it alone."""
        self._release(waiting)
        self._release_ready()

    def _read_failed(self, error: Exception) -> None:
        self._reading = False
        if not isinstance(error, SessionLostError):
            self._retries.schedule(self._read)

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
            _read_announcements(self._applied),
            self._zookeeper,
            self._scheduler,
            self._announcements_read,
            self._list_failed,
        ).start()

    def _announcements_read(self, found: tuple[str | None, tuple[tuple[str, str], ...]]) -> None:
        self._listing = False
        self._logged = ""
        self._retries.reset()
        self._applied, entities = found
        for kind, name in entities:
            if kind == "brokers":
                self._on_broker_announced(name)
            elif kind == "topics" and (not self.is_unread(name) or name in self._wanted):
                self._wanted[name] = None
                # The read in progress may have got the settings before the change.
                self._asked.discard(name)
        self._read()
        if self._list_again:
            self._list()

    def _list_failed(self, error: Exception) -> None:
        self._listing = False
        if not isinstance(error, SessionLostError):
            if str(error) != self._logged:
                self._logged = str(error)
                LOG.warning("changes of settings not read, trying again: error=%s", error)
            self._retries.schedule(self._list)


@dataclass(slots=True, eq=False)
class _Waiting:
    topics: dict[str, None]
    producer: Hashable
    then: Callable[[], None]
    timer: Cancellable | None = None


_Settings = Mapping[str, str] | MalformedZnodeError
"""Content of a topic's node."""


def parsed_settings(settings: _Settings, defaults: LogConfig) -> tuple[LogConfig | None, str | None]:
    """Return the settings in a topic's node, and why settings that control deletion are missing, if they are.

    An invalid key or value keeps its default, valid values apply. A node that cannot be parsed has no settings.
    """
    if isinstance(settings, MalformedZnodeError):
        return None, str(settings)
    try:
        return LogConfig.from_properties(settings, defaults), None
    except InvalidConfigError:
        pass
    config, problem = defaults, None
    for key in sorted(settings):
        try:
            config = LogConfig.from_properties({key: settings[key]}, config)
        except InvalidConfigError as error:
            if key in _DELETION_KEYS:
                problem = str(error)
    return config, problem


def read_known_settings(topics: Iterable[str], defaults: LogConfig) -> Flow[dict[str, LogConfig]]:
    """Return the settings of the topics whose deletion settings are all known, for loading their logs.

    A topic that is not in ZooKeeper is unknown: it was deleted, or ZooKeeper has lost its data.

    Raises:
        CoordinationError: ZooKeeper refused, or the session ended.
    """
    waiting = sorted(topics)
    found: dict[str, _Settings] = {}
    while waiting:
        found.update((yield from _read_configs(waiting[:_READS_AT_ONCE])))
        del waiting[:_READS_AT_ONCE]
    (listed,) = yield Zk([GetChildren(znodes.TOPICS)])
    expect(listed, znodes.TOPICS, ZkCode.NO_NODE)
    existing = frozenset(listed.children) if listed.ok else frozenset()
    known = {}
    for topic, settings in found.items():
        config, problem = parsed_settings(settings, defaults)
        if topic not in existing:
            problem = f"{znodes.TOPICS} does not list it"
        if config is not None and problem is None:
            known[topic] = config
        else:
            LOG.warning(
                "topic settings unknown, recovery keeps segments after a gap: topic=%s cause=%s", topic, problem
            )
    return known


def _read_configs(topics: list[str]) -> Flow[dict[str, _Settings]]:
    paths = [znodes.topic_config_path(topic) for topic in topics]
    responses: list[Response] = yield Zk([GetData(path) for path in paths])
    missing = [index for index, response in enumerate(responses) if response.code is ZkCode.NO_NODE]
    if missing:
        # The node is created with the topic, so the ZooKeeper server may lag; a check, which is a write, makes it
        # catch up.
        (checked,) = yield Zk([Multi((Check(paths[missing[0]], 0),))])
        expect(checked, paths[missing[0]], ZkCode.NO_NODE, ZkCode.BAD_VERSION)
        again: list[Response] = yield Zk([GetData(paths[index]) for index in missing])
        for index, response in zip(missing, again, strict=True):
            responses[index] = response
    found: dict[str, _Settings] = {}
    for topic, path, response in zip(topics, paths, responses, strict=True):
        expect(response, path, ZkCode.NO_NODE)
        try:
            found[topic] = znodes.decode_config(path, response.data) if response.ok else {}
        except MalformedZnodeError as error:
            found[topic] = error
    return found


def _read_announcements(applied: str | None) -> Flow[tuple[str | None, tuple[tuple[str, str], ...]]]:
    """Return the name of the latest announcement and the changes announced after ``applied``, with a watch."""
    (listed,) = yield Zk([GetChildren(znodes.CONFIG_CHANGES, watch=True)])
    expect(listed, znodes.CONFIG_CHANGES)
    # An invalid name could sort after every announcement to come.
    announced = sorted(child for child in listed.children if _ANNOUNCEMENT.fullmatch(child))
    if applied is not None and (not announced or announced[-1] < applied):
        # The latest announcements are never cleaned up: the node was deleted, and its numbers start again.
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
