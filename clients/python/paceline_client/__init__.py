"""The Python client of Paceline. The names of ``__all__`` are public; docs/python.md is the guide.

* `Producer` and `AsyncProducer` write records, `Consumer` and `AsyncConsumer` read them, alone or in a group.
* `Admin` and `AsyncAdmin` create, describe and change topics, partitions, groups and settings.
* `PacelineError` is the base of every error; ``error.definite`` tells whether the operation was certainly not carried
  out, ``error.retriable`` whether it may succeed later.
* `paceline_client.assignors` has the assignors of consumer groups.
"""

# Read `producer.py` first, then `accumulator.py` for ordering and exactly-once delivery, then `consumer.py`. The pure
# modules (`record_buffer`, `accumulator`, `partition_queue`, `metadata`, `partitioner`, `codec`, `wire`,
# `subscription`, `fetch_session`) do no I/O and read no clock, so other front ends can share them; `sender`,
# `fetcher` and `metadata_refresher` own the threads.

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.model.admin import ElectionResult as ElectionResult
    from paceline.model.admin import NewPartitions as NewPartitions
    from paceline.model.admin import NewPartitionsResult as NewPartitionsResult
    from paceline.model.admin import NewTopic as NewTopic
    from paceline.model.admin import PartitionDescription as PartitionDescription
    from paceline.model.admin import ReassignmentResult as ReassignmentResult
    from paceline.model.admin import ReplicaDescription as ReplicaDescription
    from paceline.model.admin import TopicResult as TopicResult
    from paceline.model.client_io import RangeDigest as RangeDigest
    from paceline.model.errors import ErrorCode as ErrorCode
    from paceline.model.errors import PacelineError as PacelineError
    from paceline.model.identifiers import TopicPartition as TopicPartition
    from paceline.model.state_change import StateChange as StateChange
    from paceline.model.state_change import StateChangeKind as StateChangeKind
    from paceline.model.tls import TlsFiles as TlsFiles
    from paceline_client.admin import Admin as Admin
    from paceline_client.admin import ClusterDescription as ClusterDescription
    from paceline_client.admin import PartitionReplicasDescription as PartitionReplicasDescription
    from paceline_client.admin_acls import AccessRule as AccessRule
    from paceline_client.admin_acls import AccessRules as AccessRules
    from paceline_client.admin_acls import AccessVerdict as AccessVerdict
    from paceline_client.admin_acls import Identification as Identification
    from paceline_client.admin_configs import ConfigChange as ConfigChange
    from paceline_client.admin_configs import ConfigEntry as ConfigEntry
    from paceline_client.admin_configs import ConfigResult as ConfigResult
    from paceline_client.admin_groups import GroupDescription as GroupDescription
    from paceline_client.admin_groups import GroupListing as GroupListing
    from paceline_client.admin_groups import GroupResult as GroupResult
    from paceline_client.admin_groups import MemberDescription as MemberDescription
    from paceline_client.admin_log_dirs import BrokerLogDirs as BrokerLogDirs
    from paceline_client.admin_log_dirs import LogDirDescription as LogDirDescription
    from paceline_client.admin_log_dirs import LogDirSpace as LogDirSpace
    from paceline_client.admin_log_dirs import ReplicaLogDirResult as ReplicaLogDirResult
    from paceline_client.admin_log_dirs import ReplicaOnDisk as ReplicaOnDisk
    from paceline_client.admin_partitions import AwaitedReplica as AwaitedReplica
    from paceline_client.admin_partitions import Reassignment as Reassignment
    from paceline_client.admin_quotas import Quota as Quota
    from paceline_client.admin_records import DeletedRecords as DeletedRecords
    from paceline_client.admin_watch import EventGap as EventGap
    from paceline_client.admin_watch import WatchedEvents as WatchedEvents
    from paceline_client.aio import AsyncAdmin as AsyncAdmin
    from paceline_client.aio import AsyncConsumer as AsyncConsumer
    from paceline_client.aio import AsyncProducer as AsyncProducer
    from paceline_client.batch import BulkFuture as BulkFuture
    from paceline_client.batch import RecordFuture as RecordFuture
    from paceline_client.batch import RecordMetadata as RecordMetadata
    from paceline_client.cluster_view import ClusterView as ClusterView
    from paceline_client.connections import Connections as Connections
    from paceline_client.consumer import Consumer as Consumer
    from paceline_client.errors import BootstrapError as BootstrapError
    from paceline_client.errors import BufferExhaustedError as BufferExhaustedError
    from paceline_client.errors import ClientClosedError as ClientClosedError
    from paceline_client.errors import CommitFailedError as CommitFailedError
    from paceline_client.errors import DeliveryFailedError as DeliveryFailedError
    from paceline_client.errors import LogTruncatedError as LogTruncatedError
    from paceline_client.errors import NoOffsetError as NoOffsetError
    from paceline_client.errors import ProducerClosedError as ProducerClosedError
    from paceline_client.errors import ProducerFatalError as ProducerFatalError
    from paceline_client.groups.values import OffsetAndMetadata as OffsetAndMetadata
    from paceline_client.groups.values import RebalanceListener as RebalanceListener
    from paceline_client.metadata import Broker as Broker
    from paceline_client.metadata import TopicDescription as TopicDescription
    from paceline_client.offsets import OffsetAndTimestamp as OffsetAndTimestamp
    from paceline_client.producer import Producer as Producer
    from paceline_client.records import ConsumerRecord as ConsumerRecord
    from paceline_client.records import FetchedBatches as FetchedBatches
    from paceline_client.subscription import OffsetReset as OffsetReset

_MODULES = {
    "paceline.model.admin": "ElectionResult NewPartitions NewPartitionsResult NewTopic "
    "PartitionDescription ReassignmentResult ReplicaDescription TopicResult",
    "paceline.model.client_io": "RangeDigest",
    "paceline.model.errors": "ErrorCode PacelineError",
    "paceline.model.identifiers": "TopicPartition",
    "paceline.model.state_change": "StateChange StateChangeKind",
    "paceline.model.tls": "TlsFiles",
    "paceline_client.admin": "Admin ClusterDescription PartitionReplicasDescription",
    "paceline_client.admin_acls": "AccessRule AccessRules AccessVerdict Identification",
    "paceline_client.admin_configs": "ConfigChange ConfigEntry ConfigResult",
    "paceline_client.admin_groups": "GroupDescription GroupListing GroupResult MemberDescription",
    "paceline_client.admin_log_dirs": "BrokerLogDirs LogDirDescription LogDirSpace ReplicaLogDirResult ReplicaOnDisk",
    "paceline_client.admin_partitions": "AwaitedReplica Reassignment",
    "paceline_client.admin_quotas": "Quota",
    "paceline_client.admin_records": "DeletedRecords",
    "paceline_client.admin_watch": "EventGap WatchedEvents",
    "paceline_client.aio.admin": "AsyncAdmin",
    "paceline_client.aio.consumer": "AsyncConsumer",
    "paceline_client.aio.producer": "AsyncProducer",
    "paceline_client.batch": "BulkFuture RecordFuture RecordMetadata",
    "paceline_client.cluster_view": "ClusterView",
    "paceline_client.connections": "Connections",
    "paceline_client.consumer": "Consumer",
    "paceline_client.errors": "BootstrapError BufferExhaustedError ClientClosedError CommitFailedError "
    "DeliveryFailedError LogTruncatedError NoOffsetError ProducerClosedError ProducerFatalError",
    "paceline_client.groups.values": "OffsetAndMetadata RebalanceListener",
    "paceline_client.metadata": "Broker TopicDescription",
    "paceline_client.offsets": "OffsetAndTimestamp",
    "paceline_client.producer": "Producer",
    "paceline_client.records": "ConsumerRecord FetchedBatches",
    "paceline_client.subscription": "OffsetReset",
}
"""The public names of each module."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_HOMES)


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
