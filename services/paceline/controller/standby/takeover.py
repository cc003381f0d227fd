"""Load partition states at failover: a standby's copy is verified instead of reading all states.

``/controller_journal`` is read under the new epoch, when no earlier controller can change it any more. A copy that has
reached the journal's sequence is complete, except for ISR changes written by leaders; conditional writes detect these
changes later, as for any active controller. If no later notification would report a change, the state is read from
ZooKeeper: for partitions in a pending notification, partitions led by a broker that has registered since the copy,
partitions being reassigned, and topics marked for deletion.

Source: docs/protocol/controller.md#warm-standby; docs/decisions/0009-warm-standbys.md.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from paceline.controller.context import ControllerContext
from paceline.controller.errors import UnexpectedResponseError
from paceline.controller.standby.standby import StateMirror
from paceline.controller.state.journal import ControllerJournal
from paceline.controller.zk_store import ZkStore, first_failure, send
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.coordination.interface import Create, GetData, SetData, ZkCode
from paceline.coordination.znodes.journal import JournalEntry, decode_journal, first_sequence
from paceline.model.identifiers import TopicPartition

LOG = logging.getLogger(__name__)


class TakeoverKind(Enum):
    """How a new controller obtained the partition states."""

    WARM = "warm"
    """From its copy, which had the journal's sequence."""
    BEHIND = "behind"
    """From its copy; the partitions that the journal lists as changed since then were read."""
    COLD = "cold"
    """From ZooKeeper: all states were read."""


@dataclass(frozen=True, slots=True)
class StatesLoaded:
    """Result of loading the states."""

    kind: TakeoverKind
    reason: str
    """Why the takeover was not warm; empty for a warm takeover."""
    partitions: int
    states_read: int
    """Number of states read from ZooKeeper."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """A completed failover."""

    states: StatesLoaded
    elapsed_ms: int
    """Time from the creation of ``/controller`` until all requests were queued."""


def read_journal(context: ControllerContext, store: ZkStore, journal: ControllerJournal) -> Flow[JournalEntry | None]:
    """Read the journal and continue it; if it is missing or unusable, create a new journal and return None."""
    path = znodes.CONTROLLER_JOURNAL
    (response,) = yield from send([GetData(path)])
    epoch = context.epoch
    found: JournalEntry | None = None
    if response.ok:
        try:
            found = decode_journal(path, response.data)
            if found.sequence >= first_sequence(epoch):
                raise MalformedZnodeError(path, f"sequence {found.sequence} is newer than epoch {epoch}")
        except MalformedZnodeError as error:
            found = None
            LOG.warning("journal unusable, reading all partition states: error=%s", error)
    elif response.code is not ZkCode.NO_NODE:
        raise UnexpectedResponseError(response.code, f"read {path}")
    journal.begin(epoch, found)
    if found is None:
        yield from _restart_journal(store, journal, exists=response.ok)
    return found


def _restart_journal(store: ZkStore, journal: ControllerJournal, exists: bool) -> Flow[None]:
    operation: Create | SetData = journal.restart() if exists else journal.forget()
    (answer,) = yield from store.send_fenced([store.fenced(operation)])
    if not answer.ok and first_failure(answer)[1] is not ZkCode.NODE_EXISTS:
        raise UnexpectedResponseError(first_failure(answer)[1], f"write {znodes.CONTROLLER_JOURNAL}")
    # NODE_EXISTS: an earlier attempt of this request was applied and its answer was lost.
    journal.confirm(journal.sequence)
    journal.settle()


def load_states(
    context: ControllerContext,
    store: ZkStore,
    mirror: StateMirror | None,
    journal: JournalEntry | None,
    topic_partitions: Sequence[TopicPartition],
    noticed: Iterable[TopicPartition],
    marked_topics: Collection[str],
) -> Flow[StatesLoaded]:
    """Fill the context's leadership from the copy where it is valid, and from ZooKeeper otherwise."""
    kind, reason = _judge(mirror, journal)
    to_read: Sequence[TopicPartition] = topic_partitions
    if kind is not TakeoverKind.COLD and mirror is not None and journal is not None:
        doubtful = {*noticed, *context.being_reassigned}
        if kind is TakeoverKind.BEHIND:
            doubtful.update(journal.touched_after(mirror.sequence or 0))
        to_read = take_from_mirror(context, mirror, topic_partitions, doubtful, marked_topics)
    states = yield from store.partition_states(to_read)
    for topic_partition, state in states.items():
        context.remember(topic_partition, state)
    return StatesLoaded(kind, reason, len(context.leadership), len(to_read))


def _judge(mirror: StateMirror | None, journal: JournalEntry | None) -> tuple[TakeoverKind, str]:
    if mirror is None or mirror.sequence is None:
        return TakeoverKind.COLD, "this process has no copy of the state of an active controller"
    if journal is None:
        return TakeoverKind.COLD, "there is no journal to verify the copy"
    if mirror.sequence == journal.sequence:
        return TakeoverKind.WARM, ""
    behind = f"the copy has sequence {mirror.sequence}, the journal has {journal.sequence}"
    if journal.since <= mirror.sequence < journal.sequence:
        return TakeoverKind.BEHIND, behind
    return TakeoverKind.COLD, f"{behind} and only the changes after {journal.since}"


def take_from_mirror(
    context: ControllerContext,
    mirror: StateMirror,
    topic_partitions: Sequence[TopicPartition],
    doubtful: Collection[TopicPartition],
    marked_topics: Collection[str],
) -> list[TopicPartition]:
    """Put the valid states of the copy into the context; return the partitions that must be read from ZooKeeper."""
    # A leader with an earlier registration may have written its ISR without a notification.
    known_epochs = mirror.broker_epochs
    unchanged = {b for b, broker in context.brokers.items() if known_epochs.get(b) == broker.broker_epoch}
    registered = context.brokers
    to_read: list[TopicPartition] = []
    for topic_partition in topic_partitions:
        topic, partition = topic_partition
        known = mirror.topics.get(topic)
        state = None
        if known is not None and known.topic_id == context.topic_ids.get(topic) and topic not in marked_topics:
            state = known.states.get(partition)
        if (
            state is None
            or topic_partition in doubtful
            or (state.leader in registered and state.leader not in unchanged)
        ):
            to_read.append(topic_partition)
            continue
        context.leadership[topic_partition] = state
        extra = known.extras.get(partition) if known is not None and known.extras else None
        if extra:
            context.state_extras[topic_partition] = extra
    return to_read
