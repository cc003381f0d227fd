"""Write the assignment of one partition into the node of its topic, without losing what other tools have written."""

from collections.abc import Mapping

from paceline.controller.context import ControllerContext
from paceline.controller.errors import UnexpectedResponseError
from paceline.controller.zk_store import ZkStore
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.coordination.interface import ANY_VERSION, Response, ZkCode
from paceline.model.assignment import ReplicaAssignment
from paceline.model.identifiers import TopicPartition

WRITE_ATTEMPTS = 10
"""Attempts to rewrite a topic's node when another client writes it concurrently."""


def write_assignment(
    context: ControllerContext, store: ZkStore, topic_partition: TopicPartition, assignment: ReplicaAssignment
) -> Flow[None]:
    """Write a partition's assignment into the topic's node; keeps partitions that this controller does not know yet."""
    topic = topic_partition.topic
    path, topic_id = znodes.topic_path(topic), context.topic_ids.get(topic)
    for _ in range(WRITE_ATTEMPTS):
        (found,) = yield from store.read_all([path])
        added = _unknown_partitions(context, topic, path, found)
        partitions = {**added, **context.topics[topic], topic_partition.partition: assignment}
        version = ANY_VERSION if found.stat is None else found.stat.version
        # Check the state node, too: a re-created topic may have the node version of the deleted topic, but no state.
        state = [znodes.partition_state_path(topic_partition)] if topic_partition in context.leadership else []
        try:
            yield from store.write_topic(topic, topic_id, partitions, version, state)
            return
        except UnexpectedResponseError as failure:
            if failure.code is not ZkCode.BAD_VERSION:
                raise
    raise UnexpectedResponseError(ZkCode.BAD_VERSION, f"set {path}")


def _unknown_partitions(
    context: ControllerContext, topic: str, path: str, found: Response
) -> Mapping[int, ReplicaAssignment]:
    """Return partitions that another tool has added and whose event may still be queued."""
    if not found.ok:
        return {}
    try:
        node = znodes.decode_topic_assignment(path, found.data)
    except MalformedZnodeError:
        return {}
    known_id = context.topic_ids.get(topic)
    if known_id and node.topic_id and node.topic_id != known_id:
        raise UnexpectedResponseError(ZkCode.NO_NODE, f"set {path}, which belongs to a re-created topic,")
    known = context.topics[topic]
    return {partition: node.partitions[partition] for partition in node.partitions if partition not in known}
