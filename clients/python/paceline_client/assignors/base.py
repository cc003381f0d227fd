"""`Assignor`, its input and its result."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from paceline.model.identifiers import TopicPartition

Assignments = dict[str, list[TopicPartition]]
"""Partitions by member id; every member has an entry."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A group member, as the coordinator describes it to the leader of the group."""

    member_id: str
    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    """Partitions that the member owned before the rebalance."""
    generation: int = -1
    """Generation in which the member got these partitions."""
    group_instance_id: str = ""
    user_data: bytes = b""

    @property
    def order(self) -> tuple[bool, str]:
        """Sort key as in Kafka: static members by instance id, then dynamic members by member id."""
        if self.group_instance_id:
            return (False, self.group_instance_id)
        return (True, self.member_id)


class Assignor(ABC):
    """Assigns partitions to the members of a group."""

    name: ClassVar[str]
    """Name in the protocol; all members of a group must have an assignor in common."""
    cooperative: ClassVar[bool] = False
    """Whether members keep their partitions during a rebalance (KIP-429)."""

    @abstractmethod
    def assign(self, members: Iterable[GroupMember], partition_counts: Mapping[str, int]) -> Assignments:
        """Return the partitions of every member.

        Args:
            members: all members of the group.
            partition_counts: number of partitions of each existing topic.
        """

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes:
        """Return the user data that a member sends to the assignor with its topics."""
        return b""
