"""A fetch: its settings, its message, and its state while it is in flight."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.model.identifiers import TopicPartition
from paceline.v1.log_service_pb2 import FETCH_FORMAT_BATCHES, FetchPartition, FetchRequest, ForgottenPartition
from paceline_client.fetch_session import SessionRequest, WantedPartition
from paceline_client.metadata import Broker
from paceline_client.subscription import OffsetReset


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """Settings of fetches. Settings that Kafka has keep their names and meanings."""

    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    max_partition_fetch_bytes: int
    max_buffered_bytes: int
    request_timeout_ms: int
    failure_limit_ms: int
    """Time for which a partition may be unreachable before `poll` raises an error; the attempts continue."""
    auto_offset_reset: OffsetReset
    client_rack: str = ""
    """Rack of the consumer; a leader may then redirect it to a follower in the same rack (KIP-392)."""


@dataclass(slots=True)
class OutstandingFetch:
    """A fetch in flight, with the generation and offset of each partition when it was sent."""

    broker: Broker
    address: str
    asked: dict[TopicPartition, tuple[int, int]]
    topic_ids: dict[TopicPartition, str]
    """Topic id of each partition in the request."""
    interrupted: bool = False
    end: Callable[[], object] = lambda: None
    """Ends the fetch with an error."""


def wire_request(config: FetchConfig, session: SessionRequest, wait_ms: int, rack: str) -> FetchRequest:
    """Return the protobuf message."""
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        format=FETCH_FORMAT_BATCHES,
        session_id=session.session_id,
        session_epoch=session.session_epoch,
        open_session=not session.session_id,
        rack_id=rack,
        forgotten=[ForgottenPartition(topic=tp.topic, partition=tp.partition) for tp in session.forgotten],
    )
    add_partitions(request, session.partitions)
    return request


def add_partitions(request: FetchRequest, partitions: Mapping[TopicPartition, WantedPartition]) -> None:
    """List partitions in a request."""
    for tp, wanted in partitions.items():
        partition = FetchPartition(
            topic=tp.topic,
            partition=tp.partition,
            topic_id=wanted.topic_id,
            fetch_offset=wanted.fetch_offset,
            max_bytes=wanted.max_bytes,
        )
        if wanted.current_leader_epoch is not None:
            partition.current_leader_epoch = wanted.current_leader_epoch
        if wanted.last_fetched_epoch is not None:
            partition.last_fetched_epoch = wanted.last_fetched_epoch
        request.partitions.append(partition)
