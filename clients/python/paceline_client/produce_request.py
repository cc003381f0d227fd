"""A Produce request: the batches for one leader, and their encoding."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from paceline.log.compression import Codec
from paceline.model.client_io import RequiredAcks
from paceline.model.identifiers import TopicPartition
from paceline.v1.log_service_pb2 import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from paceline_client.accumulator import Accumulator
from paceline_client.batch import ProducerBatch
from paceline_client.codec import finish
from paceline_client.metadata import Broker
from paceline_client.partition_queue import Leader, PartitionQueue
from paceline_client.wire import ProducePiece, encode_produce_request

_WIRE_ACKS: Final = {RequiredAcks.ALL: ACKS_ALL, RequiredAcks.LEADER: ACKS_LEADER, RequiredAcks.NONE: ACKS_NONE}
_ANSWER_GRACE_MS: Final = 1_000
"""The broker must answer this much before the RPC deadline, so that its error arrives."""


@dataclass(frozen=True, slots=True)
class SenderConfig:
    """Settings of requests."""

    acks: RequiredAcks
    codec: Codec
    request_timeout_ms: int
    max_request_bytes: int
    max_in_flight: int
    """Maximum requests in flight per broker."""


@dataclass(slots=True)
class SentRequest:
    """A Produce request in flight."""

    broker: Broker
    address: str
    batches: list[ProducerBatch]
    leader_epochs: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    """Leader epochs known when the leader was chosen."""

    def leader_of(self, topic_partition: TopicPartition) -> Leader:
        """Return the leader to which the request was sent."""
        return self.broker.broker_id, self.leader_epochs.get(topic_partition)

    def encode(self, config: SenderConfig, accumulator: Accumulator) -> bytes:
        """Return the encoded request; a batch is encoded once, for all attempts."""
        pieces = [
            ProducePiece(
                *batch.topic_partition,
                _encoded(batch, config.codec, accumulator),
                batch.topic_id,
                self.leader_epochs.get(batch.topic_partition),
            )
            for batch in self.batches
        ]
        timeout_ms = config.request_timeout_ms
        return encode_produce_request(
            _WIRE_ACKS[config.acks], max(1, timeout_ms - min(_ANSWER_GRACE_MS, timeout_ms // 10)), pieces
        )


def _encoded(batch: ProducerBatch, codec: Codec, accumulator: Accumulator) -> bytes | bytearray:
    if batch.data is None:
        assert batch.encoder is not None
        queue: PartitionQueue = accumulator.queue(batch.topic_partition)
        if batch.base_sequence is None:
            batch.data = finish(batch.encoder, codec)
        else:
            assert queue.producer_id is not None
            batch.data = finish(batch.encoder, codec, queue.producer_id, queue.producer_epoch, batch.base_sequence)
    return batch.data
