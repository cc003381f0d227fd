"""The Python client of Paceline: `Producer`, `Consumer` and `Admin`.

Read `producer.py` first, then `accumulator.py` for how order and "exactly once" are kept, then `consumer.py`. The pure
modules (`accumulator`, `metadata`, `partitioner`, `codec`, `wire`, `subscription`, `fetch_session`) do no I/O and have
no clock, so another front can share them; `sender`, `fetcher` and `metadata_refresher` hold the threads.
"""

from paceline.model.errors import ErrorCode, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline_client.batch import BulkFuture, RecordFuture, RecordMetadata
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
from paceline_client.producer import Producer

__all__ = [
    "BootstrapError",
    "BufferExhaustedError",
    "BulkFuture",
    "ClientClosedError",
    "DeliveryFailedError",
    "ErrorCode",
    "LogTruncatedError",
    "NoOffsetError",
    "PacelineError",
    "Producer",
    "ProducerClosedError",
    "ProducerFatalError",
    "RecordFuture",
    "RecordMetadata",
    "TopicPartition",
]
