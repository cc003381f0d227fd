"""Settings of a group member, committed offsets with metadata text, and the rebalance listener."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from paceline.model.errors import InvalidRequestError, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline_client.assignors.base import Assignor

MAX_INT32: Final = 2**31 - 1


class OffsetAndMetadata(NamedTuple):
    """A committed position: the next offset to read, metadata text, and the leader epoch of the last record read."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of a member; all times in milliseconds."""

    group_id: str
    group_instance_id: str
    client_id: str
    client_rack: str
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    assignors: tuple[Assignor, ...]

    @property
    def cooperative(self) -> bool:
        """Whether partitions are kept during a rebalance."""
        return self.assignors[0].cooperative

    def check(self) -> None:
        """Check the settings.

        Raises:
            InvalidRequestError: a name is empty, or a time is out of range.
        """
        if not self.group_id:
            raise InvalidRequestError("group_id is empty")
        if not 0 < self.heartbeat_interval_ms < self.session_timeout_ms <= MAX_INT32:
            raise InvalidRequestError(
                f"heartbeat_interval_ms must be positive and below session_timeout_ms, "
                f"not {self.heartbeat_interval_ms} and {self.session_timeout_ms}"
            )
        if not 0 < self.max_poll_interval_ms <= MAX_INT32 or self.auto_commit_interval_ms < 0:
            raise InvalidRequestError("max_poll_interval_ms and auto_commit_interval_ms must be positive")


class RebalanceListener:
    """Receives rebalance events; `Consumer.poll` calls the methods on its thread."""

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Called before partitions are revoked; their offsets can still be committed."""

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Called after partitions were assigned; with cooperative-sticky it gets only the new partitions."""

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Called after the membership was lost: other members may own the partitions, so commits would fail."""
        self.on_partitions_revoked(partitions)


Offsets = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback = Callable[[Offsets, PacelineError | None], None]
