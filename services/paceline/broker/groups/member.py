"""A member of a consumer group."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.broker.groups.records import MemberValue
from paceline.broker.groups.requests import JoinReply, JoinRequest, Protocol, SyncReply
from paceline.model.scheduler import Cancellable


@dataclass(slots=True, eq=False)
class Member:
    """A member with its waiting calls and its session deadline."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    on_join: JoinReply | None = None
    """Answers its waiting JoinGroup."""
    on_sync: SyncReply | None = None
    """Answers its waiting SyncGroup."""
    is_new: bool = False
    """Whether its first rebalance is still running."""
    deadline_ms: int = 0
    """Monotonic time at which its session ends unless it sends a request before."""
    timer: Cancellable | None = field(default=None, repr=False)

    @property
    def is_static(self) -> bool:
        """Whether its group instance id survives a restart (KIP-345)."""
        return self.group_instance_id is not None

    @property
    def metadata_bytes(self) -> int:
        """Size of its subscriptions for all assignors."""
        return sum(len(one.metadata) for one in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for an assignor; empty for an unknown assignor."""
        return next((one.metadata for one in self.protocols if one.name == protocol), b"")

    def vote(self, candidates: Sequence[str]) -> str:
        """Return the member's most preferred candidate."""
        return next(one.name for one in self.protocols if one.name in candidates)

    def update(self, request: JoinRequest, on_join: JoinReply | None) -> None:
        """Update the member from its new JoinGroup."""
        self.protocols = request.protocols
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms
        self.client_id, self.client_host = request.client_id, request.client_host
        self.on_join = on_join

    def to_value(self, protocol: str | None, assignment: bytes) -> MemberValue:
        """Return the member in its stored form."""
        return MemberValue(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            assignment,
        )

    def stop_timer(self) -> None:
        """Stop the session timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def member_from_value(value: MemberValue, protocol: str | None) -> Member:
    """Return a member from its stored form."""
    return Member(
        value.member_id,
        value.group_instance_id,
        value.client_id,
        value.client_host,
        value.rebalance_timeout_ms,
        value.session_timeout_ms,
        (Protocol(protocol or "", value.subscription),),
        value.assignment,
    )
