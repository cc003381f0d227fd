"""Rewrite the states of many partitions; retry a write that failed because a leader wrote the state concurrently."""

import logging
from collections.abc import Callable, Iterable

from paceline.controller.context import ControllerContext
from paceline.controller.errors import UnexpectedResponseError
from paceline.controller.state.state_writer import StateWrite, StateWriter
from paceline.coordination.flow import Flow
from paceline.coordination.interface import ZkCode
from paceline.model.identifiers import TopicPartition

LOG = logging.getLogger(__name__)


def rewrite_states(
    context: ControllerContext,
    writer: StateWriter,
    topic_partitions: Iterable[TopicPartition],
    change: Callable[[TopicPartition], StateWrite | None],
) -> Flow[list[TopicPartition]]:
    """Write the states returned by ``change``; return the partitions that were written.

    After a concurrent write of a leader, ``change`` is called again with the state that was read into the context.

    Raises:
        ControllerMovedError: the fence failed.
        UnexpectedResponseError: ZooKeeper refused to write a state; all other states were written.
    """
    written: list[TopicPartition] = []
    refused: dict[TopicPartition, ZkCode] = {}
    remaining = list(topic_partitions)
    limit = writer.chunk_limit
    while remaining:
        writes = [write for write in map(change, remaining) if write is not None and _is_ours(context, write)]
        if not writes:
            break
        outcome = yield from writer.commit(writes, limit)
        for topic_partition, state in outcome.written.items():
            context.remember(topic_partition, state)
            written.append(topic_partition)
        refused.update(outcome.refused)
        remaining = []
        for topic_partition, found in outcome.conflicted.items():
            if found is None:
                context.forget_leadership(topic_partition)
            else:
                context.remember(topic_partition, found)
                remaining.append(topic_partition)
        limit = max(1, limit // 2)
    for topic_partition, code in refused.items():
        raise UnexpectedResponseError(code, f"write the state of {topic_partition}")
    return written


def _is_ours(context: ControllerContext, write: StateWrite) -> bool:
    known = context.leadership[write.topic_partition]
    if known.controller_epoch <= context.epoch:
        return True
    LOG.error("state was written by a newer controller: partition=%s state=%s", write.topic_partition, known)
    return False
