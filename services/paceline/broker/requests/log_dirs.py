"""Answer DescribeLogDirs and AlterReplicaLogDirs (KIP-113).

Source: docs/protocol/replication.md#log-directories.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from paceline.broker.fetcher.alter_log_dirs import AlterLogDirsManager
from paceline.broker.fetcher.fetcher_manager import FetcherManager
from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.log.log_manager import LogManager
from paceline.model.errors import (
    InvalidRequestError,
    KafkaStorageError,
    LogDirNotFoundError,
    PacelineError,
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
    for future in logs.futures.all():
        current = logs.get(future.topic_partition)
        if current is not None and (chosen is None or future.topic_partition in chosen):
            lag = current.log_end_offset - max(future.log_end_offset, current.log_start_offset)
            replica = ReplicaOnDisk(future.topic_partition, future.size_bytes, lag, is_future=True)
            found.get(future.directory.path, []).append(replica)
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
    logs: LogManager,
    hosted: HostedPartitions,
    storage: ReplicaStorage,
    moves: AlterLogDirsManager,
    requested: Sequence[ReplicaLogDir],
) -> list[PacelineError | None]:
    """Move replicas to log directories; return the reason of the refusal for each replica.

    None means that the replica is in the directory, or that a move has begun. A directory that is requested for a
    replica that does not exist is remembered for its creation.
    """
    times = Counter(replica.topic_partition for replica in requested)
    try:
        return [
            InvalidRequestError(f"{replica.topic_partition} is listed more than once")
            if times[replica.topic_partition] > 1
            else _alter(logs, hosted, moves, replica)
            for replica in requested
        ]
    finally:
        logs.sync_deletions()
        if len(logs.live_log_dirs) < len(logs.log_dirs):
            storage.storage_failed()


def _alter(
    logs: LogManager, hosted: HostedPartitions, moves: AlterLogDirsManager, replica: ReplicaLogDir
) -> PacelineError | None:
    tp = replica.topic_partition
    if replica.path not in logs.log_dirs:
        has = ", ".join(logs.log_dirs)
        return LogDirNotFoundError(f"broker {hosted.broker_id} has no log directory {replica.path!r}, it has {has}")
    if replica.path not in logs.live_log_dirs or tp in hosted.offline:
        return KafkaStorageError(f"log directory {replica.path}, or that of {tp}, has failed")
    partition = hosted.online.get(tp)
    if partition is None or partition.log is None:
        if logs.get(tp) is None:
            logs.prefer(tp, replica.path)
        return ReplicaNotAvailableError(f"broker {hosted.broker_id} has no replica of {tp}")
    try:
        moves.move(partition, replica.path)
    except PacelineError as error:
        return error
    return None
