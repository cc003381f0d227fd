"""A durable queue of orders for one broker, by which a leader made followers start and close replicas.

Each broker had a node with persistent sequential children, one per order. A broker found its orders after a restart.
This is why closing a replica needs no current epoch and survives a full queue, while starting a replica needs the epoch
and does not survive. Today's queue is unbounded and lives as long as the broker's registration: a broker that returns
gets the complete state, and a deletion, which must survive all processes, has its own node (``/admin/delete_topics``).

Source: docs/origins.md, rows S0-1 to S0-5 and S1-15; Kafka before KAFKA-343, ZkQueue.scala and
StateChangeCommandHandler.scala.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from paceline.model.identifiers import TopicPartition

LOG = logging.getLogger(__name__)

DEFAULT_QUEUE_SIZE = 1_000
"""Maximum number of waiting orders of one broker (``state.change.queue.size``)."""

ADMIN_EPOCH = -1
"""Epoch of an administrator's orders; a start with this epoch is always executed."""


class FollowerStateChangeQueueFullError(Exception):
    """The queue has only close orders of distinct partitions, so no order can be dropped for a new order."""


class IllegalStateChangeError(Exception):
    """The epoch of an order is newer than its partition's leader epoch."""


class MalformedStateChangeError(ValueError):
    """A child of the queue is not an order."""


class Order(Enum):
    """Kind of an order."""

    START_REPLICA = "start-replica"
    CLOSE_REPLICA = "close-replica"


@dataclass(frozen=True, slots=True)
class StateChange:
    """An order."""

    order: Order
    topic_partition: TopicPartition
    epoch: int
    """Epoch of the leader that created it, or `ADMIN_EPOCH`."""

    def encode(self) -> bytes:
        """Return the data of the order's node; every value is a string, as in the original."""
        topic, partition = self.topic_partition
        fields = {"state": self.order.value, "topic": topic, "partition": str(partition), "epoch": str(self.epoch)}
        return json.dumps(fields).encode("utf-8")

    @staticmethod
    def decode(data: bytes | None) -> "StateChange":
        """Return the order in a node's data.

        Raises:
            MalformedStateChangeError: it is something else.
        """
        try:
            fields = json.loads(data or b"")
            topic_partition = TopicPartition(str(fields["topic"]), int(fields["partition"]))
            return StateChange(Order(fields["state"]), topic_partition, int(fields["epoch"]))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise MalformedStateChangeError(f"not an order: {(data or b'')[:100]!r}") from error


class QueuedChange(NamedTuple):
    """An order and the name of its child node; names ascend in the order of creation."""

    name: str
    change: StateChange


class SequentialNodes(Protocol):
    """Persistent sequential children of one node."""

    def append(self, data: bytes) -> str:
        """Create the next child and return its name."""

    def names(self) -> Sequence[str]:
        """Return the children's names, in any order."""

    def read(self, name: str) -> bytes | None:
        """Return a child's data."""

    def delete(self, name: str) -> None:
        """Delete a child, if it exists."""


def kept_when_full(queued: Sequence[QueuedChange]) -> list[QueuedChange]:
    """Return the orders that a full queue keeps: per partition the close with the highest epoch, no start, in order.

    A leader can repeat a start, but a close may be the last order about a deleted topic. Among closes of one epoch, the
    latest stays: it is a repetition of the same order.
    """
    newest: dict[TopicPartition, QueuedChange] = {}
    for entry in queued:
        if entry.change.order is not Order.CLOSE_REPLICA:
            continue
        known = newest.get(entry.change.topic_partition)
        if known is None or entry.change.epoch >= known.change.epoch:
            newest[entry.change.topic_partition] = entry
    return [entry for entry in queued if newest.get(entry.change.topic_partition) == entry]


class StateChangeQueue:
    """The queue of one broker, for sender and receiver."""

    def __init__(self, nodes: SequentialNodes, size: int = DEFAULT_QUEUE_SIZE) -> None:
        self._nodes = nodes
        self._size = size

    def put(self, change: StateChange) -> str:
        """Append an order and return the name of its child; a full queue is shrunk first.

        Raises:
            FollowerStateChangeQueueFullError: the queue has only closes of distinct partitions; nothing was appended.
        """
        if len(self._nodes.names()) >= self._size:
            self._shrink()
        if len(self._nodes.names()) >= self._size:
            LOG.error("the queue holds %d closes, %s is refused", self._size, change)
            raise FollowerStateChangeQueueFullError(f"{self._size} replicas wait to be closed")
        return self._nodes.append(change.encode())

    def pending(self) -> list[QueuedChange]:
        """Return all orders, oldest first; remove and report children that are not orders."""
        found = []
        for name in sorted(self._nodes.names(), key=_sequence_number):
            try:
                found.append(QueuedChange(name, StateChange.decode(self._nodes.read(name))))
            except MalformedStateChangeError:
                LOG.warning("child %s of the queue is dropped", name, exc_info=True)
                self._nodes.delete(name)
        return found

    def head(self) -> QueuedChange | None:
        """Return the oldest order without removing it."""
        return next(iter(self.pending()), None)

    def remove(self, name: str) -> None:
        """Remove an order that has been handled."""
        self._nodes.delete(name)

    def _shrink(self) -> None:
        queued = self.pending()
        kept = {entry.name for entry in kept_when_full(queued)}
        for entry in queued:
            if entry.name not in kept:
                self._nodes.delete(entry.name)
        LOG.info("the queue was full: %d of %d orders are kept", len(kept), len(queued))


def _sequence_number(name: str) -> int:
    digits = name[-10:]
    return int(digits) if digits.isdecimal() else -1


class Outcome(Enum):
    """The result of an order."""

    STARTED = "started"
    CLOSED = "closed"
    IGNORED = "ignored"
    """The order was a start by a former leader."""


class ReplicaHandler(Protocol):
    """The broker's side; both methods may be called repeatedly for the same replica."""

    def start_replica(self, topic_partition: TopicPartition) -> None:
        """Create the replica, if it does not exist."""

    def close_replica(self, topic_partition: TopicPartition) -> None:
        """Delete the replica, if it exists."""


class StateChangeReceiver:
    """Executes a broker's orders, oldest first; an order is removed only after its execution."""

    def __init__(
        self, queue: StateChangeQueue, leader_epoch: Callable[[TopicPartition], int | None], handler: ReplicaHandler
    ) -> None:
        """``leader_epoch`` returns a partition's current leader epoch, None without a leader."""
        self._queue = queue
        self._leader_epoch = leader_epoch
        self._handler = handler

    def handle_next(self) -> Outcome | None:
        """Execute the oldest order and return its result; None without orders.

        Raises:
            IllegalStateChangeError: the epoch of a start is above its partition's leader epoch; the order stays queued.
        """
        head = self._queue.head()
        if head is None:
            return None
        outcome = self._carry_out(head.change)
        self._queue.remove(head.name)
        return outcome

    def handle_all(self) -> list[Outcome]:
        """Execute all orders."""
        outcomes = []
        while (outcome := self.handle_next()) is not None:
            outcomes.append(outcome)
        return outcomes

    def _carry_out(self, change: StateChange) -> Outcome:
        if change.order is Order.CLOSE_REPLICA:
            # Not fenced by the epoch: the topic may be deleted, and then it has no leader to compare with.
            self._handler.close_replica(change.topic_partition)
            return Outcome.CLOSED
        if change.epoch != ADMIN_EPOCH:
            current = self._leader_epoch(change.topic_partition)
            if current is not None and change.epoch > current:
                raise IllegalStateChangeError(f"{change} is ahead of leader epoch {current}")
            if change.epoch != current:
                return Outcome.IGNORED
        self._handler.start_replica(change.topic_partition)
        return Outcome.STARTED
