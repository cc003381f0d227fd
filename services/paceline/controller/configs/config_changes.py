"""Report changed configuration, and elect leaders after ``unclean.leader.election.enable`` was set.

Kafka's controller learns this from the broker in its process; Paceline's controller watches ``/config/changes``.

Source: docs/protocol/controller.md#configuration-changes.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paceline.controller.configs.broker_configs import read_removals
from paceline.controller.context import ControllerContext
from paceline.controller.events import ConfigChange, Event
from paceline.controller.state.election_settings import ElectionSettings
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.controller.state_change_log import StateChangeLog
from paceline.controller.zk_store import ZkStore
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.coordination.interface import ZkCode
from paceline.model.scheduler import Scheduler
from paceline.model.state_change import StateChangeKind

LOG = logging.getLogger(__name__)

ALL_BROKERS = "brokers/<default>"
NOTICES_KEPT = 1_000
"""Number of notifications above which those older than `NOTICE_KEPT_MS` are deleted."""
NOTICE_KEPT_MS = 15 * 60 * 1_000
"""As in Kafka. A request may change thousands of resources: without this time its first notifications would be deleted
before a broker has read them. A broker that was disconnected for so long has a new session and reads all settings."""
NOTICES_AT_MOST = 20_000
"""Number of notifications above which even young notifications are deleted: their names must fit ``jute.maxbuffer`` of
1 MiB."""
RETRY_MS = 10_000
"""Pause before another attempt to handle changes that failed or that ZooKeeper refused to read."""


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """Handles the notifications under ``/config/changes``."""

    context: ControllerContext
    store: ZkStore
    scheduler: Scheduler
    log: StateChangeLog
    election_settings: ElectionSettings
    partitions: PartitionStateMachine
    enqueue: Callable[[Event], None]

    def watch_config_changes(self) -> Flow[None]:
        """Watch for future changes and skip the present ones: every election reads the current configuration anyway."""
        names = yield from self.store.children(znodes.CONFIG_CHANGES, watch=True)
        self.context.config_changes_seen.update(dict.fromkeys(names, self.scheduler.now_ms()))

    def on_config_change(self) -> Flow[None]:
        """Read new notifications, with a watch, and elect leaders where an unclean election has become allowed."""
        names = yield from self.store.children(znodes.CONFIG_CHANGES, watch=True)
        ordered, now_ms = sorted(names), self.scheduler.now_ms()
        seen = self.context.config_changes_seen
        new = [name for name in ordered if name not in seen]
        first_seen_ms = {name: seen.get(name, now_ms) for name in ordered}
        # If this event fails, the next one handles the changes.
        retry = self.scheduler.call_later(RETRY_MS, lambda: self.enqueue(ConfigChange()))
        if self.context.config_changes_retry is not None:
            self.context.config_changes_retry.cancel()
        self.context.config_changes_retry = retry
        changes, unread = yield from self._read(new)
        refused: set[str] = set()
        topics = {entity.removeprefix("topics/") for entity in changes.values() if entity.startswith("topics/")}
        allowed = yield from self.election_settings.allowed_topics(topics & self.context.topics.keys(), refused)
        unread.update(name for name, entity in changes.items() if entity.removeprefix("topics/") in refused)
        entities = dict.fromkeys(entity for name, entity in changes.items() if name not in unread)
        self._report(entities)
        if any(entity.startswith("brokers/") for entity in entities):
            yield from read_removals(self.context, self.store)
        if ALL_BROKERS in entities:
            yield from self.partitions.trigger_online()
        for topic in sorted(allowed):
            yield from self.partitions.trigger_online(topic)
        seen.clear()
        seen.update((name, seen_ms) for name, seen_ms in first_seen_ms.items() if name not in unread)
        if unread:
            LOG.warning("changed configurations not read, trying again: notifications=%s", sorted(unread))
        else:
            retry.cancel()
        # Delete last, because ZooKeeper may refuse a deletion.
        old = [name for name in ordered[:-NOTICES_KEPT] if now_ms - first_seen_ms[name] >= NOTICE_KEPT_MS]
        unwanted = dict.fromkeys([*ordered[:-NOTICES_AT_MOST], *old])
        yield from self.store.delete_fenced(f"{znodes.CONFIG_CHANGES}/{name}" for name in unwanted)

    def _report(self, entities: Iterable[str]) -> None:
        """Record the changed configurations of known topics and live brokers; skip other names."""
        for entity in entities:
            kind, _, name = entity.partition("/")
            if kind == "topics" and name in self.context.topics:
                self.log.note(StateChangeKind.TOPIC_CONFIGURED, topic=name)
            for broker_id in self.context.live_broker_ids() if kind == "brokers" else ():
                if entity == ALL_BROKERS or name == str(broker_id):
                    self.log.note(StateChangeKind.BROKER_CONFIGURED, broker_id)

    def _read(self, names: Sequence[str]) -> Flow[tuple[dict[str, str], set[str]]]:
        """Return the changed entity of each notification, and the notifications that ZooKeeper refused to read."""
        paths = [f"{znodes.CONFIG_CHANGES}/{name}" for name in names]
        responses = yield from self.store.read_all(paths)
        found, unread = {}, set()
        for name, path, response in zip(names, paths, responses, strict=True):
            if not response.ok:
                if response.code is not ZkCode.NO_NODE:
                    unread.add(name)
                continue
            try:
                found[name] = znodes.decode_config_change(path, response.data)
            except MalformedZnodeError as error:
                LOG.warning("malformed notification ignored: error=%s", error)
        return found, unread
