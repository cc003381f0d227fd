"""What the broker's doors use of its core, `BrokerNode`, as a protocol: tests put a small one behind real servers."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from paceline.broker.groups.coordinator import GroupCoordinator
from paceline.broker.metadata_cache import MetadataCache
from paceline.model.client_io import (
    DeleteRecordsQuery,
    DeleteRecordsResult,
    DigestAnswer,
    DigestQuery,
    EpochAnswer,
    EpochQuery,
    FetchRequest,
    FetchResponse,
    Isolation,
    OffsetAnswer,
    OffsetQuery,
    PartitionReplicasView,
    ProduceData,
    ProduceResult,
    RequiredAcks,
)
from paceline.model.control import ControlRequest, ControlResponse
from paceline.model.errors import NOT_REGISTERED, BrokerNotAvailableError, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.log_dirs import LogDirView, LogDirWish
from paceline.model.replica_fetch import ReplicaFetchRequest, ReplicaFetchResponse
from paceline.replication.purgatory import Cancel


class BrokerCore(Protocol):
    """The broker; every method is called on the node's event loop, every reply comes there, at most once."""

    metadata: MetadataCache
    """What the broker knows of the cluster."""
    cluster_id: str | None
    """Id of the cluster; None before registration."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""

    def group_coordinator(self) -> GroupCoordinator:
        """Return the group coordinator; raises `PacelineError` while the broker does not serve."""

    def handle_control(self, request: ControlRequest) -> ControlResponse:
        """Carry out a control request; raises `PacelineError` when it must be sent again later."""

    def when_controller_epoch_read(self, on_read: Callable[[], None]) -> None:
        """Call ``on_read`` when ZooKeeper has answered which controller epoch stands, at once when it is not asked."""

    def handle_replica_fetch(
        self, request: ReplicaFetchRequest, reply: Callable[[ReplicaFetchResponse], None]
    ) -> Cancel | None:
        """Answer a follower's fetch, now or after its wait; return what ends the wait without an answer."""

    def digest_range(self, query: DigestQuery) -> DigestAnswer:
        """Summarize a range of this broker's replica."""

    def offsets_for_leader_epoch(self, queries: Sequence[EpochQuery], from_client: bool) -> list[EpochAnswer]:
        """Tell a client or a follower where epochs ended."""

    def produce(
        self,
        acks: RequiredAcks,
        timeout_ms: int,
        data: Sequence[ProduceData],
        reply: Callable[[list[ProduceResult]], None],
    ) -> Cancel | None:
        """Append, and reply with one result per batch, in their order; return what ends the wait without an answer."""

    def fetch(self, request: FetchRequest, reply: Callable[[FetchResponse], None]) -> Cancel | None:
        """Answer a client's fetch, now or after its wait; return what ends the wait without an answer."""

    def list_offsets(self, queries: Sequence[OffsetQuery], isolation: Isolation) -> list[OffsetAnswer]:
        """Find offsets."""

    def describe_replicas(self, topic: str, partitions: Sequence[int]) -> list[PartitionReplicasView]:
        """Show what this broker knows of the replicas of partitions it leads; no partitions means all of them."""

    def describe_log_dirs(self, wanted: Collection[TopicPartition] | None) -> list[LogDirView]:
        """Return what lies in the log directories; None means every replica."""

    def alter_replica_log_dirs(self, wishes: Sequence[LogDirWish]) -> list[PacelineError | None]:
        """Return per wish why it is refused, None when the replica lies there."""

    def delete_records(
        self,
        queries: Sequence[DeleteRecordsQuery],
        timeout_ms: int,
        reply: Callable[[list[DeleteRecordsResult]], None],
    ) -> Cancel | None:
        """Delete records from the beginning of logs, and reply with one result per partition, in their order."""

    def init_producer_id(self, reply: Callable[[tuple[int, int] | PacelineError], None]) -> None:
        """Reply with (producer id that nobody else has, its epoch), or with why there is none."""


class CoreHandle:
    """Where the doors find the core: they open before it exists, so that a long recovery is seen to be alive."""

    def __init__(self) -> None:
        self._core: BrokerCore | None = None

    def set(self, core: BrokerCore) -> None:
        """Let requests through."""
        self._core = core

    def get(self) -> BrokerCore:
        """Return the core.

        Raises:
            BrokerNotAvailableError: it does not exist yet.
        """
        if self._core is None:
            raise BrokerNotAvailableError("the broker is starting").with_metadata(**NOT_REGISTERED)
        return self._core
