"""Answer DescribeLogDirs and AlterReplicaLogDirs (KIP-113).

A broker may have several log directories, but does not move replicas between them: AlterReplicaLogDirs is refused.
Source: docs/protocol/replication.md#log-directories.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from paceline.broker.fetcher.fetcher_manager import FetcherManager
from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.log.log_manager import LogManager
from paceline.model.errors import (
    InvalidRequestError,
    KafkaStorageError,
    LogDirNotFoundError,
    PacelineError,
    PolicyViolationError,
    ReplicaNotAvailableError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.log_dirs import LogDirSpace, LogDirView, ReplicaLogDir, ReplicaOnDisk


def describe_log_dirs(
    logs: LogManager, fetchers: FetcherManager, wanted: Collection[TopicPartition] | None
) -> list[LogDirView]:
    """Return every log directory with the requested replicas; None means all."""
    chosen = None if wanted is None else frozenset(wanted)
    found: dict[str, list[ReplicaOnDisk]] = {path: [] for path in logs.live_log_dirs}
    for log in logs.all_logs():
        topic_partition = log.topic_partition
        if log.directory.path in found and (chosen is None or topic_partition in chosen):
            state = fetchers.state(topic_partition)
            lag = 0 if state is None else state.lag or 0
            found[log.directory.path].append(ReplicaOnDisk(topic_partition, log.size_bytes, lag))
    spaces = log_dir_spaces(logs)
    return [
        LogDirView(path, None, tuple(sorted(found[path], key=lambda one: one.topic_partition)), spaces.get(path))
        if path in found
        else LogDirView(path, KafkaStorageError(f"log directory {path} has failed"))
        for path in logs.log_dirs
    ]


def log_dir_spaces(logs: LogManager) -> dict[str, LogDirSpace]:
    """Return the measured space of each online directory by path."""
    return {
        path: LogDirSpace(one.disk.free_bytes, one.disk.total_bytes, one.limit_bytes, one.reserve_bytes, one.room)
        for path, one in logs.spaces.items()
        if one.disk is not None
    }


def alter_replica_log_dirs(
    logs: LogManager, hosted: HostedPartitions, requested: Sequence[ReplicaLogDir]
) -> list[PacelineError | None]:
    """Return the reason of the refusal for each replica, None when the replica is already in the directory."""
    times = Counter(replica.topic_partition for replica in requested)
    return [
        InvalidRequestError(f"{replica.topic_partition} is listed more than once")
        if times[replica.topic_partition] > 1
        else _refusal(logs, hosted, replica)
        for replica in requested
    ]


def _refusal(logs: LogManager, hosted: HostedPartitions, replica: ReplicaLogDir) -> PacelineError | None:
    topic_partition = replica.topic_partition
    if replica.path not in logs.log_dirs:
        has = ", ".join(logs.log_dirs)
        return LogDirNotFoundError(f"broker {hosted.broker_id} has no log directory {replica.path!r}, it has {has}")
    if replica.path not in logs.live_log_dirs or topic_partition in hosted.offline:
        return KafkaStorageError(f"log directory {replica.path}, or that of {topic_partition}, has failed")
    log = logs.get(topic_partition)
    if log is None:
        return ReplicaNotAvailableError(f"broker {hosted.broker_id} has no replica of {topic_partition}")
    if log.directory.path == replica.path:
        return None
    return PolicyViolationError(
        f"brokers of this version do not move replicas between log directories; {topic_partition} stays in "
        f"{log.directory.path}"
    )
