"""Mutations of the guards against leaders that their followers cannot reach, for `mutants`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from paceline.controller.brokers import lease_changes, unreached_leaders
from paceline.controller.context import ControllerContext
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.coordination.flow import Flow
from paceline.model.control import BrokerHeartbeatRequest
from paceline.model.identifiers import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.mutants import Patches


def no_preference(patches: "Patches") -> None:
    """Elections choose an unreached broker like any other."""
    patches.set(ControllerContext, "reached_first", lambda _self, replicas: replicas)


def no_leader_moves(patches: "Patches") -> None:
    """An unreached broker keeps the leaderships that it has."""
    real = lease_changes.relieve_silent_leaders

    def relieve(
        context: ControllerContext, partitions: PartitionStateMachine, topic_partitions: Iterable[TopicPartition]
    ) -> Flow[None]:
        known, silent = context.leadership, context.without_lease
        kept = [one for one in topic_partitions if one in known and known[one].leader in silent]
        yield from real(context, partitions, kept)

    patches.set(lease_changes, "relieve_silent_leaders", relieve)


def no_hold_time(patches: "Patches") -> None:
    """A broker is preferred again as soon as the heartbeats of one period report it no more."""
    patches.set(unreached_leaders, "HOLD_MS", 1_500)


def any_report_is_enough(patches: "Patches") -> None:
    """The report of one follower counts against those that reach the broker."""

    def unreached(heartbeats: Iterable[BrokerHeartbeatRequest]) -> set[int]:
        return {leader for one in heartbeats for leader in one.unreachable_leaders}

    patches.set(unreached_leaders, "unreached_brokers", unreached)
