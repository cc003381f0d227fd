"""Calls of `Admin` on log directories: list them with their replicas, and move replicas between them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.rpc.convert.common import value_of
from paceline.v1 import admin_service_pb2 as pb
from paceline_client.admin_connection import AdminConnection, checked, error_in
from paceline_client.errors import sendable


@dataclass(frozen=True, slots=True)
class ReplicaOnDisk:
    """One replica in a log directory."""

    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int
    """Records below the leader's last known high watermark that this replica lacks; of a copy, those that it lacks."""
    is_future: bool = False
    """Whether the replica is a copy for a move between directories of this broker."""


@dataclass(frozen=True, slots=True)
class LogDirSpace:
    """Space of the disk that holds a log directory."""

    free_bytes: int
    total_bytes: int
    min_free_bytes: int
    """Produce requests are refused below so many free bytes (``log.dir.min.free.bytes``)."""
    reserve_bytes: int
    """Followers pause below so many free bytes."""
    room: str
    """``ROOMY``, ``SHORT`` while produce requests are refused, or ``FULL`` while followers pause, too."""


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """One log directory; with an ``error`` it has failed and its replicas are offline."""

    path: str
    error: PacelineError | None
    replicas: tuple[ReplicaOnDisk, ...]
    space: LogDirSpace | None = None
    """None for a failed directory, and from an older broker."""

    @property
    def size_bytes(self) -> int:
        """Total size of the listed replicas."""
        return sum(replica.size_bytes for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class BrokerLogDirs:
    """The log directories of one broker; with an ``error`` the broker did not answer."""

    broker_id: int
    error: PacelineError | None
    log_dirs: tuple[LogDirDescription, ...]


@dataclass(frozen=True, slots=True)
class ReplicaLogDirResult:
    """Result for one replica; ``error`` is None when it is in the requested directory, or moves there."""

    broker_id: int
    topic_partition: TopicPartition
    error: PacelineError | None = None


class LogDirAdmin(AdminConnection):
    """The log directory calls of `Admin`; create an `Admin`, not this class."""

    def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> list[BrokerLogDirs]:
        """Return the log directories of brokers with their replicas.

        Args:
            brokers: broker ids; None means every live broker. The result of a broker that is not live, or does not
                answer in time, has an ``error``.
            partitions: (topic, partition) pairs whose replicas to list; None means all partitions.
            timeout_ms: longest wait.
        """
        named = None if brokers is None else list(dict.fromkeys(brokers))
        wanted = [] if partitions is None else list(partitions)
        if named == [] or (partitions is not None and not wanted):
            return []
        with sendable():
            request = pb.DescribeLogDirsRequest(
                broker_ids=named or [],
                partitions=[pb.TopicPartition(topic=topic, partition=partition) for topic, partition in wanted],
            )
        answer = self._list("DescribeLogDirs", request, timeout_ms, "brokers")
        return [
            BrokerLogDirs(
                each.broker_id,
                error_in(each),
                tuple(_log_dir(log_dir) for log_dir in each.log_dirs),
            )
            for each in _joined(answer.brokers)
        ]

    def retry_log_dir(self, broker: int, path: str, *, timeout_ms: int | None = None) -> None:
        """Take a failed log directory of a broker back after a check of its file system, without a restart.

        Raises:
            LogDirNotFoundError: the broker has no such directory.
            KafkaStorageError: the directory still fails, or only a restart can use it.
            BrokerNotAvailableError: the broker is not live.
        """
        with sendable():
            request = pb.RetryLogDirRequest(broker_id=broker, path=path)
        error = error_in(self._change("RetryLogDir", request, timeout_ms))
        if error is not None:
            raise error

    def alter_replica_log_dirs(
        self,
        log_dirs: Mapping[tuple[str, int, int], str],
        *,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> list[ReplicaLogDirResult]:
        """Move replicas to log directories of their brokers; the brokers copy after the answer.

        `describe_log_dirs` shows the copy until it replaces the replica. Another directory replaces the target of a
        move, and the present directory cancels it.

        Args:
            log_dirs: path per ``(topic, partition, broker)``.
            timeout_ms: longest wait.
            raise_errors: raise the first replica's error; False returns errors in the results.

        Raises:
            LogDirNotFoundError: the broker has no such directory.
            ReplicaNotAvailableError: the broker has no such replica; it will create the replica in that directory.
            KafkaStorageError: the directory has failed.
            BrokerNotAvailableError: the broker is not live.
        """
        if not log_dirs:
            return []
        with sendable():
            request = pb.AlterReplicaLogDirsRequest(
                replicas=[
                    pb.ReplicaLogDir(broker_id=broker, topic=topic, partition=partition, path=path)
                    for (topic, partition, broker), path in log_dirs.items()
                ],
            )
        answer = self._change("AlterReplicaLogDirs", request, timeout_ms)
        results = [value_of(ReplicaLogDirResult, each, error=error_in(each)) for each in answer.results]
        return checked(results, raise_errors)


def _joined(parts: Iterable[pb.BrokerLogDirs]) -> list[pb.BrokerLogDirs]:
    """Merge the parts of a broker and of a directory: a page may end within a broker's or a directory's entry."""
    brokers: dict[int, pb.BrokerLogDirs] = {}
    for part in parts:
        broker = brokers.get(part.broker_id)
        if broker is None:
            brokers[part.broker_id] = part
            continue
        known = {log_dir.path: log_dir for log_dir in broker.log_dirs}
        for log_dir in part.log_dirs:
            if log_dir.path in known:
                known[log_dir.path].replicas.extend(log_dir.replicas)
            else:
                broker.log_dirs.append(log_dir)
    return list(brokers.values())


def _log_dir(wire: pb.LogDir) -> LogDirDescription:
    replicas = tuple(value_of(ReplicaOnDisk, each) for each in wire.replicas)
    return LogDirDescription(
        wire.path, error_in(wire), replicas, _space(wire.space) if wire.HasField("space") else None
    )


def _space(wire: pb.LogDirSpace) -> LogDirSpace:
    room = pb.LogDirRoom.Name(wire.room).removeprefix("LOG_DIR_ROOM_") if wire.room in pb.LogDirRoom.values() else ""
    return value_of(LogDirSpace, wire, room=room)
