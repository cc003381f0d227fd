"""A consumer group: its state, members, generation and committed offsets. Cancels its timers but starts none.

| From | To | When |
|---|---|---|
| EMPTY, STABLE, COMPLETING_REBALANCE | PREPARING_REBALANCE | a member joins, leaves or dies |
| PREPARING_REBALANCE | COMPLETING_REBALANCE | every member has joined again, or the rebalance timeout is over |
| COMPLETING_REBALANCE | STABLE | the leader's assignments are stored |
| PREPARING_REBALANCE | EMPTY | the last member has left |
| any | DEAD | the group is deleted or has moved to another coordinator |

Source: docs/protocol/groups.md#fencing-a-member and #static-members; Kafka's GroupMetadata.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from paceline.broker.groups.committed_offsets import CommittedOffset, CommittedOffsets
from paceline.broker.groups.member import Member
from paceline.broker.groups.records import GroupValue, OffsetValue
from paceline.broker.groups.requests import (
    GroupDescription,
    GroupListing,
    JoinedMember,
    JoinReply,
    JoinRequest,
    JoinResult,
    MemberDescription,
    Protocol,
    SyncResult,
)
from paceline.model.consumer_protocol import decode_subscription
from paceline.model.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    InvalidRequestError,
    PacelineError,
    UnknownMemberIdError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.scheduler import Cancellable

LOG = logging.getLogger("paceline.broker.groups")

CONSUMER: Final = "consumer"


class GroupState(Enum):
    """State of a group; names are those of the protos without prefix."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_ALLOWED_FROM: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
"""The states from which a group may enter each state."""


class Group:
    """A group at its coordinator."""

    def __init__(self, group_id: str, partition: int, state: GroupState, now_wall_ms: int) -> None:
        self.group_id = group_id
        self.partition = partition
        """Partition of ``__consumer_offsets`` that stores the group."""
        self.state = state
        self.state_timestamp: int | None = now_wall_ms
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.pending_members: dict[str, Cancellable] = {}
        """Member ids from MEMBER_ID_REQUIRED that have not joined yet."""
        self.pending_sync: set[str] = set()
        """Members that have not sent SyncGroup in this generation."""
        self.written_generation = -1
        """Latest generation whose assignments are in the log or being written."""
        self.static_members: dict[str, str] = {}
        """Member id of each group instance id."""
        self.offsets = CommittedOffsets()
        self.pending_commits: Counter[TopicPartition] = Counter()
        """Commits that are not written to the log yet."""
        self.pending_bytes = 0
        """Size that these commits add to the offsets."""
        self.new_member_added = False
        """Whether a member joined during the initial delay."""
        self.is_waiting_initially = False
        """Whether the first rebalance still waits for more members (KIP-134)."""
        self.join_timer: Cancellable | None = None
        self.sync_timer: Cancellable | None = None
        self.subscribed_topics: frozenset[str] | None = frozenset()
        """Topics of all members; None when a subscription cannot be decoded."""
        self._common: set[str] | None = None
        """Assignors that all members support, None when they must be computed again."""

    # State

    def is_in(self, *states: GroupState) -> bool:
        """Whether the group is in one of these states."""
        return self.state in states

    def transition(self, state: GroupState, now_wall_ms: int) -> None:
        """Change the state; only transitions in the table of the module docstring are allowed."""
        assert self.state in _ALLOWED_FROM[state], f"group {self.group_id} cannot go from {self.state} to {state}"
        self.state = state
        self.state_timestamp = now_wall_ms

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may begin now."""
        return self.state in _ALLOWED_FROM[GroupState.PREPARING_REBALANCE]

    # Members

    def add(self, member: Member) -> None:
        """Add a member; the first member becomes the leader."""
        if not self.members:
            self.protocol_type = self.protocol_type or CONSUMER
        if self.leader is None:
            self.leader = member.member_id
        names = {one.name for one in member.protocols}
        self._common = names & self._common if self.members and self._common is not None else None
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id

    def update(self, member: Member, request: JoinRequest, on_join: JoinReply | None) -> None:
        """Apply a member's new JoinGroup."""
        if member.protocols != request.protocols:
            self._common = None
        member.update(request, on_join)

    def set_protocols(self, member: Member, protocols: tuple[Protocol, ...]) -> None:
        """Set a member's assignors."""
        self._common = None
        member.protocols = protocols

    def remove(self, member_id: str) -> Member | None:
        """Remove a member; elects another leader if it was the leader."""
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._common = None
        member.stop_timer()
        self.pending_sync.discard(member_id)
        if member.group_instance_id is not None and self.static_members.get(member.group_instance_id) == member_id:
            del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace_static(self, instance_id: str, new_id: str) -> Member:
        """Assign a static member the id of its new process, and return the member."""
        old_id = self.static_members[instance_id]
        member = self.members.pop(old_id)
        member.member_id = new_id
        self.members[new_id] = member
        self.static_members[instance_id] = new_id
        self.pending_sync.discard(old_id)
        if self.leader == old_id:
            self.leader = new_id
        return member

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member that sent a request.

        Raises:
            UnknownMemberIdError: the group has no such member.
            FencedInstanceIdError: another process has taken over the instance id.
        """
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                raise UnknownMemberIdError(f"group {self.group_id} has no group instance id {instance_id!r}")
            if known != member_id:
                raise FencedInstanceIdError(
                    f"group instance id {instance_id!r} of group {self.group_id} belongs to another member"
                )
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberIdError(f"group {self.group_id} has no member {member_id!r}")
        return member

    def check_generation(self, generation: int) -> None:
        """Refuse a request of another generation.

        Raises:
            IllegalGenerationError: the generation is not the group's current generation.
        """
        if generation != self.generation:
            raise IllegalGenerationError(f"generation of group {self.group_id} is {self.generation}, not {generation}")

    def elect_joined_leader(self) -> bool:
        """Elect a member that has joined if the current leader has not; return whether any member has joined."""
        leader = None if self.leader is None else self.members.get(self.leader)
        if leader is not None and leader.on_join is not None:
            return True
        joined = next((member for member in self.members.values() if member.on_join is not None), None)
        if joined is not None:
            self.leader = joined.member_id
        return joined is not None

    @property
    def rebalance_timeout_ms(self) -> int:
        """Longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        """Whether every member has joined again and no new member is awaited."""
        return not self.pending_members and all(member.on_join is not None for member in self.members.values())

    @property
    def metadata_bytes(self) -> int:
        """Size of the subscriptions of all members."""
        return sum(member.metadata_bytes for member in self.members.values())

    # Protocols

    def supports(self, protocol_type: str, protocols: Iterable[Protocol]) -> bool:
        """Whether a member with these assignors may join the group."""
        names = {one.name for one in protocols}
        if self.state is GroupState.EMPTY or not self.members:
            return bool(protocol_type) and bool(names)
        return self.protocol_type == protocol_type and bool(names & self.common_protocols())

    def common_protocols(self) -> set[str]:
        """Return the assignors that all members support."""
        if self._common is None:
            # Cache the result, which every join needs: without the cache a rebalance of n members takes n * n steps.
            names = [{one.name for one in member.protocols} for member in self.members.values()]
            self._common = set.intersection(*names) if names else set()
        return self._common

    def select_protocol(self) -> str:
        """Return the common assignor with the most votes; the first member's order decides a tie."""
        common = self.common_protocols()
        first = next(iter(self.members.values()))
        candidates = [one.name for one in first.protocols if one.name in common]
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(candidates, key=lambda name: votes[name])

    def next_generation(self, now_wall_ms: int) -> None:
        """Begin a generation with the current members; without members the group becomes EMPTY."""
        self.generation += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.read_subscriptions()
            self.transition(GroupState.COMPLETING_REBALANCE, now_wall_ms)
        else:
            self.protocol = None
            self.leader = None
            self.subscribed_topics = frozenset()
            self.transition(GroupState.EMPTY, now_wall_ms)

    def read_subscriptions(self) -> None:
        """Store the topics of all members; None when a subscription cannot be decoded."""
        self.subscribed_topics = None
        if self.protocol_type != CONSUMER:
            return
        try:
            self.subscribed_topics = frozenset(
                topic
                for member in self.members.values()
                for topic in decode_subscription(member.metadata(self.protocol)).topics
            )
        except InvalidRequestError:
            LOG.warning("cannot read the subscriptions of a group: group=%s", self.group_id)

    # Responses

    def join_result(self, member_id: str, with_members: bool | None = None) -> JoinResult:
        """Return a member's JoinGroup response in this generation; only the leader's response lists the members."""
        if with_members is None:
            with_members = member_id == self.leader
        members: tuple[JoinedMember, ...] = ()
        if with_members:
            members = tuple(
                JoinedMember(one.member_id, one.group_instance_id, one.metadata(self.protocol))
                for one in self.members.values()
            )
        return JoinResult(
            member_id, self.generation, self.protocol_type or "", self.protocol or "", self.leader or "", members
        )

    def sync_result(self, member: Member) -> SyncResult:
        """Return a member's SyncGroup response."""
        return SyncResult(self.protocol_type or "", self.protocol or "", member.assignment)

    def listing(self) -> GroupListing:
        """Return the group's entry for ListGroups."""
        return GroupListing(self.group_id, self.protocol_type or "", self.state.name, len(self.members))

    def description(self) -> GroupDescription:
        """Return the description of the group; metadata and assignments only while it is STABLE."""
        shown = self.protocol if self.state is GroupState.STABLE else None
        members = tuple(
            MemberDescription(
                one.member_id,
                one.group_instance_id,
                one.client_id,
                one.client_host,
                one.metadata(shown) if shown else b"",
                one.assignment if shown else b"",
            )
            for one in self.members.values()
        )
        return GroupDescription(
            self.group_id,
            self.state.name,
            self.protocol_type or "",
            shown or "",
            self.generation,
            self.leader or "",
            members,
            offset_count=len(self.offsets),
        )

    def to_value(self, assignments: Mapping[str, bytes]) -> GroupValue:
        """Return the group in its stored form, with these assignments."""
        return GroupValue(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader,
            -1 if self.state_timestamp is None else self.state_timestamp,
            tuple(one.to_value(self.protocol, assignments.get(one.member_id, b"")) for one in self.members.values()),
        )

    # Offsets

    def set_offset(self, topic_partition: TopicPartition, value: OffsetValue, record_offset: int) -> None:
        """Store a committed offset, unless a later record has already set it."""
        known = self.offsets.get(topic_partition)
        if known is None or known.record_offset < record_offset:
            self.offsets[topic_partition] = CommittedOffset(value, record_offset)

    def growth_of(self, offsets: Mapping[TopicPartition, OffsetValue]) -> int:
        """Return by how many bytes a commit enlarges the offsets; a smaller value of a partition does not count."""
        return sum(max(0, self.offsets.growth(one, value)) for one, value in offsets.items())

    def expired_offsets(self, now_wall_ms: int, retention_ms: int) -> list[TopicPartition]:
        """Return the partitions whose offsets have expired (KIP-211).

        * A group without members keeps its offsets for ``retention_ms`` after it became empty.
        * A group that never had members keeps each offset for ``retention_ms`` after its commit.
        * A group with members keeps offsets of subscribed topics; the second rule applies to its other offsets.
        """
        if self.is_in(GroupState.DEAD):
            return []
        if self.state is GroupState.EMPTY:
            subscribed: frozenset[str] | None = frozenset()
        elif self.state is GroupState.STABLE:
            subscribed = self.subscribed_topics
        else:
            return []
        if subscribed is None:
            return []
        expired = []
        for topic_partition, committed in self.offsets.items():
            if topic_partition.topic in subscribed or self.pending_commits[topic_partition]:
                continue
            since = committed.value.commit_timestamp
            if self.state is GroupState.EMPTY and self.protocol_type and self.state_timestamp is not None:
                since = self.state_timestamp
            if committed.value.expire_timestamp >= 0:
                over = now_wall_ms >= committed.value.expire_timestamp
            else:
                over = now_wall_ms - since >= retention_ms
            if over:
                expired.append(topic_partition)
        return expired

    def fail_waiting(self, error: PacelineError) -> None:
        """Stop every timer and answer every waiting call with an error."""
        for timer in (self.join_timer, self.sync_timer, *self.pending_members.values()):
            if timer is not None:
                timer.cancel()
        self.join_timer = self.sync_timer = None
        self.pending_members.clear()
        for member in self.members.values():
            member.stop_timer()
            on_join, member.on_join = member.on_join, None
            on_sync, member.on_sync = member.on_sync, None
            if on_join is not None:
                on_join(error)
            if on_sync is not None:
                on_sync(error)
