"""Handle notifications of brokers in ZooKeeper: a leader has changed its ISR, or a log directory has failed.

Exactly the notifications that were listed are deleted, even when handling them failed.

Source: docs/protocol/zookeeper.md#notices-from-brokers; docs/protocol/controller.md#failed-log-directories.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from paceline.controller.brokers.lease_changes import relieve_silent_leaders
from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext, ReplicaState
from paceline.controller.errors import ControllerMovedError, IllegalStateError, UnexpectedResponseError
from paceline.controller.reassignment.reassignment import Reassignments
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.controller.state.replica_state_machine import ReplicaStateMachine
from paceline.controller.state.state_writer import StateWriter
from paceline.controller.state_change_log import StateChangeLog
from paceline.controller.zk_store import ZkStore
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.model.identifiers import TopicPartition

LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class IsrNotifications:
    """Handles the ISR changes that leaders report in ZooKeeper."""

    context: ControllerContext
    store: ZkStore
    writer: StateWriter
    log: StateChangeLog
    batch: RequestBatch
    partitions: PartitionStateMachine
    reassignments: Reassignments

    def on_isr_change_notification(self) -> Flow[None]:
        """Read the state nodes in the notifications into the cache, send the metadata, complete reassignments."""
        paths, notices = yield from _read(self.store, znodes.ISR_CHANGE_NOTIFICATION, znodes.decode_partition_set)
        if not paths:
            return
        changed = sorted({tp for notice in notices for tp in notice if self.context.knows(tp)})
        try:
            yield from self._refresh(changed)
            self.batch.send_update_metadata(self.context.brokers, changed)
            yield from self.reassignments.complete_finished_reassignments(changed)
            yield from relieve_silent_leaders(self.context, self.partitions, changed)
        except (ControllerMovedError, IllegalStateError):
            raise
        except Exception:
            LOG.exception("handling ISR changes failed: partitions=%d", len(changed))
        # After the notifications are deleted, standbys learn of the changes only from the journal. Include changes that
        # this controller had already read for another reason, because a standby may not have them.
        yield from self.writer.touch(changed)
        yield from self.store.delete_fenced(paths)

    def _refresh(self, topic_partitions: Sequence[TopicPartition]) -> Flow[None]:
        """Read states into the cache."""
        found = yield from self.store.partition_states(topic_partitions)
        for topic_partition, state in found.items():
            before = self.context.leadership.get(topic_partition)
            self.context.remember(topic_partition, state)
            if before is not None and set(before.isr) != set(state.isr):
                self.log.isr_changed(topic_partition, before.isr)

    def take_all_notifications(self) -> Flow[list[TopicPartition]]:
        """Delete all notifications at failover and return the partitions whose ISR changed, which are read next.

        A notification that ZooKeeper refuses to delete stays; each later controller reads its partitions again.

        The partitions are written to the journal before the notifications are deleted: this controller reads their
        states in any case, but a standby that takes over next knows only from the journal that its copy is out of date.
        """
        names = yield from self.store.children(znodes.LOG_DIR_EVENT_NOTIFICATION, watch=True)
        yield from _delete(self.store, [f"{znodes.LOG_DIR_EVENT_NOTIFICATION}/{name}" for name in sorted(names)])
        paths, notices = yield from _read(self.store, znodes.ISR_CHANGE_NOTIFICATION, znodes.decode_partition_set)
        noticed = sorted({topic_partition for notice in notices for topic_partition in notice})
        yield from self.writer.touch(noticed)
        yield from _delete(self.store, paths)
        return noticed


def on_log_dir_event(context: ControllerContext, store: ZkStore, replicas: ReplicaStateMachine) -> Flow[None]:
    """Ask brokers which replicas they have lost, by resending LeaderAndIsr for all their replicas."""
    paths, broker_ids = yield from _read(store, znodes.LOG_DIR_EVENT_NOTIFICATION, znodes.decode_log_dir_event)
    if not paths:
        return
    hosted = context.replicas_on(broker_ids)
    new = [replica for replica in hosted if context.replica_state(replica) is ReplicaState.NEW]
    # Include replicas added by a reassignment, which may lead; they get no request on the move to OnlineReplica.
    yield from replicas.handle_state_changes(new, ReplicaState.ONLINE)
    yield from replicas.handle_state_changes(hosted, ReplicaState.ONLINE)
    yield from store.delete_fenced(paths)


def _delete(store: ZkStore, paths: Sequence[str]) -> Flow[None]:
    try:
        yield from store.delete_fenced(paths)
    except UnexpectedResponseError as error:
        LOG.error("notification not deleted, ZooKeeper refused: error=%s", error)


def _read(store: ZkStore, parent: str, decode: Callable[[str, bytes | None], T]) -> Flow[tuple[list[str], list[T]]]:
    """List notifications, with a watch, and read them; a malformed notification is only deleted."""
    names = yield from store.children(parent, watch=True)
    paths = [f"{parent}/{name}" for name in sorted(names)]
    responses = yield from store.read_all(paths)
    notices = []
    for path, response in zip(paths, responses, strict=True):
        if not response.ok:
            continue
        try:
            notices.append(decode(path, response.data))
        except MalformedZnodeError as error:
            LOG.warning("malformed notification dropped: error=%s", error)
    return paths, notices
