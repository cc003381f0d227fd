"""A leader that moved its own partition to other replicas.

The target was in ``/brokers/partitions_reassigned``; an empty target meant deletion of the topic. The leader started
the new replicas, checked after commits whether all of them had the last record, closed the old replicas, waited until
they had left the ISR, and wrote the result, in an order that survives a crash at every step. Today the controller does
this (docs/protocol/controller.md#reassignment-steps), and a deletion has its own marker.

Source: docs/origins.md, rows S0-13 to S0-15.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from paceline.model.identifiers import TopicPartition
from tests.origins.state_change_queue import Order, StateChange


def orders_for_new_target(
    topic_partition: TopicPartition, assigned_replicas: Sequence[int], target: Sequence[int], leader_epoch: int
) -> list[tuple[int, StateChange]]:
    """Return the leader's orders to brokers for a new target: start the new replicas, or close all."""
    if not target:
        close = StateChange(Order.CLOSE_REPLICA, topic_partition, leader_epoch)
        return [(broker_id, close) for broker_id in assigned_replicas]
    start = StateChange(Order.START_REPLICA, topic_partition, leader_epoch)
    return [(broker_id, start) for broker_id in target if broker_id not in assigned_replicas]


class Progress(Enum):
    """State of a reassignment after a commit."""

    WAIT = "wait"
    CLOSE_OLD = "close old replicas"
    COMPLETE = "complete"
    COMPLETE_AND_STOP = "complete, then stop leading"


def check_reassigned_replicas(
    committed_offset: int,
    log_end_offsets: Mapping[int, int],
    assigned_replicas: Sequence[int],
    target: Sequence[int],
    isr: Sequence[int],
    leader: int,
    close_was_sent: bool,
) -> Progress:
    """Return the leader's next step: it closes no replica before every target replica has the committed record."""
    if any(log_end_offsets.get(replica, 0) < committed_offset for replica in target):
        return Progress.WAIT
    others = [replica for replica in assigned_replicas if replica not in target and replica != leader]
    if others and not close_was_sent:
        return Progress.CLOSE_OLD
    if any(replica in isr for replica in others):
        return Progress.WAIT
    return Progress.COMPLETE if leader in target else Progress.COMPLETE_AND_STOP


@dataclass(frozen=True, slots=True)
class PartitionNodes:
    """The nodes of one partition in this design."""

    assigned_replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int | None
    target: tuple[int, ...] | None
    """Target of the reassignment in ZooKeeper; None without a reassignment."""


class CompletionStep(NamedTuple):
    """A step of a completion: its name, and the nodes after it."""

    what: str
    nodes: PartitionNodes


def completion_steps(nodes: PartitionNodes, stop: bool) -> list[CompletionStep]:
    """Return the steps that complete a reassignment, in order.

    The ISR is written first: if the assignment were written first, a crash could leave an assignment without an in-sync
    replica, and the next election would have no safe choice. The target is deleted last, so that a leader elected after
    a crash finds it and repeats all steps.
    """
    if nodes.target is None:
        return []
    leads_on = not stop and nodes.leader == nodes.target[0]
    isr = tuple(dict.fromkeys((*nodes.target, *nodes.isr)))
    steps = [CompletionStep("write ISR", replace(nodes, isr=isr))]
    steps.append(CompletionStep("write assignment", replace(steps[-1].nodes, assigned_replicas=nodes.target)))
    if nodes.leader not in nodes.target:
        steps.append(CompletionStep("close own replica", steps[-1].nodes))
    steps.append(CompletionStep("delete target", replace(steps[-1].nodes, target=None)))
    if not leads_on:
        steps.append(CompletionStep("delete leader", replace(steps[-1].nodes, leader=None)))
    return steps
