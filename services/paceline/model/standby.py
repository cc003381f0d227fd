"""Partition states that the active controller streams to standbys: a snapshot, then changes in order.

Source: docs/protocol/controller.md#warm-standby; docs/decisions/0009-warm-standbys.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.model.leader_and_isr import LeaderAndIsr


@dataclass(frozen=True, slots=True)
class TopicStates:
    """States of some partitions of one topic."""

    topic_id: str | None
    states: Mapping[int, LeaderAndIsr | None]
    """By partition index; None when the state node was deleted."""
    extras: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Keys of state nodes outside Kafka's schema; no entry for a partition without such keys."""


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """One message to a standby."""

    number: int
    """Number of the message in its stream, from 1; a gap or a duplicate ends the stream."""
    controller_epoch: int
    in_snapshot: bool = False
    """True for every message of the snapshot except the last."""
    sequence: int | None = None
    """Sequence of ``/controller_journal`` that the state includes after this message; None within the snapshot."""
    topics: Mapping[str, TopicStates] = field(default_factory=dict)
    dropped_topics: tuple[str, ...] = ()
    """Deleted topics; applied before ``topics``."""
    broker_epochs: Mapping[int, int] | None = None
    """Broker epoch of every registered broker; None when unchanged."""
