"""Partition states that the active controller streams to the standbys, in order, from a snapshot on.

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
    """By partition index; None where the state node is gone."""
    extras: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Keys of state nodes outside Kafka's schema; a partition that is missing here has none."""


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """One message to a standby."""

    number: int
    """Counts the messages of one stream from 1; a gap or a repetition ends the stream."""
    controller_epoch: int
    in_snapshot: bool = False
    """True for every message of the snapshot but its last one."""
    sequence: int | None = None
    """Sequence of ``/controller_journal`` the state has reached with this message; None within the snapshot."""
    topics: Mapping[str, TopicStates] = field(default_factory=dict)
    dropped_topics: tuple[str, ...] = ()
    """Topics that are gone; applied before ``topics``."""
    broker_epochs: Mapping[int, int] | None = None
    """Broker epoch of every registered broker; None when nothing has changed."""
