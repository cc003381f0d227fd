"""Delete topics: stop every replica, delete its log, then the topic's nodes, the marker last.

All steps may be repeated: `resume` is called after every change that could unblock a deletion. A deletion never waits
for a reassignment: during the deletion there is no leader, so no new replica could join the ISR, and the two would wait
for each other forever. Kafka halts such a topic at failover, and its deletion hangs.

Source: docs/protocol/controller.md#topic-deletion; Kafka 2.8 TopicDeletionManager.scala.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext, PartitionState, Replica, ReplicaState
from paceline.controller.errors import UnexpectedResponseError
from paceline.controller.events import StopReplicaDeletionResponseReceived
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.controller.state.replica_state_machine import ReplicaStateMachine
from paceline.controller.zk_store import TREE_ATTEMPTS, ZkStore, first_failure
from paceline.coordination import znodes
from paceline.coordination.flow import Flow
from paceline.coordination.interface import Delete, ZkCode
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import EPOCH_DURING_DELETE, TopicPartition
from paceline.model.settings import ControllerConfig

LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class TopicDeletionManager:
    """Deletes topics that are marked for deletion."""

    _config: ControllerConfig
    _context: ControllerContext
    _store: ZkStore
    _partitions: PartitionStateMachine
    _replicas: ReplicaStateMachine
    _batch: RequestBatch
    _on_deleted: Callable[[str, bool], None]

    # entry points

    def start(self, marked: Iterable[str], ineligible: Iterable[str]) -> Flow[None]:
        """Queue the topics marked at failover."""
        if not self._config.delete_topic_enable:
            yield from self.remove_markers(marked)
            return
        self._context.deletion_queued.update(marked)
        self._context.deletion_ineligible.update(set(ineligible) & self._context.deletion_queued)

    def on_markers(self, look_at_topics: Callable[[], Flow[None]]) -> Flow[None]:
        """Handle the children of ``/admin/delete_topics``.

        `look_at_topics` compares the topics in ZooKeeper with the known topics. A marker of an unknown topic may belong
        to a topic that was just created, whose event is still queued: look for the topic before deleting its marker.
        """
        names = yield from self._store.children(znodes.DELETE_TOPICS, watch=True)
        marked = sorted(names)
        if any(topic not in self._context.topics for topic in marked):
            yield from look_at_topics()
        unknown = [topic for topic in marked if topic not in self._context.topics]
        if unknown:
            yield from self.remove_markers(unknown)
        known = [topic for topic in marked if topic in self._context.topics]
        if not known:
            return
        if not self._config.delete_topic_enable:
            yield from self.remove_markers(known)
            return
        self._context.deletion_queued.update(known)
        yield from self.resume()

    def remove_markers(self, topics: Iterable[str]) -> Flow[None]:
        """Delete markers of topics that do not exist or must not be deleted."""
        yield from self._store.delete_fenced([znodes.delete_topic_path(topic) for topic in topics])

    def mark_ineligible(self, topics: Iterable[str]) -> None:
        """Halt the deletion of topics; topics that are not queued are unaffected."""
        self._context.deletion_ineligible.update(set(topics) & self._context.deletion_queued)

    def resume_topics(self, topics: Iterable[str]) -> Flow[None]:
        """Resume the deletion of topics after its obstacle was removed."""
        halted = set(topics) & self._context.deletion_queued
        if halted:
            self._context.deletion_ineligible -= halted
            yield from self.resume()

    def on_stop_replica_response(self, event: StopReplicaDeletionResponseReceived) -> Flow[None]:
        """Complete the deletion of replicas that a broker deleted; halt topics whose replicas could not be deleted."""
        context = self._context
        if not context.has_asked(event.broker_id, event.request.stamp):
            return
        failed: list[Replica] = []
        deleted: list[Replica] = []
        for partition in event.request.partitions:
            topic_partition = partition.topic_partition
            same_topic = context.topic_ids.get(topic_partition.topic) == partition.topic_id
            if not partition.delete_partition or not same_topic:
                continue
            if partition.leader_epoch != EPOCH_DURING_DELETE:
                continue  # The request belonged to a reassignment; the replica may have been added again since.
            error = event.response.partition_errors.get(topic_partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            ok = event.response.error is ErrorCode.NONE and error is ErrorCode.NONE
            (deleted if ok else failed).append(Replica(topic_partition, event.broker_id))
        yield from self.fail_replicas(failed)
        if deleted:
            yield from self.complete_replicas(deleted)

    def fail_replicas(self, replicas: Sequence[Replica]) -> Flow[None]:
        """Halt the deletion of topics with a failed replica until the replica's broker or log directory is online."""
        failed = [replica for replica in replicas if self._is_queued(replica)]
        if failed:
            yield from self._replicas.handle_state_changes(failed, ReplicaState.DELETION_INELIGIBLE)
            self.mark_ineligible({replica.topic_partition.topic for replica in failed})
            yield from self.resume()

    def complete_replicas(self, replicas: Sequence[Replica]) -> Flow[None]:
        """Record replicas that brokers have deleted."""
        context = self._context
        deleted = [replica for replica in replicas if self._is_queued(replica)]
        halted_states = (ReplicaState.DELETION_INELIGIBLE, ReplicaState.OFFLINE, ReplicaState.ONLINE)
        halted = {replica: None for replica in deleted if context.replica_state(replica) in halted_states}
        awaited = [replica for replica in deleted if replica not in halted]
        yield from self._replicas.handle_state_changes(awaited, ReplicaState.DELETION_SUCCESSFUL)
        self._unhalt(tuple(halted))
        yield from self.resume()

    def _unhalt(self, replicas: Sequence[Replica]) -> None:
        """Resume deletions that were halted because of replicas that brokers have since deleted.

        Such a replica was offline when its broker answered an earlier request. Without this call the deletion of its
        topic would never continue.
        """
        for replica in replicas:
            offline = self._context.on_offline_dirs.get(replica.broker_id, set())
            self._context.set_on_offline_dirs(replica.broker_id, offline - {replica.topic_partition})
        self._context.deletion_ineligible -= {replica.topic_partition.topic for replica in replicas}

    def resume(self) -> Flow[None]:
        """Perform the next step for every queued topic that is not halted."""
        if not self._config.delete_topic_enable:
            return
        context = self._context
        to_retry: list[Replica] = []
        to_start: list[str] = []
        for topic in sorted(context.deletion_queued):
            states = {context.replica_state(replica) for replica in context.replicas_of(topic)}
            if states <= {ReplicaState.DELETION_SUCCESSFUL}:
                try:
                    yield from self._complete(topic)
                except UnexpectedResponseError as error:
                    # The next step of any topic tries again; other topics do not wait.
                    LOG.error("topic nodes not deleted: topic=%s error=%s", topic, error)
                continue
            if ReplicaState.DELETION_STARTED in states:
                continue
            to_retry.extend(context.replicas_in_state(topic, ReplicaState.DELETION_INELIGIBLE))
            if topic not in context.deletion_ineligible:
                to_start.append(topic)
        if to_retry:
            yield from self._replicas.handle_state_changes(to_retry, ReplicaState.OFFLINE)
        if to_start:
            yield from self._start_topics(to_start)

    # steps

    def _is_queued(self, replica: Replica) -> bool:
        return self._context.is_queued_for_deletion(replica.topic_partition.topic)

    def _start_topics(self, topics: Sequence[str]) -> Flow[None]:
        context = self._context
        unseen = [topic for topic in topics if topic not in context.deletion_started]
        partitions = [tp for topic in unseen for tp in context.partitions_of(topic)]
        yield from self._partitions.handle_state_changes(partitions, PartitionState.OFFLINE)
        yield from self._partitions.handle_state_changes(partitions, PartitionState.NON_EXISTENT)
        context.deletion_started.update(unseen)
        self._batch.send_update_metadata(
            context.brokers, [tp for topic in topics for tp in context.partitions_of(topic)]
        )
        dead: list[Replica] = []
        to_delete: list[Replica] = []
        for topic in topics:
            for replica in context.replicas_of(topic):
                if not context.is_replica_online(replica.broker_id, replica.topic_partition):
                    dead.append(replica)
                elif context.replica_state(replica) is not ReplicaState.DELETION_SUCCESSFUL:
                    to_delete.append(replica)
        yield from self._replicas.handle_state_changes(dead, ReplicaState.DELETION_INELIGIBLE)
        yield from self._replicas.handle_state_changes(to_delete, ReplicaState.OFFLINE)
        yield from self._replicas.handle_state_changes(to_delete, ReplicaState.DELETION_STARTED)
        self.mark_ineligible({replica.topic_partition.topic for replica in dead})

    def _complete(self, topic: str) -> Flow[None]:
        deleted = self._context.replicas_in_state(topic, ReplicaState.DELETION_SUCCESSFUL)
        yield from self._replicas.handle_state_changes(deleted, ReplicaState.NON_EXISTENT)
        yield from self._delete_nodes(topic)
        was_being_reassigned = any(tp.topic == topic for tp in self._context.being_reassigned)
        self._context.drop_topic(topic)
        self._on_deleted(topic, was_being_reassigned)

    # nodes

    def _delete_nodes(self, topic: str) -> Flow[None]:
        """Delete tree, configuration and marker in this order, so that the next controller resumes after a crash."""
        partitions = [tp.partition for tp in self._context.partitions_of(topic)]
        guess = self._tree(topic, partitions)
        gone = yield from self._delete_leaves_first(guess)
        for _ in range(TREE_ATTEMPTS):
            if gone:
                break
            if (yield from self._was_recreated(topic)):
                raise UnexpectedResponseError(ZkCode.NODE_EXISTS, f"delete {topic}, which was re-created,")
            actual = yield from self._store.tree(znodes.topic_path(topic))
            gone = yield from self._delete_leaves_first(actual)
        if not gone:
            raise UnexpectedResponseError(ZkCode.NOT_EMPTY, f"delete {znodes.topic_path(topic)}")
        yield from self._store.delete_fenced([znodes.topic_config_path(topic)])
        yield from self._store.delete_fenced([znodes.delete_topic_path(topic)])

    def _was_recreated(self, topic: str) -> Flow[bool]:
        """Whether the topic was re-created, with its event still queued."""
        found = yield from self._store.topic_nodes([topic])
        known_id = self._context.topic_ids.get(topic)
        found_id = found[topic].topic_id if topic in found else None
        return bool(known_id and found_id and found_id != known_id)

    @staticmethod
    def _tree(topic: str, partitions: Iterable[int]) -> list[str]:
        """Return the usual nodes of a topic, leaves first."""
        paths = []
        for partition in partitions:
            topic_partition = TopicPartition(topic, partition)
            paths.append(znodes.partition_state_path(topic_partition))
            paths.append(znodes.partition_path(topic_partition))
        return [*paths, znodes.topic_partitions_path(topic), znodes.topic_path(topic)]

    def _delete_leaves_first(self, paths: Sequence[str]) -> Flow[bool]:
        """Delete nodes in order, many per multi; return False when a node was missing or not empty."""
        limit = max(1, self._config.zookeeper_multi_max_operations - 1)
        for start in range(0, len(paths), limit):
            multi = self._store.fenced(*(Delete(path) for path in paths[start : start + limit]))
            (response,) = yield from self._store.send_fenced([multi])
            if response.ok:
                continue
            code = first_failure(response)[1]
            if code not in (ZkCode.NO_NODE, ZkCode.NOT_EMPTY):
                raise UnexpectedResponseError(code, f"delete {paths[-1]}")
            # If only the root was left and it is missing, an earlier attempt deleted it and the response was lost.
            return code is ZkCode.NO_NODE and len(paths) == 1
        return True
