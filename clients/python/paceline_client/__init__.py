"""The Python client of Paceline: `Producer`, `Consumer` and `Admin`.

Read `producer.py` first, then `accumulator.py` for how order and "exactly once" are kept, then `consumer.py`. The pure
modules (`accumulator`, `metadata`, `partitioner`, `codec`, `wire`, `subscription`, `fetch_session`) do no I/O and have
no clock, so another front can share them; `sender`, `fetcher` and `metadata_refresher` hold the threads.
"""

from paceline.model.errors import ErrorCode, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline_client.admin import (
    Admin,
    ClusterDescription,
    NewTopic,
    PartitionReplicasDescription,
    ReplicaDescription,
    TopicResult,
)
from paceline_client.batch import BulkFuture, RecordFuture, RecordMetadata
from paceline_client.consumer import Consumer
from paceline_client.errors import (
    BootstrapError,
    BufferExhaustedError,
    ClientClosedError,
    DeliveryFailedError,
    LogTruncatedError,
    NoOffsetError,
    ProducerClosedError,
    ProducerFatalError,
)
from paceline_client.metadata import Broker, PartitionDescription, TopicDescription
from paceline_client.offsets import OffsetAndTimestamp
from paceline_client.producer import Producer
from paceline_client.records import ConsumerRecord, FetchedBatches
from paceline_client.subscription import OffsetReset

__all__ = [
    "Admin",
    "BootstrapError",
    "Broker",
    "BufferExhaustedError",
    "BulkFuture",
    "ClientClosedError",
    "ClusterDescription",
    "Consumer",
    "ConsumerRecord",
    "DeliveryFailedError",
    "ErrorCode",
    "FetchedBatches",
    "LogTruncatedError",
    "NewTopic",
    "NoOffsetError",
    "OffsetAndTimestamp",
    "OffsetReset",
    "PacelineError",
    "PartitionDescription",
    "PartitionReplicasDescription",
    "Producer",
    "ProducerClosedError",
    "ProducerFatalError",
    "RecordFuture",
    "RecordMetadata",
    "ReplicaDescription",
    "TopicDescription",
    "TopicPartition",
    "TopicResult",
]
