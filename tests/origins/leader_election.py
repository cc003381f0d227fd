"""Replicas that elect a leader among themselves: the first to create the ``leader`` node.

Every assigned replica watched the node and stood for election when the node was deleted: a herd of requests per
partition, and no process could depose a leader. Today one controller elects for all partitions, in the order of the
assignment and without a wait; only the rules of eligibility remain. A replica outside the ISR may lead only where
unclean election is allowed; here that was always allowed when all ISR members were dead, and committed records were
lost.

Source: docs/origins.md, rows S0-6 and S0-7; Kafka before KAFKA-343, KafkaZooKeeper.scala.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaderNode:
    """Content of a partition's ephemeral ``leader`` node: ``broker;epoch``."""

    broker_id: int
    epoch: int

    def encode(self) -> bytes:
        """Return the node's data."""
        return f"{self.broker_id};{self.epoch}".encode("ascii")

    @staticmethod
    def decode(data: bytes) -> "LeaderNode":
        """Return what a node's data says.

        Raises:
            ValueError: it is something else.
        """
        broker_id, epoch = data.decode("ascii").split(";")
        return LeaderNode(int(broker_id), int(epoch))


def may_lead(broker_id: int, assigned_replicas: Sequence[int], isr: Collection[int], alive: Collection[int]) -> bool:
    """Whether a live replica may stand for election.

    While an ISR member is alive, only ISR members may; otherwise, or without an ISR, any assigned replica may.
    """
    if broker_id not in assigned_replicas or broker_id not in alive:
        return False
    if any(member in alive for member in isr):
        return broker_id in isr
    return True


def wait_before_standing_ms(
    broker_id: int, assigned_replicas: Sequence[int], alive: Collection[int], leader_election_wait_ms: int
) -> int:
    """Return the milliseconds for which a candidate waits for the preferred (first assigned) replica, if that is alive.

    The wait is useless when the preferred replica is alive but not eligible; a controller knows this and never waits.
    """
    preferred = assigned_replicas[0]
    if broker_id == preferred or preferred not in alive:
        return 0
    return leader_election_wait_ms


def should_give_up_leadership(leader: int, assigned_replicas: Sequence[int], isr: Collection[int]) -> bool:
    """Whether the leader deletes its node in favor of the preferred replica (checkLoadBalancing, row S0-12)."""
    preferred = assigned_replicas[0]
    return leader != preferred and preferred in isr
