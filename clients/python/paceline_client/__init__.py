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
    "Admin": "paceline_client.admin",
    "AsyncAdmin": "paceline_client.aio.admin",
    "AsyncConsumer": "paceline_client.aio.consumer",
    "AsyncProducer": "paceline_client.aio.producer",
    "AwaitedReplica": "paceline_client.admin_partitions",
    "BootstrapError": "paceline_client.errors",
    "Broker": "paceline_client.metadata",
    "BrokerLogDirs": "paceline_client.admin_log_dirs",
    "BufferExhaustedError": "paceline_client.errors",
    "BulkFuture": "paceline_client.batch",
    "ClientClosedError": "paceline_client.errors",
    "ClusterDescription": "paceline_client.admin",
    "CommitFailedError": "paceline_client.errors",
    "ConfigChange": "paceline_client.admin_configs",
    "ConfigEntry": "paceline_client.admin_configs",
    "ConfigResult": "paceline_client.admin_configs",
    "Consumer": "paceline_client.consumer",
    "ConsumerRecord": "paceline_client.records",
    "DeletedRecords": "paceline_client.admin_records",
    "DeliveryFailedError": "paceline_client.errors",
    "ElectionResult": "paceline_client.admin_partitions",
    "ErrorCode": "paceline.model.errors",
    "EventGap": "paceline_client.admin_watch",
    "FetchedBatches": "paceline_client.records",
    "GroupDescription": "paceline_client.admin_groups",
    "GroupListing": "paceline_client.admin_groups",
    "GroupResult": "paceline_client.admin_groups",
    "LogDirDescription": "paceline_client.admin_log_dirs",
    "LogTruncatedError": "paceline_client.errors",
    "MemberDescription": "paceline_client.admin_groups",
    "NewPartitions": "paceline_client.admin_partitions",
    "NewPartitionsResult": "paceline_client.admin_partitions",
    "NewTopic": "paceline_client.admin",
    "NoOffsetError": "paceline_client.errors",
    "OffsetAndMetadata": "paceline_client.groups.values",
    "OffsetAndTimestamp": "paceline_client.offsets",
    "OffsetReset": "paceline_client.subscription",
    "PacelineError": "paceline.model.errors",
    "PartitionDescription": "paceline_client.metadata",
    "PartitionReplicasDescription": "paceline_client.admin",
    "Producer": "paceline_client.producer",
    "ProducerClosedError": "paceline_client.errors",
    "ProducerFatalError": "paceline_client.errors",
    "Reassignment": "paceline_client.admin_partitions",
    "ReassignmentResult": "paceline_client.admin_partitions",
    "RebalanceListener": "paceline_client.groups.values",
    "RecordFuture": "paceline_client.batch",
    "RecordMetadata": "paceline_client.batch",
    "ReplicaDescription": "paceline_client.admin",
    "ReplicaLogDirResult": "paceline_client.admin_log_dirs",
    "ReplicaOnDisk": "paceline_client.admin_log_dirs",
    "StateChange": "paceline.model.state_change",
    "StateChangeKind": "paceline.model.state_change",
    "TlsFiles": "paceline.model.tls",
    "TopicDescription": "paceline_client.metadata",
    "TopicPartition": "paceline.model.identifiers",
    "TopicResult": "paceline_client.admin",
    "WatchedEvents": "paceline_client.admin_watch",
}


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet, for ``help`` and completion."""
    return list(__all__)


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that a program without producer or consumer does not load the record codec."""
    home = _MODULES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
