"""Notices brokers leave in ZooKeeper: leaders changed their ISR, log directories failed.

Only the notices that were listed are deleted, and also when handling them failed (trap 8 of spec/zookeeper.md).

Source: spec/zookeeper.md section 7; spec/controller.md section 10.3.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from paceline.controller.context import ReplicaState
from paceline.controller.failures import ControllerMovedError, IllegalStateError
from paceline.controller.parts import ControllerParts
from paceline.controller.reassignment import complete_finished_reassignments
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.model.identifiers import TopicPartition
from paceline.runtime.flow import Flow

LOG = logging.getLogger(__name__)
T = TypeVar("T")


def on_isr_change_notification(parts: ControllerParts) -> Flow[None]:
    """Refresh the cache from the state nodes named, spread the metadata, finish reassignments."""
    paths, notices = yield from _read(parts, znodes.ISR_CHANGE_NOTIFICATION, znodes.decode_partition_set)
    if not paths:
        return
    changed = sorted({tp for notice in notices for tp in notice if parts.context.knows(tp)})
    try:
        yield from _refresh(parts, changed)
        parts.send_update_metadata(parts.context.brokers, changed)
        yield from complete_finished_reassignments(parts, changed)
    except (ControllerMovedError, IllegalStateError):
        raise
    except Exception:
        LOG.exception("handling %d ISR changes failed", len(changed))
    yield from parts.storage.delete_fenced(paths)


def _refresh(parts: ControllerParts, topic_partitions: Sequence[TopicPartition]) -> Flow[None]:
    found = yield from parts.storage.partition_states(topic_partitions)
    for topic_partition, state in found.items():
        parts.context.remember(topic_partition, state)


def on_log_dir_event(parts: ControllerParts) -> Flow[None]:
    """Ask the brokers named, by repeating what they host, which replicas they have lost."""
    paths, broker_ids = yield from _read(parts, znodes.LOG_DIR_EVENT_NOTIFICATION, znodes.decode_log_dir_event)
    if not paths:
        return
    hosted = parts.context.replicas_on(broker_ids)
    yield from parts.replicas.handle_state_changes(hosted, ReplicaState.ONLINE)
    yield from parts.storage.delete_fenced(paths)


def delete_all_notifications(parts: ControllerParts) -> Flow[None]:
    """Empty both directories at failover: the full load that follows makes older notices redundant."""
    for parent in (znodes.LOG_DIR_EVENT_NOTIFICATION, znodes.ISR_CHANGE_NOTIFICATION):
        names = yield from parts.storage.children(parent, watch=True)
        yield from parts.storage.delete_fenced([f"{parent}/{name}" for name in sorted(names)])


def _read(
    parts: ControllerParts, parent: str, decode: Callable[[str, bytes | None], T]
) -> Flow[tuple[list[str], list[T]]]:
    """List notices, watched, and read them; a malformed one is only going to be deleted."""
    names = yield from parts.storage.children(parent, watch=True)
    paths = [f"{parent}/{name}" for name in sorted(names)]
    responses = yield from parts.storage.read_all(paths)
    notices = []
    for path, response in zip(paths, responses, strict=True):
        if not response.ok:
            continue
        try:
            notices.append(decode(path, response.data))
        except MalformedZnodeError:
            LOG.warning("a malformed notice is dropped", exc_info=True)
    return paths, notices
