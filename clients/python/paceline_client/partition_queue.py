"""The unresolved batches of one partition, and the gap that a lost batch leaves in their sequence.

The rules are in the docstring of `accumulator`. Pure.
"""

from collections import deque
from enum import Enum, auto

from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition
from paceline_client.batch import ProducerBatch

Leader = tuple[int, int | None]
"""Broker id and leader epoch; the epoch is None when it is not known."""


class Gap(Enum):
    """Why a sequence number was assigned that will never be in the log."""

    GIVEN_UP = auto()
    """A batch was given up, or the topic was re-created. A late attempt of that batch may still close the gap."""
    LOST = auto()
    """The leader lost acknowledged batches: it has no later batch, and can append none under its present number."""


class PartitionQueue:
    """Batches of one partition, oldest first: ``unresolved`` batches were drained, ``pending`` batches were not."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.topic_id = ""
        """Topic id that batches are sent to, empty while it is not known."""
        self.open: ProducerBatch | None = None
        """The last batch of ``pending``, while records may still be added."""
        self.pending: deque[ProducerBatch] = deque()
        self.unresolved: deque[ProducerBatch] = deque()
        self.producer_id: int | None = None
        self.producer_epoch = -1
        self.next_sequence = 0
        self.started = 0
        """Number of batches that were drained so far."""
        self.acknowledged = False
        """Whether the leader of ``leader_epoch`` has acknowledged a batch of this producer id."""
        self.leader_epoch: int | None = None
        self.gap: Gap | None = None
        self.retry_at_ms = 0
        self.failed_leader: Leader | None = None
        """Leader of the failed attempt while a batch waits for its retry; a different leader ends the wait early."""
        self.last_error: PacelineError | None = None
        """Why no batch could be sent to the partition, for batches that expire without an attempt."""

    def belong_to(self, topic_id: str) -> None:
        """Set the topic id; the log of a re-created topic lacks acknowledged batches, which makes a gap."""
        if self.topic_id and self.producer_id is not None:
            self.gap = self.gap or Gap.GIVEN_UP
        self.topic_id = topic_id

    def recovering(self) -> bool:
        """Return whether a drained batch waits to be sent again."""
        return any(not batch.on_wire and not batch.done for batch in self.unresolved)

    def next_to_resend(self) -> ProducerBatch | None:
        """Return the drained batch to send again: the oldest without a result, unless a batch is already in flight."""
        if not self.unresolved or not self.recovering():
            return None
        if self.gap:
            if any(batch.on_wire for batch in self.unresolved):
                return None
            return next((batch for batch in self.unresolved if not batch.renumber), None)
        oldest = self.unresolved[0]
        return None if oldest.on_wire else oldest

    def settle_gap(self, producer_id: int | None) -> None:
        """After a gap: mark the batches that are definitely not in the log of the leader.

        When only such batches remain and ``producer_id`` is new, move them back to ``pending``, to be renumbered.
        """
        if not self.gap:
            return
        for batch in self.unresolved:
            if not batch.on_wire and (self.gap is Gap.LOST or not batch.maybe_appended):
                batch.renumber = True
        if producer_id is None or producer_id == self.producer_id:
            return
        if not all(batch.renumber for batch in self.unresolved):
            return
        for batch in self.unresolved:
            batch.renumber = batch.maybe_appended = False
            batch.base_sequence = None
            batch.data = None
        self.pending.extendleft(reversed(self.unresolved))
        self.unresolved.clear()
        self.producer_id = None
        self.gap = None

    def drop(self, batch: ProducerBatch) -> None:
        """Remove a drained batch that is not sent again; its sequence number is never reused."""
        self.unresolved.remove(batch)
        if batch.base_sequence is not None:
            self.gap = self.gap or Gap.GIVEN_UP
