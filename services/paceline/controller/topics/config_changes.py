"""Report changed configuration, and elect leaders after ``unclean.leader.election.enable`` was set.

Kafka's controller learns this from the broker in its process; Paceline's controller watches ``/config/changes``.

Source: docs/protocol/controller.md#configuration-changes.
"""

import logging
from collections.abc import Iterable, Sequence

from paceline.controller.components import ControllerComponents
from paceline.controller.events import ConfigChange
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.coordination.interface import ZkCode
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


def watch_config_changes(components: ControllerComponents) -> Flow[None]:
    """Watch for future changes and skip the present ones: every election reads the current configuration anyway."""
    names = yield from components.store.children(znodes.CONFIG_CHANGES, watch=True)
    components.context.config_changes_seen.update(dict.fromkeys(names, components.scheduler.now_ms()))


def on_config_change(components: ControllerComponents) -> Flow[None]:
    """Read new notifications, with a watch, and elect leaders where an unclean election has become allowed."""
    names = yield from components.store.children(znodes.CONFIG_CHANGES, watch=True)
    ordered, now_ms = sorted(names), components.scheduler.now_ms()
    seen = components.context.config_changes_seen
    new = [name for name in ordered if name not in seen]
    first_seen_ms = {name: seen.get(name, now_ms) for name in ordered}
    # If this event fails, the next one handles the changes.
    retry = components.scheduler.call_later(RETRY_MS, lambda: components.enqueue(ConfigChange()))
    if components.context.config_changes_retry is not None:
        components.context.config_changes_retry.cancel()
    components.context.config_changes_retry = retry
    changes, unread = yield from _read(components, new)
    refused: set[str] = set()
    topics = {entity.removeprefix("topics/") for entity in changes.values() if entity.startswith("topics/")}
    allowed = yield from components.election_settings.allowed_topics(topics & components.context.topics.keys(), refused)
    unread.update(name for name, entity in changes.items() if entity.removeprefix("topics/") in refused)
    entities = dict.fromkeys(entity for name, entity in changes.items() if name not in unread)
    _report(components, entities)
    if ALL_BROKERS in entities:
        yield from components.partitions.trigger_online()
    for topic in sorted(allowed):
        yield from components.partitions.trigger_online(topic)
    seen.clear()
    seen.update((name, seen_ms) for name, seen_ms in first_seen_ms.items() if name not in unread)
    if unread:
        LOG.warning("changed configurations not read, trying again: notifications=%s", sorted(unread))
    else:
        retry.cancel()
    # Delete last, because ZooKeeper may refuse a deletion.
    old = [name for name in ordered[:-NOTICES_KEPT] if now_ms - first_seen_ms[name] >= NOTICE_KEPT_MS]
    unwanted = dict.fromkeys([*ordered[:-NOTICES_AT_MOST], *old])
    yield from components.store.delete_fenced(f"{znodes.CONFIG_CHANGES}/{name}" for name in unwanted)


def _report(components: ControllerComponents, entities: Iterable[str]) -> None:
    """Record the changed configurations of known topics and live brokers; skip other names."""
    for entity in entities:
        kind, _, name = entity.partition("/")
        if kind == "topics" and name in components.context.topics:
            components.log.note(StateChangeKind.TOPIC_CONFIGURED, topic=name)
        for broker_id in components.context.live_broker_ids() if kind == "brokers" else ():
            if entity == ALL_BROKERS or name == str(broker_id):
                components.log.note(StateChangeKind.BROKER_CONFIGURED, broker_id)


def _read(components: ControllerComponents, names: Sequence[str]) -> Flow[tuple[dict[str, str], set[str]]]:
    """Return the changed entity of each notification, and the notifications that ZooKeeper refused to read."""
    paths = [f"{znodes.CONFIG_CHANGES}/{name}" for name in names]
    responses = yield from components.store.read_all(paths)
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
