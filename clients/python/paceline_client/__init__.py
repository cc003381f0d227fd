"""The Python client of Paceline. The names of ``__all__`` are public; docs/python.md is the guide.

* `Producer` and `AsyncProducer` write records, `Consumer` and `AsyncConsumer` read them, alone or in a group.
* `Admin` and `AsyncAdmin` create, describe and change topics, partitions, groups and settings.
* `PacelineError` is the base of every error; ``error.definite`` tells whether the operation was certainly not carried
  out, ``error.retriable`` whether it may succeed later.
* `paceline_client.compat` has the classes of kafka-python and aiokafka, `paceline_client.assignors` the assignors.
"""

# Read `producer.py` first, then `accumulator.py` for ordering and exactly-once delivery, then `consumer.py`. The pure
# modules (`record_buffer`, `accumulator`, `partition_queue`, `metadata`, `partitioner`, `codec`, `wire`,
# `subscription`, `fetch_session`) do no I/O and read no clock, so other front ends can share them; `sender`,
# `fetcher` and `metadata_refresher` own the threads.

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.model.errors import ErrorCode, PacelineError
    from paceline.model.identifiers import TopicPartition
    from paceline.model.state_change import StateChange, StateChangeKind
    from paceline.model.tls import TlsFiles
    from paceline_client.admin import (
        Admin,
        ClusterDescription,
        NewTopic,
        PartitionReplicasDescription,
        ReplicaDescription,
        TopicResult,
    )
    from paceline_client.admin_configs import (
        ConfigChange,
        ConfigEntry,
        ConfigResult,
    )
    from paceline_client.admin_groups import GroupDescription, GroupListing, GroupResult, MemberDescription
    from paceline_client.admin_log_dirs import (
        BrokerLogDirs,
        LogDirDescription,
        ReplicaLogDirResult,
        ReplicaOnDisk,
    )
    from paceline_client.admin_partitions import (
        AwaitedReplica,
        ElectionResult,
        NewPartitions,
        NewPartitionsResult,
        Reassignment,
        ReassignmentResult,
    )
    from paceline_client.admin_records import DeletedRecords
    from paceline_client.admin_watch import EventGap, WatchedEvents
    from paceline_client.aio import AsyncAdmin, AsyncConsumer, AsyncProducer
    from paceline_client.batch import BulkFuture, RecordFuture, RecordMetadata
    from paceline_client.consumer import Consumer
    from paceline_client.errors import (
        BootstrapError,
        BufferExhaustedError,
        ClientClosedError,
        CommitFailedError,
        DeliveryFailedError,
        LogTruncatedError,
        NoOffsetError,
        ProducerClosedError,
        ProducerFatalError,
    )
    from paceline_client.groups.values import OffsetAndMetadata, RebalanceListener
    from paceline_client.metadata import Broker, PartitionDescription, TopicDescription
    from paceline_client.offsets import OffsetAndTimestamp
    from paceline_client.producer import Producer
    from paceline_client.records import ConsumerRecord, FetchedBatches
    from paceline_client.subscription import OffsetReset

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "AwaitedReplica",
    "BootstrapError",
    "Broker",
    "BrokerLogDirs",
    "BufferExhaustedError",
    "BulkFuture",
    "ClientClosedError",
    "ClusterDescription",
    "CommitFailedError",
    "ConfigChange",
    "ConfigEntry",
    "ConfigResult",
    "Consumer",
    "ConsumerRecord",
    "DeletedRecords",
    "DeliveryFailedError",
    "ElectionResult",
    "ErrorCode",
    "EventGap",
    "FetchedBatches",
    "GroupDescription",
    "GroupListing",
    "GroupResult",
    "LogDirDescription",
    "LogTruncatedError",
    "MemberDescription",
    "NewPartitions",
    "NewPartitionsResult",
    "NewTopic",
    "NoOffsetError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetReset",
    "PacelineError",
    "PartitionDescription",
    "PartitionReplicasDescription",
    "Producer",
    "ProducerClosedError",
    "ProducerFatalError",
    "Reassignment",
    "ReassignmentResult",
    "RebalanceListener",
    "RecordFuture",
    "RecordMetadata",
    "ReplicaDescription",
    "ReplicaLogDirResult",
    "ReplicaOnDisk",
    "StateChange",
    "StateChangeKind",
    "TlsFiles",
    "TopicDescription",
    "TopicPartition",
    "TopicResult",
    "WatchedEvents",
]

_MODULES = {
    "paceline.model.errors": "ErrorCode PacelineError",
    "paceline.model.identifiers": "TopicPartition",
    "paceline.model.state_change": "StateChange StateChangeKind",
    "paceline.model.tls": "TlsFiles",
    "paceline_client.admin": "Admin ClusterDescription NewTopic "
    "PartitionReplicasDescription ReplicaDescription TopicResult",
    "paceline_client.admin_configs": "ConfigChange ConfigEntry ConfigResult",
    "paceline_client.admin_groups": "GroupDescription GroupListing GroupResult MemberDescription",
    "paceline_client.admin_log_dirs": "BrokerLogDirs LogDirDescription ReplicaLogDirResult ReplicaOnDisk",
    "paceline_client.admin_partitions": "AwaitedReplica ElectionResult NewPartitions "
    "NewPartitionsResult Reassignment ReassignmentResult",
    "paceline_client.admin_records": "DeletedRecords",
    "paceline_client.admin_watch": "EventGap WatchedEvents",
    "paceline_client.aio.admin": "AsyncAdmin",
    "paceline_client.aio.consumer": "AsyncConsumer",
    "paceline_client.aio.producer": "AsyncProducer",
    "paceline_client.batch": "BulkFuture RecordFuture RecordMetadata",
    "paceline_client.consumer": "Consumer",
    "paceline_client.errors": "BootstrapError BufferExhaustedError ClientClosedError CommitFailedError "
    "DeliveryFailedError LogTruncatedError NoOffsetError ProducerClosedError ProducerFatalError",
    "paceline_client.groups.values": "OffsetAndMetadata RebalanceListener",
    "paceline_client.metadata": "Broker PartitionDescription TopicDescription",
    "paceline_client.offsets": "OffsetAndTimestamp",
    "paceline_client.producer": "Producer",
    "paceline_client.records": "ConsumerRecord FetchedBatches",
    "paceline_client.subscription": "OffsetReset",
}
"""The public names of each module."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet, for ``help`` and completion."""
    return list(__all__)


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that a program without producer or consumer does not load the record codec."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
