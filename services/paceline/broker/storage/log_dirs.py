"""Answer DescribeLogDirs and AlterReplicaLogDirs (KIP-113).

A broker may have several log directories, but does not move replicas between them: AlterReplicaLogDirs is refused.
Source: docs/protocol/replication.md#log-directories.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from paceline.broker.partition.replica_manager import ReplicaManager
from paceline.model.errors import (
    InvalidRequestError,
    KafkaStorageError,
    LogDirNotFoundError,
    PacelineError,
    PolicyViolationError,
    ReplicaNotAvailableError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.log_dirs import LogDirView, ReplicaLogDir, ReplicaOnDisk


def describe_log_dirs(manager: ReplicaManager, wanted: Collection[TopicPartition] | None) -> list[LogDirView]:
    """Return every log directory with the requested replicas; None means all."""
    logs = manager.logs
    chosen = None if wanted is None else frozenset(wanted)
    found: dict[str, list[ReplicaOnDisk]] = {path: [] for path in logs.live_log_dirs}
    for log in logs.all_logs():
        topic_partition = log.topic_partition
        if log.directory.path in found and (chosen is None or topic_partition in chosen):
            replica = ReplicaOnDisk(topic_partition, log.size_bytes, _lag(manager, topic_partition))
            found[log.directory.path].append(replica)
    return [
        LogDirView(path, None, tuple(sorted(found[path], key=lambda one: one.topic_partition)))
        if path in found
        else LogDirView(path, KafkaStorageError(f"log directory {path} has failed"))
        for path in logs.log_dirs
    ]


def _lag(manager: ReplicaManager, topic_partition: TopicPartition) -> int:
    state = manager.fetchers.state(topic_partition)
    return 0 if state is None else state.lag or 0


def alter_replica_log_dirs(manager: ReplicaManager, requested: Sequence[ReplicaLogDir]) -> list[PacelineError | None]:
    """Return the reason of the refusal for each replica, None when the replica is already in the directory."""
    times = Counter(replica.topic_partition for replica in requested)
    return [
        InvalidRequestError(f"{replica.topic_partition} is listed more than once")
        if times[replica.topic_partition] > 1
        else _refusal(manager, replica)
        for replica in requested
    ]


def _refusal(manager: ReplicaManager, replica: ReplicaLogDir) -> PacelineError | None:
    logs, topic_partition = manager.logs, replica.topic_partition
    if replica.path not in logs.log_dirs:
        has = ", ".join(logs.log_dirs)
        return LogDirNotFoundError(f"broker {manager.broker_id} has no log directory {replica.path!r}, it has {has}")
    if replica.path not in logs.live_log_dirs or topic_partition in manager.offline:
        return KafkaStorageError(f"log directory {replica.path}, or that of {topic_partition}, has failed")
    log = logs.get(topic_partition)
    if log is None:
        return ReplicaNotAvailableError(f"broker {manager.broker_id} has no replica of {topic_partition}")
    if log.directory.path == replica.path:
        return None
    return PolicyViolationError(
        f"brokers of this version do not move replicas between log directories; {topic_partition} stays in "
        f"{log.directory.path}"
    )
