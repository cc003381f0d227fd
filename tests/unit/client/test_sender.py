"""The sender's reaction to metadata; requests to real brokers are in tests/integration/test_client_producer_*.py."""

import threading

from paceline.log.compression import Codec
from paceline.model.client_io import RequiredAcks
from paceline.model.errors import BrokerNotAvailableError
from paceline.model.identifiers import TopicPartition
from paceline.rpc.channels import ChannelCache
from paceline_client.accumulator import Accumulator
from paceline_client.clock import monotonic_ms
from paceline_client.metadata import Broker
from paceline_client.produce_request import SenderConfig
from paceline_client.record_buffer import AccumulatorConfig
from paceline_client.sender import Sender

TP = TopicPartition("t", 0)


class Metadata:
    """Stands for `MetadataRefresher`: a leader that the test sets, and the number of requested refreshes."""

    def __init__(self) -> None:
        self.leader, self.epoch, self.requests = Broker(1, "host", 9092), 5, 0

    def leadership(self, _topic_partition: TopicPartition) -> tuple[Broker, int, str]:
        return self.leader, self.epoch, ""

    def request(self) -> None:
        self.requests += 1


def test_metadata_is_requested_until_a_batch_in_back_off_has_a_new_leader() -> None:
    accumulator, metadata = Accumulator(AccumulatorConfig(linger_ms=0, retry_backoff_ms=60_000)), Metadata()
    accumulator.set_producer_id(7, 0)
    accumulator.append(accumulator.queue(TP), 1_000, None, b"a", [], monotonic_ms())
    sender = Sender(
        SenderConfig(RequiredAcks.ALL, Codec.NONE, 1_000, 1 << 20, 5),
        accumulator,
        metadata,  # type: ignore[arg-type]
        ChannelCache(),
        threading.RLock(),
        lambda: None,
        "sender",
    )
    (batch,) = accumulator.drain([TP], 1 << 20, monotonic_ms())
    accumulator.fail(batch, BrokerNotAvailableError("refused"), monotonic_ms(), answered=False, leader=(1, 5))
    for count in (1, 2):
        sender.metadata_refreshed()
        assert metadata.requests == count
        assert accumulator.ready(monotonic_ms()).partitions == []
    metadata.leader, metadata.epoch = Broker(2, "host", 9093), 6
    sender.metadata_refreshed()
    assert metadata.requests == 2
    assert accumulator.ready(monotonic_ms()).partitions == [TP]
