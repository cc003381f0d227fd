"""One member of a consumer group."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.broker.groups.records import MemberValue
from paceline.broker.groups.requests import JoinReply, JoinRequest, Protocol, SyncReply
from paceline.model.scheduler import Cancellable


@dataclass(slots=True, eq=False)
class Member:
    """A member, the calls of it that wait, and when it counts as dead."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    on_join: JoinReply | None = None
    """Answers its JoinGroup that waits for the rebalance."""
    on_sync: SyncReply | None = None
    """Answers its SyncGroup that waits for the leader's assignments."""
    is_new: bool = False
    """Whether its first rebalance has not ended yet."""
    deadline_ms: int = 0
    """When it counts as dead unless it sends a request before; monotonic."""
    timer: Cancellable | None = field(default=None, repr=False)

    @property
    def is_static(self) -> bool:
        """Whether its instance id outlives the process (KIP-345)."""
        return self.group_instance_id is not None

    def supports(self, protocol: str) -> bool:
        """Whether the member knows this assignor."""
        return any(one.name == protocol for one in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """Return the metadata of the member for an assignor; no bytes for an unknown assignor."""
        return next((one.metadata for one in self.protocols if one.name == protocol), b"")

    def vote(self, candidates: Sequence[str]) -> str:
        """Return the first candidate in the order of the member."""
        return next(one.name for one in self.protocols if one.name in candidates)

    def update(self, request: JoinRequest, on_join: JoinReply | None) -> None:
        """Take over the values of a JoinGroup of this member."""
        self.protocols = request.protocols
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms
        self.client_id, self.client_host = request.client_id, request.client_host
        self.on_join = on_join

    def to_value(self, protocol: str | None, assignment: bytes) -> MemberValue:
        """Return the member as it is kept."""
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
        """Stop the timer of the session."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def member_from_value(value: MemberValue, protocol: str | None) -> Member:
    """Return a member as it was kept."""
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
