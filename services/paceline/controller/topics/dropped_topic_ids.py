"""Restore topic ids that were removed from ZooKeeper while no controller had them in memory.

Kafka's tools before 2.8 rewrite a topic's node without the id. The replicas still have it in ``partition.metadata``,
and brokers return it in their answers to a LeaderAndIsr without an id.

Source: docs/protocol/controller.md#topic-changes; KIP-516.
"""

import logging

from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext, Replica
from paceline.controller.errors import UnexpectedResponseError
from paceline.controller.events import LeaderAndIsrResponseReceived
from paceline.controller.zk_store import ZkStore
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition

LOG = logging.getLogger(__name__)


def note_log_topic_ids(
    context: ControllerContext, store: ZkStore, batch: RequestBatch, event: LeaderAndIsrResponseReceived
) -> Flow[None]:
    """Store the ids of logs from an answer to LeaderAndIsr, and restore the id of each topic that is now certain."""
    topics: set[str] = set()
    for partition in event.request.partitions:
        topic_partition = partition.topic_partition
        error = event.response.partition_errors.get(topic_partition)
        if partition.topic_id is not None or error not in (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH):
            continue
        if context.knows(topic_partition) and context.topic_ids.get(topic_partition.topic) is None:
            replica = Replica(topic_partition, event.broker_id)
            context.log_topic_ids[replica] = event.response.topic_ids.get(topic_partition)
            topics.add(topic_partition.topic)
    for topic in sorted(topics):
        topic_id = agreed_topic_id(context, topic)
        if topic_id is not None and (yield from _write(context, store, topic, topic_id)):
            _publish(context, batch, topic, topic_id)


def agreed_topic_id(context: ControllerContext, topic: str) -> str | None:
    """Return the topic id of the topic's logs, None while it is not certain.

    It is certain when every ISR member of every partition with a leader has answered, and all logs with an id have the
    same id. A broker sets a log with another id aside, so a wrong id would lose the records of an ISR member.
    """
    found: set[str] = set()
    for index in context.topics[topic]:
        topic_partition = TopicPartition(topic, index)
        state = context.leadership.get(topic_partition)
        if state is None or not state.has_leader:
            continue
        for member in state.isr:
            replica = Replica(topic_partition, member)
            if replica not in context.log_topic_ids:
                return None
            topic_id = context.log_topic_ids[replica]
            if topic_id is not None:
                found.add(topic_id)
    if len(found) > 1:
        LOG.error("topic id not restored, logs disagree: topic=%s ids=%s", topic, ",".join(sorted(found)))
    return found.pop() if len(found) == 1 else None


def _write(context: ControllerContext, store: ZkStore, topic: str, topic_id: str) -> Flow[bool]:
    """Write the id into the topic's node, unless the node has changed; return whether the id was written."""
    if context.is_queued_for_deletion(topic):
        return False  # Responses to StopReplica are compared with the id in the requests.
    path = znodes.topic_path(topic)
    (found,) = yield from store.read_all([path])
    try:
        node = znodes.decode_topic_assignment(path, found.data)
    except MalformedZnodeError:
        return False
    if found.stat is None or node.topic_id is not None:
        return False
    # A re-created topic may have the node version of the deleted topic, but it has no state node yet: check one.
    states = [
        znodes.partition_state_path(TopicPartition(topic, index))
        for index in context.topics[topic]
        if TopicPartition(topic, index) in context.leadership
    ]
    try:
        yield from store.write_topic(topic, topic_id, dict(node.partitions), found.stat.version, states[:1])
    except UnexpectedResponseError as error:
        LOG.warning("topic id not restored: topic=%s id=%s cause=%s", topic, topic_id, error)
        return False
    return True


def _publish(context: ControllerContext, batch: RequestBatch, topic: str, topic_id: str) -> None:
    """Store the id in the context, and send it to brokers and standby controllers."""
    LOG.warning("topic id restored from the logs of its replicas: topic=%s id=%s", topic, topic_id)
    context.topic_ids[topic] = topic_id
    partitions = [TopicPartition(topic, index) for index in context.topics[topic]]
    for topic_partition in partitions:
        if topic_partition in context.leadership:
            context.changed[topic_partition] = None
        for broker_id in context.assignment(topic_partition).replicas:
            context.log_topic_ids.pop(Replica(topic_partition, broker_id), None)
    batch.send_update_metadata(context.brokers, partitions)
