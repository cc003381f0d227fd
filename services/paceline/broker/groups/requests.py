"""Requests to the group coordinator and its responses, as plain values (wire form: `paceline.v1` GroupService)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paceline.broker.groups.records import OffsetValue
from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class Protocol:
    """An assignor that a member supports, with the member's metadata for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The content of a JoinGroup request."""

    group_id: str
    member_id: str
    """Empty for a new member."""
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A group member, as the coordinator describes it to the leader of the group."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The response to a JoinGroup."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[JoinedMember, ...] = ()
    """All members in the response to the leader; empty for all other members."""
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """The content of a SyncGroup request."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]
    """Assignment by member id; only the leader sends assignments."""


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The response to a SyncGroup."""

    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """A member to remove, named by its member id, its group instance id, or both."""

    member_id: str
    group_instance_id: str | None


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """The content of a CommitOffsets request."""

    group_id: str
    generation: int
    """-1 for a caller that is not a member."""
    member_id: str
    group_instance_id: str | None
    offsets: Mapping[TopicPartition, OffsetValue]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """An entry of the list of groups."""

    group_id: str
    protocol_type: str
    state: str
    member_count: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a described group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A described group; a group that does not exist is DEAD."""

    group_id: str
    state: str = "DEAD"
    protocol_type: str = ""
    protocol: str = ""
    generation: int = 0
    leader: str = ""
    members: tuple[MemberDescription, ...] = field(default=())
    error: PacelineError | None = None
    offset_count: int = 0


CommitResults = dict[TopicPartition, PacelineError | None]
JoinReply = Callable[[JoinResult | PacelineError], None]
SyncReply = Callable[[SyncResult | PacelineError], None]
CommitReply = Callable[[CommitResults | PacelineError], None]
ErrorReply = Callable[[PacelineError | None], None]
