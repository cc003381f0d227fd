"""A fetch: how it is made, its message, and what is remembered of it while it is under way."""

from dataclasses import dataclass
from typing import Any

from paceline.model.identifiers import TopicPartition
from paceline.rpc.streams.stream_client import StreamClient
from paceline.v1.log_service_pb2 import FETCH_FORMAT_BATCHES, FetchPartition, FetchRequest, ForgottenPartition
from paceline_client.fetch_session import SessionRequest
from paceline_client.metadata import Broker
from paceline_client.subscription import OffsetReset


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """How fetches are made; names and meaning as Kafka's."""

    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    max_partition_fetch_bytes: int
    max_buffered_bytes: int
    request_timeout_ms: int
    hindrance_limit_ms: int
    """How long a partition may be out of reach before `poll` is told; the attempts go on all the same."""
    auto_offset_reset: OffsetReset
    client_rack: str = ""
    """Where the consumer is; a leader may then send it to a follower in the same rack (KIP-392)."""
    read_replica_max_age_ms: int = 300_000
    """The leader is asked anew after this."""


@dataclass(slots=True)
class OutstandingFetch:
    """A fetch under way, with the generation and offset each partition had when it was sent."""

    broker: Broker
    address: str
    asked: dict[TopicPartition, tuple[int, int]]
    topic_ids: dict[TopicPartition, str]
    """What each partition's topic was called besides its name."""
    call: Any = None
    """The call, when the broker has no stream for us."""
    stream: StreamClient | None = None
    interrupted: bool = False


def wire_request(config: FetchConfig, session: SessionRequest, wait_ms: int, rack: str) -> FetchRequest:
    """Return the message."""
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
    for tp, wanted in session.partitions.items():
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
    return request
